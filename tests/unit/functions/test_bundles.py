"""Bundles in one process: what they carry, and what is refused with which words."""

import functools
import io
import pickle
import re
import sqlite3
import sys
import threading
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import ShippingError, VersionMismatchError
from millrace.functions import bundles
from millrace.functions.bundles import pack, unpack
from millrace.functions.module_importer import current_finder, uninstall
from millrace.functions.pickling import imports_in
from millrace.version import __version__


@pytest.fixture(autouse=True)
def clean():
    yield
    finder = current_finder()
    if finder is not None:
        uninstall()


def refused(value, name="map(f)", **options):
    with pytest.raises(ShippingError) as raised:
        pack([value], [name], **options)
    return str(raised.value)


# -- what works


def test_values_come_back_in_order():
    scale = 3
    values = [lambda x: x * scale, functools.partial(np.add, 1), {"a": np.arange(3)}, None]
    fn, add, data, nothing = unpack(pack(values, ["map(a)", "map(b)", "from_list(c)", "from_list(d)"]))
    assert fn(2) == 6
    assert add(2) == 3
    np.testing.assert_array_equal(data["a"], [0, 1, 2])
    assert nothing is None


def whose(_element):
    from mr_whose import NAME  # type: ignore[import-not-found]  # when it runs

    return NAME


def test_functions_import_what_came_with_them_whichever_bundle_was_unpacked_last(tmp_path, monkeypatch):
    packed = []
    for name in ("one", "two"):
        with monkeypatch.context() as patch:
            (tmp_path / name).mkdir()
            (tmp_path / name / "mr_whose.py").write_text(f"NAME = {name!r}\n")
            patch.syspath_prepend(tmp_path / name)
            packed.append(pack([whose], ["map(whose)"]))
    one, two = map(bundles.open_bundle, packed)
    for _ in range(2):
        one.put_in_force()
        assert one.values[0](0) == "one"
        two.put_in_force()
        assert two.values[0](0) == "two"


def test_no_values_make_an_empty_bundle():
    assert unpack(pack([], [])) == []


def test_what_values_share_they_share_afterwards():
    table = np.zeros(100_000)
    one, two = (lambda x: table, lambda x: table[x])
    bundle = pack([one, two, table], ["map(one)", "map(two)", "from_list(table)"])
    assert len(bundle) < 1.2 * table.nbytes
    one, two, table = unpack(bundle)
    assert one(0) is table
    table[5] = 7
    assert two(5) == 7


def test_names_and_values_belong_together():
    with pytest.raises(ValueError, match="zip"):
        pack([1, 2], ["map(f)"])


def test_a_cache_that_cannot_be_imported_is_made_anew_and_empty():
    @functools.lru_cache(maxsize=7, typed=True)
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    fib(5)
    (again,) = unpack(pack([fib], ["map(fib)"]))
    assert again.cache_info().currsize == 0
    assert again(20) == 6765
    assert again.cache_parameters() == {"maxsize": 7, "typed": True}
    assert again.cache_info().misses == 21, "the function calls its cache, not a copy of itself"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


@given(st.lists(VALUES, max_size=4))
def test_plain_values_come_back_equal(values):
    names = [f"from_list({number})" for number in range(len(values))]
    captured = [functools.partial(lambda value, _: value, value) for value in values]
    assert unpack(pack(values, names)) == values
    assert [fn(0) for fn in unpack(pack(captured, names))] == values


# -- what is refused


def test_a_lock_in_a_closure():
    lock = threading.Lock()

    def augment(element):
        with lock:
            return element

    message = refused(augment, "map(augment)")
    place = rf"test_bundles.py:{augment.__code__.co_firstlineno}"
    assert re.match(
        rf"map\(augment\): function augment \(\S*{place}\) uses the variable `lock` of the function around it, "
        rf"a _thread.lock, which cannot be sent to a worker \(cannot pickle '_thread.lock' object\)\. "
        rf"Create it inside the function, or put both into a module of their own: your modules are sent as source\.$",
        message,
    )


def main_function(source, **names):
    """A function as the main program has them: by value, with globals."""
    space = {"__name__": "__main__", **names}
    exec(compile(source, "/u/train.py", "exec"), space)
    return space["f"]


def test_a_lock_among_globals():
    f = main_function("def f(x):\n    with lock:\n        return x\n", lock=threading.RLock())
    assert "map(f): function f (train.py:1) uses the global `lock`, a _thread.RLock, which cannot" in refused(f)


def test_a_lock_used_by_a_nested_function():
    f = main_function("def f(x):\n    return (lambda: lock)()\n", lock=threading.Lock())
    assert "uses the global `lock`, a _thread.lock" in refused(f)


def test_a_lock_several_steps_away():
    f = main_function("def h(x): return lock\ndef g(x): return h(x)\ndef f(x): return g(x)\n", lock=threading.Lock())
    assert "function f (train.py:3) reaches a _thread.lock (f -> g -> h -> lock), which cannot be sent" in refused(f)


class Model:
    def __init__(self):
        self._lock = threading.Lock()


class Augment:
    def __init__(self):
        self.model = Model()

    def apply(self, element):
        return element

    def __call__(self, element):
        return element


class Slotted:
    __slots__ = ("stream",)

    def __call__(self, element):
        return element


def test_attributes_of_methods_and_callable_objects():
    message = refused(Augment().apply)
    assert "method Augment.apply (" in message
    assert "reaches a _thread.lock (Augment.apply -> self.model -> _lock), which cannot be sent" in message
    assert "__getstate__ that leaves it out" in message
    message = refused(Augment())
    assert "object Augment (" in message
    assert "(Augment -> model -> _lock)" in message
    assert re.search(r"object Model \(\S+\) has the attribute `_lock`, a _thread.lock", refused(Model()))


def test_slots():
    value: Any = Slotted()
    value.stream = (item for item in [1])
    assert "object Slotted (" in refused(value)
    assert "has the attribute `stream`, a generator" in refused(value)


def test_defaults_partials_and_items():
    def f(x, lock=threading.Lock(), *, other=None):  # noqa: B008
        return x

    assert "has the default value of `lock`, a _thread.lock" in refused(f)
    f.__defaults__ = (None,)
    f.__kwdefaults__ = {"other": threading.Lock()}
    assert "has the default value of `other`, a _thread.lock" in refused(f)
    bound = functools.partial(max, key=threading.Lock())
    assert "function partial(max) has the default value of `key`, a _thread.lock" in refused(bound)
    message = refused({"config": [1, {"db": threading.Lock()}]}, "from_list(items)")
    assert "from_list(items): the dict reaches a _thread.lock (dict -> ['config'] -> [1] -> ['db'])" in message


def test_a_class_by_value():
    lock = threading.Lock()

    class Local:
        def __call__(self, element):
            return lock

    assert "object Local (" in refused(Local())
    assert "(Local -> class -> __call__ -> lock)" in refused(Local())


def test_open_files_of_every_kind(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("secret")
    for mode, kind in [("r", "_io.TextIOWrapper"), ("rb", "_io.BufferedReader"), ("w", "_io.TextIOWrapper")]:
        with open(path, mode) as file:
            message = refused(lambda x: file.name)
        assert f"uses the variable `file` of the function around it, an {kind}, which cannot be sent" in message
        assert "Send the path, and open the file inside the function." in message
    text = io.StringIO("text")
    (fn,) = unpack(pack([lambda x: text.getvalue()], ["map(f)"]))
    assert fn(0) == "text"


def test_connections_and_generators():
    database = sqlite3.connect(":memory:")
    message = refused(lambda x: database)
    database.close()
    assert "a sqlite3.Connection, which cannot be sent" in message
    assert "Connect inside the function, once per worker" in message
    numbers = (n for n in range(3))
    assert refused(numbers, "from_list(g)").startswith(
        "from_list(g): the generator cannot be sent to a worker (cannot pickle 'generator' object). Make a list of it"
    )


def test_an_object_that_refuses_by_itself():
    class Stubborn:
        def __getstate__(self):
            raise RuntimeError("I stay here")

    stubborn = Stubborn()
    message = refused(lambda x: stubborn)
    assert "uses the variable `stubborn` of the function around it" in message
    assert "(I stay here)" in message


def test_a_culprit_that_cannot_be_reached_by_name():
    class Hidden:
        def __reduce__(self):
            return list, ([threading.Lock()],)

    message = refused(Hidden())
    assert "object Hidden holds a _thread.lock, which cannot be sent" in message


def test_an_object_whose_attributes_cannot_be_looked_at():
    class Odd:
        __slots__ = ("a",)

        def __getattr__(self, name):
            raise OSError("no")

        def __reduce__(self):
            return Odd, (threading.Lock(),)

    assert "a _thread.lock, which cannot be sent" in refused(Odd())


def test_too_deep_data():
    nest: list[Any] = []
    for _ in range(100_000):
        nest = [nest]
    assert "the list is nested too deeply to be sent to a worker. Keep such data in a file." in refused(nest)
    while nest:
        nest = nest[0]


class NamedByDecorator:
    """What some decorators make: it pickles as a name."""

    def __init__(self):
        self.__module__ = "__main__"
        self.__qualname__ = "decode"

    def __call__(self, element):
        return element

    def __reduce__(self):
        return "decode"


def test_what_pickles_as_a_name_in_the_main_program():
    assert "(it pickles as the name `decode` in the main program)" in refused(NamedByDecorator())


KEYS = st.lists(st.one_of(st.integers(0, 5), st.text("abc", max_size=3)), min_size=2, max_size=6)


@given(KEYS)
@settings(max_examples=50)
def test_the_path_leads_to_the_culprit(keys):
    lock = threading.Lock()
    value: Any = lock
    for key in reversed(keys):
        value = [*range(key), value] if isinstance(key, int) else {"other": 1, key: value}
    message = refused(value)
    route = re.search(r"\(((?:list|dict) -> .*?)\), which", message)
    assert route is not None
    found = value
    for label in route[1].split(" -> ")[1:]:
        found = eval(f"found{label}", {"found": found})
    assert found is lock


# -- size


def test_large_data_is_refused_and_named():
    table = np.zeros(200_000)
    other = np.zeros(10)
    f = main_function("def f(x): return table[x] + other[x]\n", table=table, other=other)
    message = refused(f, max_bytes=1 << 20)
    assert "map(f): function f (train.py:1) uses the global `table`, a numpy.ndarray of 2 MiB, and" in message
    assert "may take 1 MiB" in message
    assert "Keep large data in files" in message
    assert len(pack([f], ["map(f)"])) > table.nbytes


def test_of_several_values_the_largest_is_to_blame():
    values = [list(range(10)), {"small": 1, "weights": {"w": np.zeros(100_000)}}, list(range(1000))]
    with pytest.raises(ShippingError) as raised:
        pack(values, ["from_list(a)", "map(b)", "from_list(c)"], max_bytes=100_000)
    assert "map(b): the dict reaches a numpy.ndarray of 781 KiB (dict -> ['weights'] -> ['w'])" in str(raised.value)


def test_a_long_list_is_named_as_a_whole():
    assert "from_list(x): the list takes " in refused(list(range(50_000)), "from_list(x)", max_bytes=1000)


def test_exactly_the_limit_fits():
    bundle = pack([b"x" * 1000], ["map(f)"])
    assert len(pack([b"x" * 1000], ["map(f)"], max_bytes=len(bundle))) == len(bundle)
    with pytest.raises(ShippingError):
        pack([b"x" * 1000], ["map(f)"], max_bytes=len(bundle) - 1)


# -- versions and damage


def test_another_minor_version_of_python(monkeypatch):
    monkeypatch.setattr(bundles, "_python_version", lambda: "3.99")
    bundle = pack([1], ["map(f)"])
    monkeypatch.undo()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    with pytest.raises(VersionMismatchError) as raised:
        unpack(bundle)
    message = str(raised.value)
    assert "packed by Python 3.99, and this worker runs Python " + here in message
    assert "start workers with Python 3.99" in message


def test_another_format(monkeypatch):
    monkeypatch.setattr(bundles, "_FORMAT", 99)
    monkeypatch.setattr(bundles, "__version__", "7.0")
    bundle = pack([1], ["map(f)"])
    monkeypatch.undo()
    with pytest.raises(VersionMismatchError, match=rf"packed by millrace 7.0, and .* {re.escape(__version__)}, which"):
        unpack(bundle)


def test_a_later_version_may_append_to_the_stamp():
    bundle = pack([1], ["map(f)"])
    length, magic = bundles._TRAILER.unpack(bundle[-12:])
    stamp = msgspec.msgpack.decode(bundle[-12 - length : -12])
    longer = msgspec.msgpack.encode([*stamp, "more"])
    assert unpack(bundle[: -12 - length] + longer + bundles._TRAILER.pack(len(longer), magic)) == [1]


def test_what_is_no_bundle():
    bundle = pack([1], ["map(f)"])
    for junk in (b"", b"junk", bundle[:-1], bundle[1:-8], pickle.dumps(1)):
        with pytest.raises(ShippingError, match="are not a bundle"):
            unpack(junk)
    with pytest.raises(ShippingError, match="is damaged"):
        unpack(b"x" * 40 + bundle[-12:])
    with pytest.raises(ShippingError, match="is damaged"):
        unpack(bundle[-20:])


# -- what functions by value import


def test_imports_inside_functions_are_seen():
    def f(x):
        import os.path
        from json import decoder

        def g():
            from xml import dom

            return dom, os, decoder

        return g

    assert set(imports_in(f.__code__, None)) == {
        "os.path",
        "json",
        "json.decoder",
        "xml",
        "xml.dom",
    }
    space: dict[str, Any] = {}
    exec("def f(x):\n    from . import a\n    from ..b.c import d\n", space)
    assert list(imports_in(space["f"].__code__, "p.q")) == ["p.q", "p.q.a", "p.b.c", "p.b.c.d"]
