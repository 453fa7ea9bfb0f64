"""Pickler: cloudpickle with a record of what else must travel. It imports cloudpickle: import this module late."""

from __future__ import annotations

import dis
import functools
import io
import operator
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle

from millrace.functions.user_modules import resolve
from millrace.functions.value_graph import is_compiled

_MAIN = ("__main__", "__mp_main__")
_LRU_CACHE = type(functools.lru_cache(operator.index))
_registering = threading.RLock()  # what is registered with cloudpickle holds for the process


class TooLargeError(Exception):
    """More was written to a :class:`Sink` than it takes."""


class Sink(io.BytesIO):
    """File in memory that takes up to ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._left = max_bytes

    def write(self, data: Any, /) -> int:
        """Append ``data``.

        Raises:
            TooLargeError: it doesn't fit.
        """
        self._left -= memoryview(data).nbytes
        if self._left < 0:
            raise TooLargeError
        return super().write(data)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickler of functions and classes of the main program by value, of those of modules by name.

    Values dumped one after the other by one pickler share what they have in common, globals of the main program
    included; load them one after the other with one unpickler.

    Attributes:
        modules: names of modules, installed ones too, that the unpickler or a function pickled by value will import.
        files: file names of the code that was pickled by value.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.modules: set[str] = set()
        self.files: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        """Choose how to pickle ``obj``; called by pickle for everything but atoms and plain containers."""
        if isinstance(obj, io.TextIOBase) and obj not in (sys.stdout, sys.stderr) and not isinstance(obj, io.StringIO):
            raise pickle.PicklingError("cannot pickle an open file")  # cloudpickle would send all that it holds
        if isinstance(obj, _LRU_CACHE) and not _is_importable(obj):
            parameters = obj.cache_parameters()
            return _cached, (obj.__wrapped__, parameters["maxsize"], parameters["typed"])
        if isinstance(obj, MethodType) and is_compiled(obj):
            return getattr, (obj.__self__, obj.__name__)
        reduced = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and reduced is not NotImplemented:
            self._record_function(obj)
        elif isinstance(obj, ModuleType):
            if obj.__name__ in sys.modules:
                self.modules.add(obj.__name__)
        elif reduced is NotImplemented:
            reduced = self._reduce(obj)
        return reduced

    def _reduce(self, obj: Any) -> Any:
        """Reduce ``obj`` as pickle itself would; record the module if the result is a name in one."""
        reducer = self.dispatch_table.get(type(obj))
        if reducer is None and isinstance(obj, (type, FunctionType)):
            self.modules.add(_home(obj, obj.__qualname__))
            return NotImplemented
        reduced = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if reducer is None else reducer(obj)
        if isinstance(reduced, str):
            if getattr(obj, "__module__", None) in _MAIN:  # decorators may do so, and no worker could look it up
                raise pickle.PicklingError(f"it pickles as the name `{reduced}` in the main program")
            self.modules.add(_home(obj, reduced))
        return reduced

    def _record_function(self, function: FunctionType) -> None:
        package = function.__globals__.get("__package__")
        self.files.add(function.__code__.co_filename)
        self.modules.update(imports_in(function.__code__, package))


@contextmanager
def main_by_value() -> Iterator[None]:
    """Pickle functions of the main program by value under its other name too, which it has in spawned processes."""
    module = sys.modules.get("__mp_main__")
    if module is None:
        yield
        return
    with _registering:
        if module.__name__ in cloudpickle.list_registry_pickle_by_value():
            yield
            return
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def imports_in(code: CodeType, package: str | None) -> Iterator[str]:
    """Names of the modules that ``code`` may import when it runs; some may be attributes of modules."""
    before: tuple[Any, Any] = (0, None)
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            level, names = before
            base = resolve(instruction.argval, level, package)
            if base:
                yield base
                yield from (f"{base}.{name}" for name in names or () if name != "*")
        before = (before[1], instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imports_in(constant, package)


def _home(obj: Any, name: str) -> str:
    """Find the module that pickle names for ``obj``: its ``__module__``, or else the first module that has it."""
    return str(pickle.whichmodule(obj, name))  # type: ignore[attr-defined]  # the stubs lack it


def _is_importable(obj: Any) -> bool:
    if obj.__module__ in _MAIN:
        return False
    try:
        return operator.attrgetter(obj.__qualname__)(sys.modules[obj.__module__]) is obj
    except (AttributeError, KeyError):
        return False


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Callable[..., Any]:
    return functools.lru_cache(maxsize=maxsize, typed=typed)(function)
