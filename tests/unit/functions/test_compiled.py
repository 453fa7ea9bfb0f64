"""What compiled modules hold: Arrow's tables, methods of compiled classes, functions whose type nobody can import."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import sys
import types

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace.errors import ShippingError
from millrace.functions.bundles import pack, unpack
from millrace.functions.fingerprint import fingerprint
from millrace.functions.pickling import Pickler
from millrace.functions.value_graph import is_compiled

TABLE = pa.table({"number": [1, 2, 3], "name": ["x", "y", "z"]})
OTHER = pa.table({"number": [1, 2, 4], "name": ["x", "y", "z"]})
VALUES = {
    "table": (TABLE, OTHER),
    "slice of a table": (TABLE.slice(0, 2), TABLE.slice(1, 2)),
    "batch": (TABLE.to_batches()[0], OTHER.to_batches()[0]),
    "column": (TABLE["number"], OTHER["number"]),
    "schema": (TABLE.schema, TABLE.schema.with_metadata({"origin": "here"})),
    "field": (TABLE.schema.field("name"), TABLE.schema.field("number")),
    "type": (pa.list_(pa.int8()), pa.list_(pa.int16())),
    "scalar": (pa.scalar(3), pa.scalar(4)),
    "expression": (pc.field("number") > 2, pc.field("number") > 1),
    "random generator": (np.random.default_rng(3).bit_generator.state, np.random.default_rng(4).bit_generator.state),
}
FUNCTIONS = {
    "compiled function": (pa.array, pa.chunked_array, ([1, 2],)),
    "with an argument": (
        functools.partial(pa.array, type=pa.int8()),
        functools.partial(pa.array, type=pa.int16()),
        ([1],),
    ),
    "compute function": (pc.negate, pc.sign, (TABLE["number"],)),
    "compute function by name": (pc.get_function("negate").call, pc.get_function("sign").call, ([TABLE["number"]],)),
    "class method": (pa.Table.from_pydict, pa.RecordBatch.from_pydict, ({"a": [1]},)),
    "inherited class method": (pa.Table.from_pylist, pa.Table.from_pydict, ([{"a": 1}],)),
    "method": (TABLE.slice, OTHER.slice, (1,)),
    "method of a generator": (np.random.default_rng(3).normal, np.random.default_rng(4).normal, ()),
    "universal function": (np.add, np.subtract, (1, 2)),
    "part of a universal function": (np.add.reduce, np.subtract.reduce, ([1, 2],)),
}


@pytest.mark.parametrize(("value", "other"), VALUES.values(), ids=VALUES)
def test_values_travel_in_a_function_and_by_themselves(value: object, other: object) -> None:
    function, alone = unpack(pack([lambda _: value, value], ["map(f)", "from_list(v)"]))
    for here in (function(0), alone):
        assert type(here) is type(value)
        assert str(here) == str(value)
    assert fingerprint(alone) == fingerprint(value) != fingerprint(other)


@pytest.mark.parametrize(("function", "other", "arguments"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_travel_by_the_name_that_they_have(function: object, other: object, arguments: tuple[object]) -> None:
    result = str(copy.deepcopy(function)(*arguments))  # type: ignore[operator]
    (found,) = unpack(pack([function], ["map(f)"]))
    (holder,) = unpack(pack([lambda _: function], ["map(f)"]))
    assert str(found(*arguments)) == result
    assert str(copy.deepcopy(holder(0))(*arguments)) == result
    assert fingerprint(function) != fingerprint(other)


class Compiled:
    """What Cython makes of a function: its type's module is made at run time, and nobody imports it."""

    def __init__(self, module: str, name: str) -> None:
        self.__module__, self.__qualname__ = module, name

    def __call__(self, element: object) -> tuple[object]:
        return (element,)

    def __reduce__(self) -> str:
        return self.__qualname__


Compiled.__module__ = "_cython_9_9_9"


def modules_of(value: object) -> set[str]:
    pickler = Pickler(io.BytesIO())
    pickler.dump(value)
    return pickler.modules


def test_the_module_that_is_needed_is_the_functions_and_not_its_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_cython_9_9_9", types.ModuleType("_cython_9_9_9"))
    function = Compiled("numpy.linalg", "compiled")
    monkeypatch.setattr(np.linalg, "compiled", function, raising=False)
    assert modules_of(function) == {"numpy.linalg"}
    assert unpack(pack([function], ["map(compiled)"])) == [function]


def test_one_that_says_no_module_goes_by_that_which_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_cython_9_9_9", types.ModuleType("_cython_9_9_9"))
    function = Compiled("", "compiled_elsewhere")
    function.__module__ = None  # type: ignore[assignment]
    home = types.ModuleType("home_of_compiled")
    home.compiled_elsewhere = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "home_of_compiled", home)
    assert modules_of(function) == {"home_of_compiled"}


def test_a_module_of_the_users_that_is_compiled_is_still_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    function = Compiled("fast", "compiled")
    module = types.ModuleType("fast")
    module.compiled = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fast", module)
    with pytest.raises(ShippingError, match=r"map\(compiled\): module `fast` was made at run time"):
        pack([function], ["map(compiled)"])


def test_a_compiled_function_that_was_bound_to_something_else_travels_with_it() -> None:
    bound = types.MethodType(pa.array, [1, 2])
    found = unpack(pack([bound], ["map(bound)"]))[0]
    assert found() == pa.array([1, 2])


class Single:
    """An object that is pickled as its name."""

    def __reduce__(self) -> str:
        return "SINGLE"


def test_a_single_object_of_the_main_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    single = Single()
    monkeypatch.setattr(sys.modules[__name__], "SINGLE", single, raising=False)
    assert modules_of(single) == {__name__}
    monkeypatch.setattr(Single, "__module__", "__main__")
    with pytest.raises(pickle.PicklingError, match="pickles as the name `SINGLE` in the main program"):
        modules_of(single)


class Timed:
    """A decorator that is a class, and binds itself to the object like a function."""

    def __init__(self, function: types.FunctionType, *, named: bool) -> None:
        self.function = function
        if named:
            functools.update_wrapper(self, function)

    def __get__(self, instance: object, owner: type) -> types.MethodType:
        return types.MethodType(self, instance)

    def __call__(self, *arguments: object) -> object:
        return self.function(*arguments)


def twice(instance: object, number: int) -> int:
    return 2 * number


class Decorated:
    plain = Timed(twice, named=False)  # type: ignore[arg-type]
    twice = Timed(twice, named=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["plain", "twice"])
def test_a_method_made_by_a_decorator_that_is_a_class_travels(name: str) -> None:
    method = getattr(Decorated(), name)
    assert unpack(pack([method], ["map(method)"]))[0](3) == 6
    assert fingerprint(method)
    assert not is_compiled(method)
