"""Value graph: a value and the values that it holds, as far as they decide what using it computes."""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import inspect
import itertools
import operator
import random
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from millrace.functions.bytecode import canonical
from millrace.functions.closure_scan import Reference, UndecidableError, code_references, is_below, is_dynamic
from millrace.functions.graph_hash import atom, join_label
from millrace.functions.package_versions import release
from millrace.functions.user_modules import is_installed


class ValueParts(NamedTuple):
    """Value taken apart, one level deep.

    Attributes:
        label: the value itself, without what it holds.
        holds: values that it holds.
        ordered: whether their order matters.
    """

    label: bytes
    holds: list[Reference]
    ordered: bool = True


_COMPILED = "is compiled, and not installed as a package with a version"
_NOT_OF_A_CLASS = {
    "__dict__",
    "__weakref__",
    "__module__",
    "__qualname__",
    "__doc__",
    "__abstractmethods__",
    "__annotate__",
    "__annotate_func__",
    "__annotations_cache__",
    "__firstlineno__",
    "__slotnames__",
    "__static_attributes__",
    "_abc_impl",
}
"""Entries of a class that are text, caches, or made by Python from the rest."""
_SIMPLE_DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


def take_apart(value: Any, metadata: frozenset[str] = frozenset()) -> ValueParts:
    """Take ``value`` apart, one level deep.

    Args:
        value: anything.
        metadata: metadata of functions and classes to include: see :class:`ReadsMetadataError`.

    Raises:
        UndecidableError: it holds what cannot be compared, or does what cannot be followed.
        ReadsMetadataError: ``metadata`` lacks something.
    """
    inside = atom(value)
    if inside is not None:
        return ValueParts(inside, [])
    kind = type(value)  # and not isinstance: proxies claim to be what they stand for
    if issubclass(kind, type):
        return _class(value, metadata)
    if kind is types.FunctionType:
        return _function(value, metadata)
    look = _EXACTLY.get(kind)
    if look is not None:
        return look(value)
    if callable(value):
        known = _by_name(value)
        if known is not None:
            return known
    for base, look in _KINDS:
        if issubclass(kind, base):
            return look(value)
    return _tensor(value) or _instance(value)


def _made(kind: str, holds: list[Reference]) -> ValueParts:
    """Take apart a value that is told by the names of what it holds."""
    return ValueParts(join_label([kind, *(held.name for held in holds)]), holds)


# -- containers and numbers --------------------------------------------------------------------------------------------


def _items(kind: str, values: Iterable[Any], place: Callable[[int], Any] = int) -> ValueParts:
    """Take apart a container in order; ``place`` of an item's number is what a message calls it."""
    label, holds = [kind.encode()], []
    for number, value in enumerate(values):
        inside = _inline(value)
        if inside is None:
            inside = b"@"
            holds.append(Reference("item", f"[{place(number)}]", value))
        label.append(inside)
    return ValueParts(b"".join(label), holds)


def _inline(value: Any) -> bytes | None:
    """Encode an atom or a row of atoms, which are most of what long lists hold."""
    bracket = _ROWS.get(type(value))
    if bracket is None:
        return atom(value)
    parts = list(map(atom, _flat(value) if type(value) is dict else value))
    return None if None in parts else b"%b%d:%b" % (bracket, len(parts), b"".join(part for part in parts if part))


_ROWS: dict[type, bytes] = {tuple: b"(", list: b"[", dict: b"{"}


def _flat(pairs: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(pairs.items())


def _dict(value: Any) -> ValueParts:
    keys = [repr(key) if type(key) is str else "..." for key in value]
    return _items("dict", _flat(value), lambda number: keys[number // 2])


def _set(value: Any) -> ValueParts:
    kind = b"frozenset" if isinstance(value, frozenset) else b"set"
    holds = [Reference("item", "[...]", item) for item in value]
    return ValueParts(kind, holds, ordered=False)


def _subclass_of_set(value: Any) -> ValueParts:
    plain = frozenset(value)
    holds = [Reference("part", "class", type(value)), Reference("part", "items", plain)]
    return _made("set", [*holds, *_attributes(getattr(value, "__dict__", {}))])


def _array(value: Any) -> ValueParts:
    if value.dtype.hasobject or value.dtype.kind == "T":
        content = Reference("part", "items", value.tolist())
    else:
        # SHA-256, for processors have instructions for it: three times as fast as BLAKE2b.
        content = Reference("part", "bytes", hashlib.sha256(np.ascontiguousarray(value).view(np.uint8).data).digest())
    shape = b"array" + b"".join(b"%d," % size for size in value.shape)
    return ValueParts(shape, [Reference("part", "dtype", value.dtype), content])


def _scalar(value: np.generic) -> ValueParts:
    return ValueParts(b"scalar", [Reference("part", "value", np.asarray(value))])


def _tensor(value: Any) -> ValueParts | None:
    """Take apart a tensor of PyTorch, if that is loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not issubclass(type(value), torch.Tensor):
        return None
    try:
        plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise UndecidableError(f"is a tensor whose bytes cannot be read ({error})") from None
    label = join_label(["tensor", str(value.dtype), str(tuple(value.shape)), str(value.device.type)])
    return ValueParts(label, [Reference("part", "class", type(value)), Reference("part", "bytes", plain)])


def _enum_member(value: enum.Enum) -> ValueParts:
    # By its value too: flags have members without names, and members of installed classes are not looked up there.
    label = join_label(["member", str(value.name)])
    return ValueParts(label, [Reference("part", "class", type(value)), Reference("attribute", "value", value.value)])


def _pattern(value: re.Pattern[Any]) -> ValueParts:
    return ValueParts(b"pattern%d;" % value.flags, [Reference("part", "pattern", value.pattern)])


# -- functions ---------------------------------------------------------------------------------------------------------


def _function(function: types.FunctionType, metadata: frozenset[str]) -> ValueParts:
    home = function.__globals__.get("__name__")
    installed = release(home) if isinstance(home, str) and _is_of(function, home) else None
    if installed is not None:
        known = _by_name(function)
        if known is not None:
            return known
    code, defaults = function.__code__, function.__defaults__ or ()
    holds = [Reference("part", "code", code)]
    holds += [
        Reference("default", name, value)
        for name, value in zip(
            code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True
        )
    ]
    named = sorted((function.__kwdefaults__ or {}).items())
    holds += [Reference("default", name, value) for name, value in named]
    cells = _cells(function)
    holds += [Reference("variable", name, value) for name, value in cells.items()]
    attributes = sorted(vars(function).items())
    holds += [Reference("attribute", name, value) for name, value in attributes]
    parts = [str(len(defaults)), *(name for name, _ in named), "", *cells, "", *(name for name, _ in attributes)]
    if installed is None:
        found = code_references(function, cells, metadata)
        parts += ["globals", *(held.name for held in found)]
        holds += found
    else:
        parts += [installed, str(home), function.__qualname__]
    if "names" in metadata:
        parts += [function.__name__, function.__qualname__]
    if "docstrings" in metadata:
        holds.append(Reference("part", "docstring", function.__doc__))
    if "annotations" in metadata:
        holds.append(Reference("part", "annotations", function.__annotations__))
    return ValueParts(b"function" + join_label(parts), holds)


def _is_of(function: types.FunctionType, home: str) -> bool:
    """Whether a module made this function, here or, if it was pickled by value, elsewhere."""
    own = getattr(sys.modules.get(home), "__dict__", None) is function.__globals__
    return own or is_installed(function.__code__.co_filename)


def _cells(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # it isn't set yet
    return found


def _code(code: types.CodeType) -> ValueParts:
    label, constants = canonical(code)
    return ValueParts(label, [Reference("part", "constant", constant) for constant in constants])


def _by_name(value: Any) -> ValueParts | None:
    """Describe by its name a value that an installed module has under that name."""
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(name, str) or home not in sys.modules:
        return None
    known = release(home)
    if known is None:
        return None
    if is_dynamic(value):
        raise UndecidableError("may run or reach anything")
    try:
        found = operator.attrgetter(name)(sys.modules[home])
    except AttributeError:
        return None
    return ValueParts(join_label(["installed", known, home, name]), []) if found is value else None


def _builtin(value: Any) -> ValueParts:
    known = _by_name(value)
    if known is not None:
        return known
    owner = value.__self__
    if owner is None or isinstance(owner, types.ModuleType):
        home = owner.__name__ if owner is not None else value.__module__
        known_release = release(home) if isinstance(home, str) else None
        if known_release is None:
            raise UndecidableError(_COMPILED)
        return ValueParts(join_label(["installed", known_release, str(home), value.__qualname__]), [])
    return ValueParts(join_label(["method", value.__name__]), [Reference("self", "self", owner)])


def is_compiled(method: types.MethodType) -> bool:
    """Whether a compiled class has this method under its name; the function alone may be found nowhere."""
    function = method.__func__
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or isinstance(function, types.FunctionType):
        return False
    if isinstance(getattr(type(function), "__call__", None), types.FunctionType):  # noqa: B004 - how it is called
        return False  # a decorator that is a class: what it holds counts
    return bool(getattr(method.__self__, name, None) == method)


def _method(value: types.MethodType) -> ValueParts:
    if is_compiled(value) and _by_name(value.__func__) is None:
        return _method_of_builtin(value)
    return ValueParts(
        b"bound", [Reference("part", "function", value.__func__), Reference("self", "self", value.__self__)]
    )


def _method_of_builtin(value: Any) -> ValueParts:
    return ValueParts(join_label(["method", value.__name__]), [Reference("self", "self", value.__self__)])


def _descriptor(value: Any) -> ValueParts:
    owner = value.__objclass__
    if type(value) is not types.MemberDescriptorType and release(owner.__module__) is None:
        raise UndecidableError(_COMPILED)
    return ValueParts(join_label(["descriptor", type(value).__name__, value.__name__]), [_owner(owner)])


def _owner(cls: type) -> Reference:
    return Reference("part", "class", cls)


def _partial(value: functools.partial[Any]) -> ValueParts:
    named = sorted(value.keywords.items())
    holds = [Reference("part", "function", value.func)]
    holds += [Reference("default", f"argument {number}", item) for number, item in enumerate(value.args)]
    holds += [Reference("default", name, item) for name, item in named]
    return _made(f"partial of {len(named)}", [*holds, *_attributes(vars(value))])


def _cached(value: Any) -> ValueParts:
    """Take apart a function under ``functools.lru_cache``."""
    own = {name: item for name, item in vars(value).items() if name[:2] != "__" and name != "cache_parameters"}
    return _made("cached", [Reference("part", "function", value.__wrapped__), *_attributes(own)])


def _wrapper(kind: str, *names: str) -> Callable[[Any], ValueParts]:
    """Return a function that takes apart a value made of the functions among these attributes."""

    def look(value: Any) -> ValueParts:
        return _made(kind, [Reference("part", name, getattr(value, name)) for name in names])

    return look


def _module(value: types.ModuleType) -> ValueParts:
    name = value.__name__
    known = release(name)
    if known is not None:
        return ValueParts(join_label(["installed", known, name]), [])
    own = sorted((key, item) for key, item in vars(value).items() if not (key.startswith("__") and key.endswith("__")))
    holds = [Reference("attribute", key, item) for key, item in own if not is_below(item, name)]
    return _made("module", holds)


# -- classes and their instances ---------------------------------------------------------------------------------------


def _class(cls: type, metadata: frozenset[str]) -> ValueParts:
    known = _by_name(cls)
    if known is not None:
        return known
    home = release(cls.__module__)
    if not cls.__flags__ & _HEAP_TYPE:
        if home is None:
            raise UndecidableError(_COMPILED)
        return ValueParts(join_label(["installed", home, cls.__module__, cls.__qualname__]), [])
    holds = [Reference("part", "class", type(cls))] if type(cls) is not type else []
    holds += [Reference("part", base.__name__, base) for base in cls.__bases__]
    own = dict(vars(cls))
    own["__annotations__"] = inspect.get_annotations(cls)  # packages make parsers of them
    if issubclass(cls, enum.Enum):
        members = [(name, member.value) for name, member in cls.__members__.items()]
        holds.append(Reference("part", "members", members))
        own = {name: item for name, item in own.items() if name not in {*_MEMBERS, *cls.__members__}}
    entries = sorted((name, item) for name, item in own.items() if name not in _NOT_OF_A_CLASS)
    if "docstrings" in metadata:
        entries.append(("__doc__", cls.__doc__))
    holds += [Reference("attribute", name, item) for name, item in entries]
    parts = [
        cls.__qualname__ if "names" in metadata else cls.__name__,
        str(home),
        str(len(cls.__bases__)),
        *(name for name, _ in entries),
    ]
    return ValueParts(b"class" + join_label(parts), holds)


_MEMBERS = ("_member_map_", "_value2member_map_")  # they grow as combinations of flags are made
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _instance(value: Any) -> ValueParts:
    """Take apart an instance by what :mod:`pickle` would keep of it."""
    cls = type(value)
    if _is_shared_generator(value):
        return ValueParts(b"shared generator", [_owner(cls)])
    try:
        reducer = copyreg.dispatch_table.get(cls)
        reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        raise UndecidableError(f"has no state that could be compared ({error})") from None
    if isinstance(reduced, str):
        return _named(value, reduced)
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    holds = [_owner(cls), Reference("part", "constructor", make), Reference("part", "arguments", tuple(arguments))]
    new = copyreg.__newobj__  # type: ignore[attr-defined]  # the stubs lack it
    if state is not None and getattr(cls, "__getstate__", None) is _DEFAULT_STATE and make is new:
        slots: dict[str, Any] = {}
        if isinstance(state, tuple):
            state, slots = state
        holds += _attributes({**(state or {}), **slots})
    elif state is not None:
        holds.append(Reference("part", "state", state))
    if items is not None:
        holds.append(Reference("part", "items", list(items)))
    if pairs is not None:
        holds.append(Reference("part", "items", [tuple(pair) for pair in pairs]))
    return _made("instance", holds)


def _named(value: Any, name: str) -> ValueParts:
    """Describe a value that is pickled as a name, by the package whose module has it."""
    package = type(value).__module__.partition(".")[0]
    homes = [home for home, module in list(sys.modules.items()) if getattr(module, "__dict__", {}).get(name) is value]
    for home in sorted(homes, key=lambda home: (home.partition(".")[0] != package, home)):
        known = release(package) and release(home)
        if known is not None:
            return ValueParts(join_label(["named", known, name]), [_owner(type(value))])
    raise UndecidableError(f"is known by the name `{name}` alone")


_DEFAULT_STATE = getattr(object, "__getstate__")  # noqa: B009 - typeshed lacks it


def _is_shared_generator(value: Any) -> bool:
    """Whether it is the generator behind ``random.random`` or ``np.random.rand``: its state differs in each process."""
    return value is getattr(random, "_inst", None) or value is getattr(np.random.mtrand, "_rand", None)


def _attributes(state: dict[Any, Any]) -> list[Reference]:
    return [Reference("attribute", str(name), state[name]) for name in sorted(state, key=str)]


_EXACTLY: dict[type, Callable[[Any], ValueParts]] = {
    list: lambda value: _items("list", value),
    tuple: lambda value: _items("tuple", value),
    dict: _dict,
    set: _set,
    frozenset: _set,
    bytearray: lambda value: _items("bytearray", [bytes(value)]),
    np.ndarray: _array,
    np.memmap: _array,
    types.MappingProxyType: _dict,
    types.CodeType: _code,
    types.MethodType: _method,
    types.BuiltinFunctionType: _builtin,
    types.MethodWrapperType: _method_of_builtin,
    types.ModuleType: _module,
    types.CellType: lambda value: _items("cell", [value.cell_contents]),
    functools.partial: _partial,
    type(functools.lru_cache(operator.index)): _cached,
    functools.cached_property: _wrapper("cached property", "func"),
    property: _wrapper("property", "fget", "fset", "fdel"),
    staticmethod: _wrapper("static method", "__func__"),
    classmethod: _wrapper("class method", "__func__"),
    re.Pattern: _pattern,
    **dict.fromkeys(_SIMPLE_DESCRIPTORS, _descriptor),
}
_KINDS: list[tuple[type, Callable[[Any], ValueParts]]] = [
    (types.ModuleType, _module),
    (enum.Enum, _enum_member),
    (set, _subclass_of_set),
    (frozenset, _subclass_of_set),
    (np.generic, _scalar),
]
