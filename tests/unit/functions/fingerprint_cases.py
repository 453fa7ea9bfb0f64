"""Changes to functions that change what they compute, and changes that do not: pairs of sources that define ``f``."""

from __future__ import annotations

from textwrap import indent

PRELUDE = """
import collections, dataclasses, datetime, decimal, enum, fractions, functools, itertools, math, operator, os, pathlib
import random, re, typing
import numpy as np
"""


def _body(text: str) -> str:
    return f"def f(x):\n{indent(text, '    ')}\n"


EXPRESSIONS = [
    ("x + 1", "x + 2"),
    ("x + 1", "x - 1"),
    ("x + 1", "1 + x"),
    ("x + 1", "x + 1.0"),
    ("x + 1", "x + True"),
    ("x + 1", "x + (1 + 0j)"),
    ("x + 0.0", "x + -0.0"),
    ("x * 2", "x ** 2"),
    ("x / 2", "x // 2"),
    ("x % 2", "x / 2"),
    ("x << 1", "x >> 1"),
    ("x & 1", "x | 1"),
    ("x ^ 1", "x & 1"),
    ("x @ x", "x * x"),
    ("-x", "+x"),
    ("~x", "-x"),
    ("not x", "x"),
    ("x < 1", "x <= 1"),
    ("x < 1", "x > 1"),
    ("x >= 1", "x > 1"),
    ("x == 1", "x != 1"),
    ("x is None", "x == None"),
    ("x is None", "x is not None"),
    ("x in (1, 2)", "x not in (1, 2)"),
    ("x in (1, 2)", "x in (1, 3)"),
    ("x in {1, 2}", "x in {1, 3}"),
    ("x in {1, 2}", "x in (1, 2)"),
    ("x in [1, 2]", "x in {1, 2}"),
    ("0 < x < 9", "0 < x <= 9"),
    ("x and 1", "x or 1"),
    ("1 if x else 2", "2 if x else 1"),
    ("x[0]", "x[1]"),
    ("x[0]", "x[-1]"),
    ("x[1:]", "x[:1]"),
    ("x[1:2]", "x[1:2:1]"),
    ("x[..., 0]", "x[:, 0]"),
    ("x.a", "x.b"),
    ("x.a", "x.a()"),
    ("x.a()", "x.b()"),
    ("x.a(1)", "x.a(2)"),
    ("x.a(1, 2)", "x.a(2, 1)"),
    ("x.a(b=1)", "x.a(b=2)"),
    ("x.a(b=1)", "x.a(c=1)"),
    ("x.a(b=1)", "x.a(1)"),
    ("x.a(*x)", "x.a(x)"),
    ("x.a(**x)", "x.a(*x)"),
    ("'a'", "'b'"),
    ("'a'", "b'a'"),
    ("'a'", "'a '"),
    ("('a', 'b')", "('ab',)"),
    ("('a', ('b',))", "(('a',), 'b')"),
    ("(1, 2)", "(2, 1)"),
    ("(1, 2)", "[1, 2]"),
    ("{1: 2}", "{1: 3}"),
    ("{1: 2, 3: 4}", "{3: 4, 1: 2}"),
    ("{'a': x}", "{'b': x}"),
    ("{x}", "[x]"),
    ("f'{x}'", "f'{x!r}'"),
    ("f'{x}'", "f'{x:>2}'"),
    ("f'{x} a'", "f'{x} b'"),
    ("x % 'a'", "x + 'a'"),
    ("None", "False"),
    ("...", "None"),
    ("1", "10 ** 30"),
    ("1e300", "1e301"),
    ("[y for y in x]", "[y for y in x if y]"),
    ("[y for y in x]", "{y for y in x}"),
    ("[y for y in x]", "(y for y in x)"),
    ("[y + 1 for y in x]", "[y + 2 for y in x]"),
    ("{y: 1 for y in x}", "{y: 2 for y in x}"),
    ("[y for z in x for y in z]", "[z for z in x for y in z]"),
    ("lambda y: y + 1", "lambda y: y + 2"),
    ("lambda y=1: y", "lambda y=2: y"),
    ("(lambda: lambda: x)()", "(lambda: lambda: 1)()"),
    ("(y := x)", "x"),
    ("len(x)", "sum(x)"),
    ("len(x)", "abs(x)"),
    ("int(x)", "float(x)"),
    ("sorted(x)", "sorted(x, reverse=True)"),
    ("print(x)", "repr(x)"),
    ("math.sin(x)", "math.cos(x)"),
    ("math.pi * x", "math.e * x"),
    ("np.sum(x)", "np.mean(x)"),
    ("np.sum(x, axis=0)", "np.sum(x, axis=1)"),
    ("np.random.rand()", "np.random.randn()"),
    ("np.linalg.norm(x)", "np.linalg.det(x)"),
    ("np.float32(x)", "np.float64(x)"),
    ("random.random()", "random.gauss()"),
    ("os.path.join(x)", "os.path.split(x)"),
    ("re.sub('a', 'b', x)", "re.sub('a', 'c', x)"),
    ("operator.itemgetter(1)(x)", "operator.itemgetter(2)(x)"),
    ("getattr(x, 'a')", "getattr(x, 'b')"),
    ("isinstance(x, int)", "isinstance(x, str)"),
    ("itertools.chain(x)", "itertools.cycle(x)"),
    ("max(x, key=len)", "max(x, key=abs)"),
]

STATEMENTS = [
    ("return x", "x"),
    ("return x", "return"),
    ("return x", "yield x"),
    ("yield x", "yield from x"),
    ("y = x + 1\nreturn y", "y = x + 1\nreturn x"),
    ("y = 1\nz = 2\nreturn y", "y = 1\nz = 2\nreturn z"),
    ("if x:\n    return 1\nreturn 2", "if not x:\n    return 1\nreturn 2"),
    ("if x:\n    x = 1\nelse:\n    x = 2\nreturn x", "if x:\n    x = 1\nx = 2\nreturn x"),
    ("for y in x:\n    pass\nreturn y", "for y in x:\n    break\nreturn y"),
    ("for y in x:\n    if y:\n        continue\n    x = y", "for y in x:\n    if y:\n        break\n    x = y"),
    ("for y in x:\n    pass\nelse:\n    x = 1\nreturn x", "for y in x:\n    pass\nreturn x"),
    ("while x:\n    x -= 1\nreturn x", "while x:\n    x -= 2\nreturn x"),
    ("x += 1\nreturn x", "x -= 1\nreturn x"),
    ("x[0] = 1\nreturn x", "x[1] = 1\nreturn x"),
    ("x[0] = 1\nreturn x", "x[0] += 1\nreturn x"),
    ("x.a = 1\nreturn x", "x.b = 1\nreturn x"),
    ("del x[0]\nreturn x", "del x[1]\nreturn x"),
    ("del x.a\nreturn x", "del x.b\nreturn x"),
    ("a, b = x\nreturn a", "a, *b = x\nreturn a"),
    ("a, b = x\nreturn a", "b, a = x\nreturn a"),
    ("assert x\nreturn x", "assert not x\nreturn x"),
    ("assert x, 'a'\nreturn x", "assert x, 'b'\nreturn x"),
    ("raise ValueError(x)", "raise TypeError(x)"),
    ("raise ValueError(x)", "raise ValueError(x) from None"),
    ("try:\n    x()\nexcept ValueError:\n    x = 1\nreturn x", "try:\n    x()\nexcept TypeError:\n    x = 1\nreturn x"),
    (
        "try:\n    x()\nexcept ValueError:\n    x = 1\nreturn x",
        "x()\ntry:\n    x = 1\nexcept ValueError:\n    x = 1\nreturn x",
    ),
    ("try:\n    x()\nfinally:\n    x = 1\nreturn x", "try:\n    x()\nfinally:\n    x = 2\nreturn x"),
    (
        "try:\n    x()\n    x()\nexcept ValueError:\n    return 1",
        "x()\ntry:\n    x()\nexcept ValueError:\n    return 1",
    ),
    (
        "try:\n    y = x.a\nexcept* ValueError:\n    y = 1\nreturn y",
        "try:\n    y = x.a\nexcept ValueError:\n    y = 1\nreturn y",
    ),
    ("with x as y:\n    return y", "with x:\n    return x"),
    ("with x as y:\n    y()\n    y()", "with x as y:\n    y()\ny()"),
    ("match x:\n    case 1:\n        return 2", "match x:\n    case 2:\n        return 2"),
    ("match x:\n    case [a, b]:\n        return a", "match x:\n    case [a, *b]:\n        return a"),
    ("match x:\n    case {'a': y}:\n        return y", "match x:\n    case {'b': y}:\n        return y"),
    ("match x:\n    case int():\n        return 1", "match x:\n    case str():\n        return 1"),
    ("def g(y):\n    return y\nreturn g(x)", "def g(y):\n    return -y\nreturn g(x)"),
    ("def g(y=1):\n    return y\nreturn g()", "def g(y=2):\n    return y\nreturn g()"),
    ("def g():\n    nonlocal x\n    x = 1\ng()\nreturn x", "def g():\n    nonlocal x\n    x = 2\ng()\nreturn x"),
    ("class G:\n    a = 1\nreturn G.a", "class G:\n    a = 2\nreturn G.a"),
    (
        "class G:\n    def a(self):\n        return 1\nreturn G()",
        "class G:\n    def a(self):\n        return 2\nreturn G()",
    ),
    ("class G(dict):\n    pass\nreturn G()", "class G(list):\n    pass\nreturn G()"),
    ("import math\nreturn math.pi", "import cmath as math\nreturn math.pi"),
    ("from math import sin as g\nreturn g(x)", "from math import cos as g\nreturn g(x)"),
    ("import numpy\nreturn numpy", "import math as numpy\nreturn numpy"),
    ("a = 'x'\nreturn eval_(a)", "b = 'x'\nreturn eval_(b)"),
    ("return x\nyield", "return x"),
    ("global unset\nreturn unset", "global unset_too\nreturn unset_too"),
]

VALUES = [
    ("1", "2"),
    ("1", "1.0"),
    ("1", "True"),
    ("1", "'1'"),
    ("0.0", "-0.0"),
    ("float('nan')", "float('inf')"),
    ("10 ** 5000", "10 ** 5000 + 1"),
    ("'ab'", "b'ab'"),
    ("b'ab'", "bytearray(b'ab')"),
    ("None", "NotImplemented"),
    ("[1, 2]", "[2, 1]"),
    ("[1, 2]", "(1, 2)"),
    ("[[1], 2]", "[1, [2]]"),
    ("[[1, 2]]", "[[1], [2]]"),
    ("['a', 'b']", "['ab']"),
    ("{1, 2}", "{1, 3}"),
    ("{1, 2}", "frozenset({1, 2})"),
    ("{(1, 2), 'a'}", "{(2, 1), 'a'}"),
    ("{'a': 1}", "{'a': 2}"),
    ("{'a': 1}", "{'b': 1}"),
    ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"),
    ("{'a': {'b': [1]}}", "{'a': {'b': [2]}}"),
    ("collections.OrderedDict(a=1)", "{'a': 1}"),
    ("collections.defaultdict(int)", "collections.defaultdict(list)"),
    ("collections.Counter('aab')", "collections.Counter('abb')"),
    ("collections.deque([1], 2)", "collections.deque([1], 3)"),
    ("range(3)", "range(4)"),
    ("slice(1, 2)", "slice(1, 3)"),
    ("np.zeros(3)", "np.zeros(4)"),
    ("np.zeros(4)", "np.zeros((2, 2))"),
    ("np.zeros(3)", "np.ones(3)"),
    ("np.zeros(3)", "np.zeros(3, 'f4')"),
    ("np.zeros(3, '<i4')", "np.zeros(3, '>i4')"),
    ("np.array(['a'], object)", "np.array(['b'], object)"),
    ("np.array(['a', 'b'])", "np.array(['a', 'c'])"),
    ("np.array([(1, 2.0)], [('a', 'i4'), ('b', 'f4')])", "np.array([(1, 2.0)], [('a', 'i4'), ('c', 'f4')])"),
    ("np.float32(1)", "np.float64(1)"),
    ("np.float32(1)", "np.float32(2)"),
    ("np.dtype('f4')", "np.dtype('f8')"),
    ("np.datetime64('2020-01-01')", "np.datetime64('2020-01-02')"),
    ("np.ma.masked_array([1, 2], [0, 1])", "np.ma.masked_array([1, 2], [1, 0])"),
    ("np.random.default_rng(1)", "np.random.default_rng(2)"),
    ("random.Random(1)", "random.Random(2)"),
    ("re.compile('a')", "re.compile('b')"),
    ("re.compile('a')", "re.compile('a', re.IGNORECASE)"),
    ("pathlib.PurePath('a')", "pathlib.PurePath('b')"),
    ("datetime.date(2020, 1, 1)", "datetime.date(2020, 1, 2)"),
    ("datetime.timedelta(1)", "datetime.timedelta(2)"),
    ("decimal.Decimal('1.0')", "decimal.Decimal('1.00')"),
    ("fractions.Fraction(1, 2)", "fractions.Fraction(1, 3)"),
    ("len", "sum"),
    ("math.sin", "math.cos"),
    ("np.add", "np.subtract"),
    ("np.sum", "np.mean"),
    ("np.linalg.norm", "np.linalg.det"),
    ("np.random.rand", "np.random.randn"),
    ("str.upper", "str.lower"),
    ("str", "int"),
    ("np.float32", "np.float64"),
    ("list[int]", "list[str]"),
    ("typing.Optional[int]", "typing.Optional[str]"),
    ("'ab'.join", "'ac'.join"),
    ("'ab'.join", "'ab'.split"),
    ("{'a': 1}.get", "{'a': 2}.get"),
    ("re.compile('a').sub", "re.compile('b').sub"),
    ("operator.itemgetter(1)", "operator.itemgetter(2)"),
    ("operator.attrgetter('a')", "operator.methodcaller('a')"),
    ("functools.partial(round, ndigits=1)", "functools.partial(round, ndigits=2)"),
    ("functools.partial(round, 1)", "functools.partial(abs, 1)"),
    ("functools.partial(round, 1)", "functools.partial(round, ndigits=1)"),
    ("np.vectorize(lambda y: y + 1)", "np.vectorize(lambda y: y + 2)"),
    ("lambda y: y + 1", "lambda y: y + 2"),
    ("lambda y: y", "lambda *y: y"),
    ("lambda y: y", "lambda **y: y"),
    ("lambda *y: y", "lambda **y: y"),
    ("lambda y, z: y", "lambda y, /, z: y"),
    ("lambda y, z=1: y", "lambda y, *, z=1: y"),
    ("lambda y=1: y", "lambda y=2: y"),
    ("lambda *, y=1: y", "lambda *, y=2: y"),
    ("lambda *, y=1, z=2: y", "lambda *, y=2, z=1: y"),
    ("functools.lru_cache(lambda y: 1)", "functools.lru_cache(lambda y: 2)"),
    ("functools.cache(lambda y: 1)", "lambda y: 1"),
    ("property(lambda y: 1)", "property(lambda y: 2)"),
    ("enum.Enum('E', 'A B')", "enum.Enum('E', 'A C')"),
    ("enum.Enum('E', 'A B').A", "enum.Enum('E', 'A B').B"),
    ("enum.Enum('E', 'A B').A", "enum.Enum('E', 'B A').A"),
    ("enum.Flag('E', 'A B')(3)", "enum.Flag('E', 'A B')(2)"),
    ("collections.namedtuple('P', 'a b')(1, 2)", "collections.namedtuple('P', 'a b')(2, 1)"),
    ("collections.namedtuple('P', 'a b')", "collections.namedtuple('P', 'b a')"),
    ("math", "operator"),
]

PLACES = {
    "a global": "K = {}\ndef f(x):\n    return x, K\n",
    "a variable": "def make(k):\n    def f(x):\n        return x, k\n    return f\nf = make({})\n",
    "a default": "def f(x, k={}):\n    return x, k\n",
    "a keyword": "def f(x, *, k={}):\n    return x, k\n",
    "a partial": "def g(k, x):\n    return x, k\nf = functools.partial(g, {})\n",
    "an attribute": "class C:\n    def __call__(self, x):\n        return x, self.k\nf = C()\nf.k = {}\n",
    "a class": "class C:\n    k = {}\n    def __call__(self, x):\n        return x, self.k\nf = C()\n",
    "the list itself": "f = [{}]\n",
}

_CLASS = """
class Base:
    scale = 1
    def up(self, x):
        return x * self.scale

class C(Base):
    def __init__(self, k):
        self.k = k
    def __call__(self, x):
        return self.up(x) + self.k

    @staticmethod
    def s(x):
        return x

    @classmethod
    def c(cls, x):
        return x

    @property
    def p(self):
        return self.k

    @functools.cached_property
    def q(self):
        return self.k

f = C(3)
"""
_SLOTS = "class C:\n    __slots__ = ('a', 'b')\n    def __call__(self, x):\n        return x\nf = C()\nf.a = 1\n"
_DATA = "@dataclasses.dataclass\nclass D:\n    a: int = 1\n    b: float = 2\ndef f(x):\n    return D(x)\n"
_FROZEN = _DATA.replace("dataclass\n", "dataclass(frozen=True)\n")
_HELPERS = "def g(x):\n    return h(x) + 1\ndef h(x):\n    return x * K\nK = 3\ndef f(x):\n    return g(x)\n"
_MUTUAL = "def f(x):\n    return g(x - 1) if x else 1\ndef g(x):\n    return f(x - 1) if x else 2\n"
_DECORATED = """
def twice(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(fn(*args))
    return wrapper

@twice
def f(x):
    return x + 1
"""
_STATE = """
class C:
    def __init__(self):
        self.a, self.b = 1, 2
    def __getstate__(self):
        return {'a': self.a}
    def __setstate__(self, state):
        self.a, self.b = state['a'], 2
    def __call__(self, x):
        return x + self.a
f = C()
"""
_ENUM = "class E(enum.Enum):\n    A = 1\n    B = 2\n    def g(self):\n        return 1\ndef f(x):\n    return E(x)\n"
_CYCLE = "a = {'n': 1}\nb = {'a': a}\na['b'] = b\ndef f(x):\n    return a, x\n"
_DOC = "def g():\n    'a'\ndef f(x):\n    return g.__doc__\n"

EDITS = [
    (_CLASS, "scale = 1", "scale = 2"),
    (_CLASS, "x * self.scale", "x / self.scale"),
    (_CLASS, "C(Base)", "C(Base, dict)"),
    (_CLASS, "self.k = k", "self.k = -k"),
    (_CLASS, "f = C(3)", "f = C(4)"),
    (_CLASS, "f = C(3)", "f = C"),
    (_CLASS, "f = C(3)", "f = C(3).up"),
    (_CLASS.replace("f = C(3)", "f = C(3).up"), "C(3)", "C(4)"),
    (_CLASS.replace("f = C(3)", "f = C.c"), "C.c", "C.s"),
    (_CLASS, "__call__(self, x)", "__call__(self, x, y=1)"),
    (_CLASS, "staticmethod\n    def s(x):\n        return x", "staticmethod\n    def s(x):\n        return -x"),
    (_CLASS, "staticmethod\n    def s(x)", "classmethod\n    def s(x)"),
    (_CLASS, "def c(cls, x):\n        return x", "def c(cls, x):\n        return -x"),
    (_CLASS, "def p(self):\n        return self.k", "def p(self):\n        return 1"),
    (_CLASS, "def q(self):\n        return self.k", "def q(self):\n        return 1"),
    (_CLASS, "functools.cached_property", "property"),
    (_CLASS, "f = C(3)", "f = C(3)\nf.more = 1"),
    (_CLASS, "f = C(3)", "f = C(3)\nC.more = 1"),
    (_CLASS, "f = C(3)", "C.up = lambda self, x: x\nf = C(3)"),
    (_SLOTS, "f.a = 1", "f.a = 2"),
    (_SLOTS, "f.a = 1", "f.b = 1"),
    (_SLOTS, "('a', 'b')", "('a', 'c')"),
    (_DATA, "a: int = 1", "a: int = 2"),
    (_DATA, "a: int = 1", "a: str = 1"),
    ("class T(typing.NamedTuple):\n    a: int\ndef f(x):\n    return x(T)\n", "a: int", "a: str"),
    (_DATA, "b: float = 2", "c: float = 2"),
    (_DATA, "D(x)", "D(b=x)"),
    (_DATA, "dataclass\n", "dataclass(frozen=True)\n"),
    (_DATA, "a: int = 1", "a: int = dataclasses.field(default=1, repr=False)"),
    (_DATA, "a: int = 1", "a: int = dataclasses.field(default_factory=int)"),
    (_DATA + "f = D(1)\n", "D(1)", "D(2)"),
    (_FROZEN + "f = D(1)\n", "D(1)", "D(2)"),
    (_HELPERS, "K = 3", "K = 4"),
    (_HELPERS, "x * K", "x / K"),
    (_HELPERS, "h(x) + 1", "h(x) + 2"),
    (_HELPERS, "return g(x)", "return h(x)"),
    (_HELPERS, "def f(x)", "h = g\ndef f(x)"),
    (_MUTUAL, "else 2", "else 3"),
    (_MUTUAL, "else 1", "else 3"),
    (_MUTUAL, "return f(x - 1)", "return g(x - 1)"),
    (_MUTUAL + "k = f\nf = g\n", "else 2", "else 3"),
    (_DECORATED, "x + 1", "x + 2"),
    (_DECORATED, "fn(fn(*args))", "fn(*args)"),
    (_DECORATED, "@twice\n", ""),
    (_DECORATED, "@twice\n", "@twice\n@twice\n"),
    (_DECORATED, "@twice\n", "@functools.lru_cache\n"),
    (_DECORATED, "@functools.wraps(fn)", "@functools.lru_cache"),
    (_DECORATED, "    @functools.wraps(fn)\n", ""),
    (_STATE, "self.a, self.b = 1, 2\n    def", "self.a, self.b = 3, 2\n    def"),
    (_STATE, "'a': self.a", "'b': self.b"),
    (_STATE, "x + self.a", "x - self.a"),
    (_STATE, "state['a'], 2", "state['a'], 3"),
    (_ENUM, "A = 1", "A = 3"),
    (_ENUM, "A = 1\n    B = 2", "B = 2\n    A = 1"),
    (_ENUM, "B = 2", "C = 2"),
    (_ENUM, "return 1", "return 2"),
    (_ENUM, "enum.Enum", "enum.IntEnum"),
    (_CYCLE, "'n': 1", "'n': 2"),
    (_CYCLE, "a['b'] = b", "a['b'] = a"),
    (_CYCLE, "a['b'] = b", "a['b'] = None"),
    (_DOC, "'a'", "'b'"),
    (_DOC.replace("__doc__", "__name__"), "def f(x)", "g.__name__ = 'other'\ndef f(x)"),
    (_DOC.replace("g.__doc__", "typing.get_type_hints(g)"), "def g()", "def g() -> int"),
    (_DOC, "def f(x)", "g.extra = 1\ndef f(x)"),
    ("def f(x):\n    return x\nf.a = 1\n", "f.a = 1", "f.a = 2"),
    ("def f(*, y):\n    y = 1\n    return y\n", "*, y", ""),
    ("def f(x):\n    return x\n", "def f(x)", "def f(x, y=1)"),
    ("def f(x):\n    return x\n", "def f(x)", "def f(x, *y)"),
    ("def f(x):\n    return x\n", "def f(x)", "def f(x, **y)"),
    ("def f(x):\n    return x\n", "def f(x)", "def f(x, /)"),
    ("def f(x):\n    return x\n", "def f(x)", "def f(*, x)"),
    ("def f(x):\n    return x\n", "def f(x)", "async def f(x)"),
    ("def f(x):\n    return x.a, y.b\ny = re\n", "y = re", "y = os"),
    ("from math import sin as g\ndef f(x):\n    return g(x)\n", "sin", "cos"),
    ("import math as g\ndef f(x):\n    return g.sqrt(x)\n", "math", "cmath"),
    ("import os.path as g\ndef f(x):\n    return g.join(x)\n", "os.path", "ntpath"),
    ("len = 1\ndef f(x):\n    return len\n", "len = 1", "lent = 1"),
    ("def f(x):\n    return x(lambda y: (y, k))\nk = 1\n", "k = 1", "k = 2"),
    ("def f(x):\n    class G:\n        a = k\n    return G\nk = 1\n", "k = 1", "k = 2"),
    ("def f(x):\n    return [(y, k) for y in x]\nk = 1\n", "k = 1", "k = 2"),
    ("class M(type):\n    k = 1\nclass C(metaclass=M):\n    pass\ndef f(x):\n    return C\n", "k = 1", "k = 2"),
    ("class M:\n    def __reduce__(self):\n        return (M, ())\n    k = 1\nf = M()\n", "k = 1", "k = 2"),
    ("class S(set):\n    pass\nf = S('ab')\n", "'ab'", "'ac'"),
    ("class S(set):\n    k = 1\nf = S('ab')\n", "k = 1", "k = 2"),
    ("class S(dict):\n    k = 1\nf = S(a=1)\n", "a=1", "a=2"),
    ("class S(list):\n    k = 1\nf = S([1])\n", "[1]", "[2]"),
    ("class S(str):\n    k = 1\nf = S('a')\n", "'a'", "'b'"),
    ("class S(int):\n    k = 1\nf = S(1)\n", "S(1)", "S(2)"),
    ("class S(np.ndarray):\n    k = 1\nf = np.zeros(2).view(S)\n", "zeros", "ones"),
    ("class S(np.ndarray):\n    k = 1\nf = np.zeros(2).view(S)\n", "k = 1", "k = 2"),
    ("class S(tuple):\n    k = 1\nf = S([1])\n", "[1]", "[2]"),
]

MUTATIONS: dict[str, tuple[str, str]] = {}
for _before, _after in EXPRESSIONS:
    MUTATIONS[f"{_before} => {_after}"] = (_body(f"return {_before}"), _body(f"return {_after}"))
for _before, _after in STATEMENTS:
    MUTATIONS[f"{_before} => {_after}"] = (_body(_before), _body(_after))
for _number, (_before, _after) in enumerate(VALUES):
    _place = list(PLACES)[_number % len(PLACES)]
    MUTATIONS[f"{_place}: {_before} => {_after}"] = (PLACES[_place].format(_before), PLACES[_place].format(_after))
for _source, _before, _after in EDITS:
    MUTATIONS[f"{_source}{_before} => {_after}"] = (_source, _source.replace(_before, _after, 1))

NEUTRAL = [
    (_HELPERS, "# a comment\n" + _HELPERS),
    (_HELPERS, _HELPERS.replace("\n", "\n\n\n")),
    (_HELPERS, _HELPERS.replace("return x * K", "return (\n        x\n        # times\n        * K\n    )")),
    (_HELPERS, _HELPERS.replace("def h(x):\n", 'def h(x):\n    """What it does."""\n')),
    (_HELPERS, _HELPERS.replace("def h(x):", "def h(x: int) -> int:")),
    (_HELPERS, _HELPERS.replace("K = 3", "K: int = 3\nUNUSED = 5")),
    (_HELPERS, _HELPERS.replace("return h(x) + 1", "pass\n    return h(x) + 1")),
    (_HELPERS, _HELPERS.replace("return h(x) + 1", "if True:\n        return h(x) + 1")),
    (_HELPERS, _HELPERS.replace("return h(x) + 1", "return (h(x) + (1))")),
    (_HELPERS, "K = 3\n" + _HELPERS.replace("K = 3\n", "")),
    (_HELPERS, _HELPERS.replace("K = 3", "K = 1 + 2")),
    (_HELPERS, "import math, json\nimport sys as system\n" + _HELPERS),
    (_HELPERS, "from __future__ import annotations\n" + _HELPERS),
    (_CLASS, _CLASS.replace("class C(Base):\n", 'class C(Base):\n    """A class."""\n\n')),
    (_CLASS, _CLASS.replace("x):\n", "x: float) -> float:\n")),
    (_CLASS, _CLASS.replace("return self.k", "# fast\n        return self.k")),
    (_DATA, _DATA.replace("class D:\n", "class D:\n    # fields\n\n")),
    (_DECORATED, _DECORATED.replace("def f(x):\n", 'def f(x):\n    """Doc."""\n')),
    (_ENUM, _ENUM.replace("class E(enum.Enum):\n", 'class E(enum.Enum):\n    """Doc."""\n')),
    (_MUTUAL, "def unrelated():\n    return f, g\n" + _MUTUAL),
    (_DOC.replace("__doc__", "__name__"), _DOC.replace("__doc__", "__name__").replace("'a'", "'b'")),
    ("def f(x):\n    return x\n", "f = lambda x: x\n"),
    ("def f(x):\n    return x\n", "def g(x):\n    return x\nf = g\n"),
    ("def f(x):\n    y: int = 1\n    return y\n", "def f(x):\n    y = 1\n    return y\n"),
    ("def f(x):\n    'a'\n    return (1, 'b')\n", "def f(x):\n    'c'\n    return (1, 'b')\n"),
    ("def f(x):\n    while x:\n        pass\n", "def f(x):\n    while x: pass\n"),
    (
        "def f(x):\n    try:\n        x()\n    except ValueError:\n        pass\n",
        "def f(x):\n    # y\n    try:\n        x()\n\n    except ValueError: pass\n",
    ),
    ("f = functools.partial(round, number=1, ndigits=2)\n", "f = functools.partial(round, ndigits=2, number=1)\n"),
    ("class C:\n    pass\nf = C()\nf.a = 1\nf.b = 2\n", "class C:\n    pass\nf = C()\nf.b = 2\nf.a = 1\n"),
    ("class C:\n    a = 1\n    b = 2\nf = C\n", "class C:\n    b = 2\n    a = 1\nf = C\n"),
    ("f = {'a', 'b', ('c', 1)}\n", "f = {('c', 1), 'b', 'a'}\n"),
    ("f = [np.arange(6).reshape(2, 3)]\n", "f = [np.asfortranarray(np.arange(6).reshape(2, 3))]\n"),
    ("f = [np.arange(3)]\n", "f = [np.arange(6)[::2] // 2]\n"),
    ("a = [1]\nf = [a, a]\n", "f = [[1], [1]]\n"),
    ("def f(x):\n    return x + 1\n", "def f(x):\n    return x + 1\nf.__doc__ = 'text'\n"),
    ("def f(x, *, a=1, b=2):\n    return x, a, b\n", "def f(x: str, *, a: int = 1, b=2) -> str:\n    return x, a, b\n"),
]
