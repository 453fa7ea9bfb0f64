"""Canonical bytecode: code objects in a form that shows what they compute, and the names that they refer to.

Line numbers, file names, docstrings and the function's own name are left out; names of variables stay in, for
libraries look them up in the frames of their callers.
"""

from __future__ import annotations

import bisect
import dis
import functools
import inspect
from collections.abc import Sequence
from types import CodeType
from typing import Any, NamedTuple

from millrace.functions.graph_hash import atom, join_label

_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_CONSTANTS = frozenset(dis.hasconst)
_NAMES = frozenset(dis.hasname)
_IDLE = {"NOP", "EXTENDED_ARG", "CACHE"}
"""Instructions that only carry line numbers or parts of others."""

_ABOUT_CLASSES = {"__firstlineno__", "__static_attributes__"}
"""Names that the body of a class sets from its text, from Python 3.13 on; the latter in no order."""

_LOADS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_LOADS_VARIABLE = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_LOADS_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}

REFLECTIVE = {
    "__name__": "names",
    "__qualname__": "names",
    "__doc__": "docstrings",
    "getdoc": "docstrings",
    "__annotations__": "annotations",
    "get_annotations": "annotations",
    "get_type_hints": "annotations",
    "signature": "annotations",
}
"""Names by which code reads metadata of functions and classes, with the kind of metadata."""

_OF_FRAMES = {"__code__", "__globals__", "f_globals", "f_locals", "f_back", "_getframe", "currentframe", "getsource"}
OPAQUE = {*_OF_FRAMES, "__subclasses__", "import_module"}
"""Names by which code reaches objects that cannot be followed."""


class Import(NamedTuple):
    """Import inside a function: ``from ..module import names`` has ``level`` 2."""

    level: int
    module: str
    names: tuple[str, ...]


class UsedNames(NamedTuple):
    """Names that code refers to, nested functions included.

    Attributes:
        globals: ``("np", "random", "rand")`` for ``np.random.rand``: names and the attributes looked up at once.
        variables: the same of variables of functions around it.
        imports: imports that run when it does.
        stores: globals and variables around it that it changes.
        names: every name of a global or an attribute that it looks up.
    """

    globals: set[tuple[str, ...]]
    variables: set[tuple[str, ...]]
    imports: set[Import]
    stores: set[str]
    names: set[str]


def canonical(code: CodeType) -> tuple[bytes, list[Any]]:
    """Describe what ``code`` computes: a label, and its constants that have parts (nested code, tuples, sets)."""
    kept = _steps(code)
    offsets = [step.offset for step in kept]

    def place(offset: int) -> int:
        return bisect.bisect_left(offsets, offset)

    constants: list[Any] = []
    steps: list[bytes] = []
    for step in kept:
        if step.opcode in _CONSTANTS:
            constant = code.co_consts[step.arg or 0]  # not argval, which is not set for all of them
            inside = atom(constant)
            if inside is None:
                inside = b"@"
                constants.append(constant)
            steps.append(b"%d=%b" % (step.opcode, inside))
        elif step.opcode in _JUMPS:
            steps.append(b"%d>%d;" % (step.opcode, place(step.argval)))
        else:
            steps.append(b"%d:%d;" % (step.opcode, -1 if step.arg is None else step.arg))
    caught = [
        b"%d-%d>%d,%d,%d;" % (place(entry.start), place(entry.end), place(entry.target), entry.depth, entry.lasti)
        for entry in vars(dis.Bytecode(code))["exception_entries"]
    ]
    shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS)
    spaces = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
    names = b"".join(b"%d;%b" % (len(space), join_label(space)) for space in spaces)
    return b"code%d,%d,%d,%d;" % shape + names + b"".join(steps) + b"|" + b"".join(caught), constants


@functools.lru_cache(maxsize=512)  # for both that look at them
def _steps(code: CodeType) -> Sequence[dis.Instruction]:
    """Instructions that do something."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _IDLE]
    noted = {at for at, step in enumerate(steps) if step.opname == "STORE_NAME" and step.argval in _ABOUT_CLASSES}
    return [step for at, step in enumerate(steps) if at not in noted and at + 1 not in noted]


def used_names(code: CodeType) -> UsedNames:
    """List what ``code`` refers to by name, as far as the bytecode shows."""
    found = UsedNames(set(), set(), set(), set(), set())
    _collect(code, frozenset(code.co_freevars), found)
    return found


def _collect(code: CodeType, around: frozenset[str], found: UsedNames) -> None:
    """Add to ``found``; ``around`` are the variables of functions around the outermost code."""
    steps = _steps(code)
    for index, step in enumerate(steps):
        name = step.opname
        if name == "LOAD_NAME" and steps[index + 1].argval == "__module__":
            continue  # every class begins with that
        if step.opcode in _NAMES and not name.startswith("STORE_"):
            found.names.add(step.argval)
        if name in _LOADS_GLOBAL or (name in _LOADS_VARIABLE and step.argval in around):
            path, after = _chain(steps, index)
            (found.globals if name in _LOADS_GLOBAL else found.variables).add(path)
            if _changes_attribute(steps, after):
                found.stores.add(".".join(path))
        elif name in ("STORE_GLOBAL", "DELETE_GLOBAL") or (
            name in ("STORE_DEREF", "DELETE_DEREF") and step.argval in around
        ):
            found.stores.add(step.argval)
        elif name == "IMPORT_NAME":
            level, names = (before.argval for before in steps[index - 2 : index])
            found.imports.add(Import(level, step.argval, tuple(names or ())))
        elif name in ("STORE_SUBSCR", "DELETE_SUBSCR") or (name == "COPY" and _updates_item(steps, index)):
            changed = _container(steps, index, around)
            if changed is not None:
                found.stores.add(changed)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _collect(constant, around & frozenset(constant.co_freevars), found)


def _chain(steps: Sequence[dis.Instruction], index: int) -> tuple[tuple[str, ...], int]:
    """Follow attribute lookups: ``("np", "random", "rand")`` and the index of the step after it."""
    path = [steps[index].argval]
    index += 1
    while index < len(steps) and steps[index].opname in _LOADS_ATTRIBUTE:
        path.append(steps[index].argval)
        index += 1
    return tuple(path), index


def _changes_attribute(steps: Sequence[dis.Instruction], index: int) -> bool:
    """Whether ``x.a = 1`` or ``x.a += 1`` follows, where the step before ``index`` has loaded x."""
    following = [step.opname for step in steps[index : index + 2]]
    return following[:1] in (["STORE_ATTR"], ["DELETE_ATTR"]) or following == ["COPY", "LOAD_ATTR"]


def _updates_item(steps: Sequence[dis.Instruction], index: int) -> bool:
    """Whether ``x[k] += 1`` begins here: it copies both x and k before anything else."""
    return all((step.opname, step.arg) == ("COPY", 2) for step in steps[index : index + 2])


def _container(steps: Sequence[dis.Instruction], index: int, around: frozenset[str]) -> str | None:
    """Global or outer variable whose item the step at ``index`` changes; None if there is none.

    On the stack are the key and, below it, the container. They are followed back as far as no jump comes between.
    """
    height, key = 0, None  # relative to the key; the container is at -1
    for at in range(index - 1, -1, -1):
        step = steps[at]
        if step.opcode in _JUMPS:
            return None
        height -= dis.stack_effect(step.opcode, step.arg, jump=False)
        if height == -1 and key is None:
            key = at
        if height < -1:
            is_global = step.opname in _LOADS_GLOBAL
            if is_global or (step.opname in _LOADS_VARIABLE and step.argval in around):
                path, after = _chain(steps, at)
                return ".".join(path) if after == key else None
            return None
    return None
