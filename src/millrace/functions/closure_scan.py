"""Closure scan: the values behind the names in a function's code, from globals, modules and imports inside it."""

from __future__ import annotations

import builtins
import collections
import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from millrace.functions.bytecode import OPAQUE, REFLECTIVE, Import, used_names
from millrace.functions.graph_hash import atom
from millrace.functions.package_versions import release
from millrace.functions.user_modules import resolve


class UndecidableError(Exception):
    """Nobody can tell by looking at this value what it computes; the message goes on after "which"."""


class ReadsMetadataError(Exception):
    """Code reads metadata that was left out.

    Attributes:
        metadata: the kinds of metadata to include, of ``names``, ``docstrings``, ``annotations``.
    """

    def __init__(self, metadata: frozenset[str]) -> None:
        super().__init__(*metadata)
        self.metadata = metadata


class Reference(NamedTuple):
    """Reference from a value to another one that it holds.

    Attributes:
        kind: one of the kinds of :class:`millrace.functions.pickle_diagnostics.Hop`.
        name: e.g. ``MODEL``, ``[3]``.
        value: the value held.
    """

    kind: str
    name: str
    value: Any


_MISSING: Any = object()
_DYNAMIC = (
    eval,
    exec,
    compile,
    globals,
    __import__,
    importlib.import_module,
    inspect.currentframe,
    sys._getframe,  # noqa: SLF001 - it has no other name
)
_CHANGING = {
    *("append", "appendleft", "add", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"),
    *("reverse", "rotate", "setdefault", "sort", "subtract", "update"),
}
_CONTAINERS = (list, dict, set, bytearray, collections.deque)


def code_references(function: types.FunctionType, cells: dict[str, Any], metadata: frozenset[str]) -> list[Reference]:
    """Resolve the names in the code of a user's function.

    Args:
        function: the function.
        cells: the variables around it, by name.
        metadata: see :class:`ReadsMetadataError`.

    Raises:
        UndecidableError: it changes what outlives its call, or reaches what cannot be followed.
        ReadsMetadataError: it reads more than ``metadata``.
    """
    used = used_names(function.__code__)
    if used.stores:
        raise UndecidableError(f"changes `{min(used.stores)}`, which outlives its call")
    hidden = used.names & OPAQUE
    if hidden:
        raise UndecidableError(f"uses `{min(hidden)}`, by which it may reach anything")
    wanted = {REFLECTIVE[name] for name in used.names & REFLECTIVE.keys()}
    if not wanted <= metadata:
        raise ReadsMetadataError(metadata | wanted)
    found: dict[str, Reference] = {}
    for path in sorted(used.variables):
        _check_unchanged(cells.get(path[0], _MISSING), path)
    for path in sorted(used.globals):
        depth, value = _look_up(function.__globals__, path)
        if value is sys and path[depth : depth + 1] == ("modules",):
            raise UndecidableError("uses `sys.modules`, by which it may reach anything")
        _check_unchanged(value, path[depth - 1 :])
        name = ".".join(path[:depth])
        found[name] = Reference("global", name, value)
        found.update((held.name, held) for held in _submodules(value, name, used.names))
    package = function.__globals__.get("__package__")
    for each in sorted(used.imports):
        found.update((held.name, held) for held in _imported(each, package, used.names))
    return list(found.values())


def _check_unchanged(value: Any, path: tuple[str, ...]) -> None:
    if isinstance(value, _CONTAINERS) and len(path) > 1 and path[1] in _CHANGING:
        raise UndecidableError(f"changes `{path[0]}`, which outlives its call")


class _Unset:
    """Stand-in for a name that means nothing, or nothing yet."""


def _look_up(space: dict[str, Any], path: tuple[str, ...]) -> tuple[int, Any]:
    """Resolve a path through modules as far as attributes lead: (number of names used, value)."""
    value = space.get(path[0], _MISSING)
    if value is _MISSING:
        value = getattr(builtins, path[0], _Unset)
    depth = 1
    while isinstance(value, types.ModuleType) and depth < len(path):
        inside = vars(value).get(path[depth], _MISSING)
        if inside is _MISSING and release(value.__name__) is None:
            inside = getattr(value, path[depth], _Unset)
        if inside is _MISSING or (release(value.__name__) is not None and not _looks_out(inside)):
            break  # the package's release says what it is
        value, depth = inside, depth + 1
    return depth, value


def _looks_out(value: Any) -> bool:
    """Whether a member of an installed module has to be looked at: settings, the user's values, dynamic functions."""
    if isinstance(value, (types.FunctionType, type)):
        return release(str(value.__module__)) is None or is_dynamic(value)
    return isinstance(value, types.ModuleType) or atom(value) is not None or is_dynamic(value)


def is_dynamic(value: Any) -> bool:
    """Whether this can run or reach anything."""
    return any(value is each for each in _DYNAMIC)


def is_below(value: Any, package: str) -> bool:
    """Whether ``value`` is a module of ``package``: it is among the package's names once something has imported it."""
    return isinstance(value, types.ModuleType) and value.__name__.startswith(f"{package}.")


def _submodules(value: Any, label: str, used: set[str]) -> Iterator[Reference]:
    """List modules of a user's package by whose names code may reach them: its other modules are nothing of its own."""
    if not isinstance(value, types.ModuleType) or release(value.__name__) is not None:
        return
    for name in sorted(used & vars(value).keys()):
        inside = vars(value)[name]
        if is_below(inside, value.__name__):
            yield Reference("part", f"{label}.{name}", inside)
            yield from _submodules(inside, f"{label}.{name}", used)


def _imported(each: Import, package: str | None, used: set[str]) -> Iterator[Reference]:
    """List the references of an import inside a function; the user's modules are imported, as on a call.

    Args:
        each: the import.
        package: package of the function's module.
        used: names that the function looks up.
    """
    name = resolve(each.module, each.level, package)
    label = "import " + "." * each.level + each.module
    if name is None:
        raise UndecidableError(f"has `{label}` in it, which leads out of its package")
    known = release(name)
    if known is not None or importlib.util.find_spec(name.partition(".")[0]) is None:
        yield Reference("part", label, f"{known} {name}")
        return
    try:
        module = importlib.import_module(name)
        if not each.names or "*" in each.names:
            yield Reference("part", label, module)
            yield from _submodules(module, label, used)
            if not each.names:
                yield from _beside(name, used)
            return
        for wanted in each.names:
            if not hasattr(module, wanted):
                importlib.import_module(f"{name}.{wanted}")
            yield Reference("part", f"{label}: {wanted}", getattr(module, wanted))
            yield from _submodules(getattr(module, wanted), f"{label}: {wanted}", used)
    except Exception as error:  # noqa: BLE001 - modules run any code when they are imported
        raise UndecidableError(f"has `{label}` in it, which fails here ({type(error).__name__}: {error})") from None


def _beside(name: str, used: set[str]) -> Iterator[Reference]:
    """List what ``import a.b`` lets code reach besides ``a.b``: it binds ``a``."""
    while "." in name:
        name = name.rpartition(".")[0]
        package = sys.modules[name]
        for wanted in sorted(used & vars(package).keys()):
            if not is_below(vars(package)[wanted], name):
                yield Reference("part", f"import {name}: {wanted}", vars(package)[wanted])
        yield from _submodules(package, f"import {name}", used)
