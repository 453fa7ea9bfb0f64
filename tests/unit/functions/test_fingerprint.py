from __future__ import annotations

import ctypes
import functools
import io
import itertools
import logging
import pickle
import sys
import threading
import types
import weakref

import cloudpickle
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.functions.fingerprint_cases import MUTATIONS, NEUTRAL, PRELUDE

from millrace.errors import UnsureError
from millrace.functions.fingerprint import fingerprint
from millrace.functions.pickling import Pickler

_numbers = itertools.count()


@pytest.fixture
def of(monkeypatch):
    """Fingerprint of what a source calls ``f``, as a module of a name, a file and a line of its own."""

    def run(source, *, lines=0):
        module = types.ModuleType(f"written_{next(_numbers)}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(PRELUDE, vars(module))
        exec(
            compile("\n" * lines + source, f"/somewhere/{module.__name__}.py", "exec", dont_inherit=True), vars(module)
        )
        return fingerprint(module.f)

    return run


@pytest.mark.parametrize("case", MUTATIONS)
def test_what_changes_a_function_changes_its_fingerprint(of, case):
    before, after = MUTATIONS[case]
    assert before != after
    assert of(before) != of(after)
    assert of(before) == of(before, lines=9)


@pytest.mark.parametrize(("before", "after"), NEUTRAL)
def test_what_changes_nothing_leaves_the_fingerprint(of, before, after):
    assert before != after
    assert of(before) == of(after, lines=3)


def test_there_are_enough_kinds_of_changes():
    assert len(MUTATIONS) >= 200


# -- what nobody can tell ----------------------------------------------------------------------------------------------

UNSURE = {
    "changes `N`, which": "N = 0\ndef f(x):\n    global N\n    N += 1\n    return N\n",
    "changes `n`, which": "def make(n):\n    def f(x):\n        nonlocal n\n        n = x\n    return f\nf = make(0)\n",
    "changes `m`, which": (
        "def make(m):\n    def f(x):\n        def g():\n            nonlocal m\n            m = x\n        g()\n"
        "    return f\nf = make(0)\n"
    ),
    "changes `D`, which": "D = {}\ndef f(x):\n    D[x] = 1\n",
    "changes `E`, which": "E = {}\ndef f(x):\n    E[x.a, 1] += 1\n",
    "changes `F`, which": "F = {}\ndef f(x):\n    F.update(x)\n",
    "changes `G`, which": "G = []\ndef f(x):\n    return [G.append(y) for y in x]\n",
    "changes `H`, which": "class H:\n    pass\ndef f(x):\n    H.a = x\n",
    "changes `I`, which": "class I:\n    a = 1\ndef f(x):\n    I.a += x\n",
    "changes `J.a`, which": "class J:\n    a = {}\ndef f(x):\n    J.a[x] = 1\n",
    "changes `K`, which": "K = {}\ndef f(x):\n    del K[x]\n",
    "changes `s`, which": "def make(s):\n    def f(x):\n        s.add(x)\n    return f\nf = make(set())\n",
    "changes `math`, which": "def f(x):\n    math.pi = x\n",
    "may run or reach anything": "def f(x):\n    return eval(x)\n",
    "`eval`, a builtin_function": "def f(x):\n    return eval(x)\n",
    "`exec`, a": "def f(x):\n    return exec(x)\n",
    "`globals`, a": "def f(x):\n    return globals()[x]\n",
    "`__import__`, a": "def f(x):\n    return __import__(x)\n",
    "uses `import_module`, by which": "import importlib\ndef f(x):\n    return importlib.import_module(x)\n",
    "uses `import_module`, by": "def f(x):\n    import importlib\n    return importlib.import_module(x)\n",
    "uses `import_module`": "def f(x):\n    from importlib import import_module as load\n    return load(x)\n",
    "uses `__subclasses__`": "class A:\n    pass\ndef f(x):\n    return A.__subclasses__()[x]\n",
    "`load`, a function": "from importlib import import_module as load\ndef f(x):\n    return load(x)\n",
    "uses `_getframe`": "import sys\ndef f(x):\n    return sys._getframe()\n",
    "uses `__globals__`": "def f(x):\n    return f.__globals__[x]\n",
    "uses `sys.modules`": "import sys as system\ndef f(x):\n    return system.modules[x]\n",
    "has `import written_but_broken` in it, which fails here": "def f(x):\n    import written_but_broken\n",
    "has `import ..above` in it, which leads out": "def f(x):\n    from ..above import y\n",
}


@pytest.mark.parametrize("said", UNSURE)
def test_functions_that_cannot_be_followed_are_refused(of, said, tmp_path, monkeypatch):
    (tmp_path / "written_but_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsureError) as raised:
        of(UNSURE[said])
    assert said in str(raised.value)


REACHED = {
    "import whole\ndef f(x):\n    return whole.sub.deep.g(x)\n": "sub/deep.py",
    "def f(x):\n    import whole\n    return whole.sub.deep.g(x)\n": "sub/deep.py",
    "def f(x):\n    import whole as p\n    return [p.sub.deep.g(y) for y in x]\n": "sub/deep.py",
    "def f(x):\n    from whole import sub as s\n    return s.deep.g(x)\n": "sub/deep.py",
    "import whole\ndef f(x):\n    p = whole\n    return p.sub.deep.g(x)\n": "sub/deep.py",
    "def f(x):\n    import whole.other\n    return whole.g(x)\n": "__init__.py",
    "def f(x):\n    import whole.other\n    return whole.sub.deep.g(x)\n": "sub/deep.py",
    "def f(x):\n    import whole.sub.deep\n    return whole.other.g(x)\n": "other.py",
}


@pytest.mark.parametrize("source", REACHED)
def test_modules_that_are_reached_through_their_package_are_seen(of, source, tmp_path, monkeypatch):
    """The package's first module imports them, as packages do."""
    found: list[bytes] = []
    for returned in ("x", "x", "x + 1"):
        folder = tmp_path / str(len(found))
        package = folder / "whole"
        (package / "sub").mkdir(parents=True)
        files = dict.fromkeys(("__init__.py", "other.py", "sub/deep.py"), "def g(x):\n    return x\n")
        files[REACHED[source]] = f"def g(x):\n    return {returned}\n"
        files["__init__.py"] += "import whole.sub.deep, whole.other\n"
        for name, text in {**files, "sub/__init__.py": ""}.items():
            (package / name).write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            found.append(of(source))
        for module in [each for each in sys.modules if each.partition(".")[0] == "whole"]:
            del sys.modules[module]
    first, same, changed = found
    assert first == same != changed


CHANGES_ITS_OWN = [
    "def f(x):\n    D = {}\n    D[x] = 1\n    D.update(x)\n    return D\n",
    "def f(x):\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n    g()\n    return n\n",
    "D = {}\ndef f(x):\n    x[0] = D\n    x[D] = 1\n    D[0].a\n    x[1:2] = D.get(x)\n    x.D = 1\n",
    "def make():\n    return {}\ndef f(x):\n    make()[x] = 1\n",
    "D = {}\ndef f(x):\n    y = z = D\n    return (w := D)\n",
    "def f(x):\n    np.zeros(3)[x] = 1\n",
]


@pytest.mark.parametrize("source", CHANGES_ITS_OWN)
def test_what_a_function_makes_it_may_change(of, source):
    assert of(source)


class Holder:
    def __init__(self, value):
        self.value = value

    def __call__(self, x):
        return self.value


@pytest.mark.parametrize(
    "make",
    [
        threading.Lock,
        threading.local,
        lambda: open("/dev/null"),  # noqa: SIM115
        lambda: iter(x for x in [1]),
        lambda: ctypes.pointer(ctypes.c_int(1)),
        lambda: weakref.ref(Holder(1)),
        lambda: memoryview(b"a"),
        lambda: np.frompyfunc(abs, 1, 1),
        sys._getframe,
    ],
)
def test_what_has_no_value_is_refused(make):
    culprit = make()
    with pytest.raises(UnsureError) as raised:
        fingerprint(Holder(culprit))
    if hasattr(culprit, "close"):
        culprit.close()
    assert str(raised.value).startswith("object Holder (tests/unit/functions/test_fingerprint.py:")
    assert "has the attribute `value`, a" in str(raised.value)
    assert 'as in map(fn, key="v3"), and change that name whenever the function changes.' in str(raised.value)


def test_the_way_to_the_culprit_is_told():
    lock = threading.Lock()

    def decode(x):
        return helper(x)

    def helper(x):
        return [holder] and x

    holder = Holder({"a": [0, lock]})
    with pytest.raises(UnsureError) as raised:
        fingerprint(decode)
    assert "function decode (tests/unit/functions/test_fingerprint.py:" in str(raised.value)
    assert "reaches a _thread.lock (decode -> helper -> holder -> value -> ['a'] -> [1]), which" in str(raised.value)


def test_a_compiled_class_of_no_package_is_refused(monkeypatch):
    made = types.ModuleType("made_here")
    monkeypatch.setitem(sys.modules, "made_here", made)
    kind = ctypes.c_int  # compiled, and it says that it is of another module
    monkeypatch.setattr("millrace.functions.value_graph.release", lambda name: None)
    with pytest.raises(UnsureError, match="is compiled, and not installed"):
        fingerprint(kind)


def test_deep_values_have_fingerprints_too():
    deep: list = []
    for _ in range(5_000):
        deep = [deep]
    assert fingerprint(deep) != fingerprint([deep])


# -- values ------------------------------------------------------------------------------------------------------------

ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
HASHABLE = st.recursive(ATOMS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
        | st.builds(Holder, inner)
    ),
    max_leaves=12,
)


def spelled(value):
    """A value as text that is the same for equal values only: sets sorted, floats by their bits."""
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({sorted(map(spelled, value))})"
    if isinstance(value, dict):
        return f"dict({[(spelled(key), spelled(item)) for key, item in value.items()]})"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({list(map(spelled, value))})"
    if isinstance(value, Holder):
        return f"Holder({spelled(value.value)})"
    if isinstance(value, (float, complex)):
        return np.array([value]).tobytes().hex()
    return f"{type(value).__name__}({value!r})"


@settings(max_examples=50)
@given(VALUES)
def test_a_copy_has_the_same_fingerprint(value):
    copy = cloudpickle.loads(cloudpickle.dumps(value))
    assert fingerprint(copy) == fingerprint(value)
    assert fingerprint([value, copy]) == fingerprint([copy, copy])


@settings(max_examples=60)
@given(VALUES, VALUES)
@example([1, [2]], [[1], 2])
@example([1, 2], [[1, 2]])
@example({1: 2}, [1, 2])
@example({("a", 1)}, {("a", 2)})
@example(["a@", []], ["a", "@", []])
def test_other_values_have_other_fingerprints(one, other):
    assert (fingerprint(one) == fingerprint(other)) == (spelled(one) == spelled(other))


@settings(max_examples=40)
@given(st.lists(HASHABLE, max_size=6), st.randoms())
def test_sets_have_no_order(items, random):
    shuffled = random.sample(items, len(items))
    assert fingerprint(set(items)) == fingerprint(set(shuffled))
    assert fingerprint(frozenset(items)) == fingerprint(frozenset(shuffled))


def test_cycles_are_seen_alike_from_wherever_they_were_made():
    def ring(*labels):
        cells = [{"label": label} for label in labels]
        for cell, following in zip(cells, cells[1:] + cells[:1], strict=True):
            cell["next"] = following
        return cells

    one, two = ring("a", "b"), ring("b", "a")
    assert fingerprint(one[0]) == fingerprint(two[1])
    assert fingerprint(one[1]) == fingerprint(two[0])
    assert len({fingerprint(cell) for cell in [*one, ring("a")[0], ring("a", "b", "c")[0]]}) == 4
    assert fingerprint([one[0], two[0]]) == fingerprint([two[1], one[1]])


def test_a_set_in_a_cycle():
    def knot(*names):
        holder = Holder(None)
        holder.value = {holder, *names}
        return holder

    assert fingerprint(knot("a", "b")) == fingerprint(knot("b", "a"))
    assert fingerprint(knot("a")) != fingerprint(knot("b"))


# -- what is installed, shared and shipped -----------------------------------------------------------------------------


def test_what_is_installed_goes_by_its_release(monkeypatch):
    before = fingerprint(np.linalg.norm)
    monkeypatch.setattr("millrace.functions.value_graph.release", lambda name: "numpy 99")
    assert fingerprint(np.linalg.norm) != before


def test_shared_generators_go_by_name():
    import random

    before = fingerprint([random.random, np.random.rand])
    random.random()
    np.random.rand()  # noqa: NPY002
    assert fingerprint([random.random, np.random.rand]) == before
    own = random.Random(1)
    before = fingerprint(own.random)
    own.random()
    assert fingerprint(own.random) != before


def test_loggers_go_by_name():
    log = logging.getLogger("some.where")

    def f(x):
        log.info(x)

    before = fingerprint(f)
    log.setLevel(logging.ERROR)
    assert fingerprint(f) == before


def test_an_installed_decorator_is_seen_through():
    one = functools.update_wrapper(functools.partial(lambda x, n: x + n, n=1), len)
    two = functools.update_wrapper(functools.partial(lambda x, n: x + n, n=2), len)
    assert fingerprint(one) != fingerprint(two)
    assert fingerprint(np.vectorize(lambda x: x + 1)) == fingerprint(np.vectorize(lambda x: x + 1))


def test_settings_of_installed_modules_count(monkeypatch):
    def f(x):
        return x, logging.raiseExceptions

    before = fingerprint(f)
    monkeypatch.setattr(logging, "raiseExceptions", not logging.raiseExceptions)
    assert fingerprint(f) != before


def test_what_the_user_puts_into_an_installed_module_counts(monkeypatch):
    def f(x):
        return logging.mine(x)  # type: ignore[attr-defined]  # put there below

    monkeypatch.setattr(logging, "mine", lambda x: x + 1, raising=False)
    before = fingerprint(f)
    monkeypatch.setattr(logging, "mine", lambda x: x + 2, raising=False)
    assert fingerprint(f) != before


CHANGED_BY_SHIPPING = {
    "masked_array",  # it arrives with a fill value of its own
    "[np.random.rand]",  # its generator arrives as a copy
    "class G:\n        a = k",  # cloudpickle does not look for globals there
}


def test_what_arrives_on_a_worker_has_the_same_fingerprint(of):
    sources = {before for before, _ in MUTATIONS.values()}
    compared = 0
    for source in sorted(sources):
        space = {"__name__": "__main__"}
        exec(PRELUDE, space)
        try:
            exec(source, space)
        except (NameError, AttributeError):
            continue  # needs a module of its own
        sent = io.BytesIO()
        try:
            Pickler(sent).dump(space["f"])
        except (TypeError, pickle.PicklingError):
            continue  # cached properties hold locks in Python 3.11
        same = fingerprint(pickle.loads(sent.getvalue())) == fingerprint(space["f"])
        assert same != any(text in source for text in CHANGED_BY_SHIPPING), source
        compared += 1
    assert compared > 200
