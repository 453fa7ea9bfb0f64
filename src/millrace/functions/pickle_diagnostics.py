"""Pickling diagnostics: which lock, file or table cannot travel, and how the user's function comes by it.

This only runs once packing has failed. It imports cloudpickle: import this module late.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from millrace.functions.pickling import Pickler
from millrace.functions.signature import name_of, where_of

_MOST_CHILDREN = 1000
_MOST_VISITED = 200_000
_MOST_HOPS = 8


class Hop(NamedTuple):
    """Step from one object to another that it holds.

    Attributes:
        kind: ``global``, ``variable``, ``default``, ``attribute``, ``self``, ``item`` or ``part``.
        label: e.g. ``lock``, ``model``, ``[3]``, ``['db']``.
    """

    kind: str
    label: str


_HOW = {
    "global": "uses the global `{}`",
    "variable": "uses the variable `{}` of the function around it",
    "default": "has the default value of `{}`",
    "attribute": "has the attribute `{}`",
    "self": "belongs to `{}`",
    "item": "holds `{}`",
    "part": "holds its `{}`",
}

_REMEDIES = (
    (
        ("lock", "RLock", "Lock", "Condition", "Semaphore", "Event", "Thread", "local", "Queue", "SimpleQueue"),
        "Create it inside the function, or put both into a module of their own: your modules are sent as source",
    ),
    (
        ("TextIOWrapper", "BufferedReader", "BufferedWriter", "BufferedRandom", "FileIO", "mmap", "_io"),
        "Send the path, and open the file inside the function",
    ),
    (
        ("socket", "SSLSocket", "Connection", "Cursor", "Session", "Channel"),
        "Connect inside the function, once per worker, e.g. in a helper under functools.cache",
    ),
    (
        ("generator", "async_generator", "coroutine"),
        "Make a list of it, or create it inside the function",
    ),
)
_LEAVE_OUT = "Give the object that holds it a __getstate__ that leaves it out and a __setstate__ that makes it anew"
_OTHERWISE = (
    "Create it inside the function, put both into a module of their own (your modules are sent as source), or send "
    "what it is made from instead"
)


def unsendable(value: Any, name: str, error: Exception) -> str:
    """Explain why ``value`` (of the operator ``name``) could not be pickled; ``error`` is what pickling raised."""
    tracer = _Tracer()
    try:
        tracer.dump(value)
    except Exception as again:  # noqa: BLE001 (user code may raise anything)
        error = again
    if isinstance(error.__cause__, RecursionError):
        return f"{name}: {_subject(value)} is nested too deeply to be sent to a worker. Keep such data in a file."
    culprit = tracer.last
    said = str(error).rstrip(".") or type(error).__name__
    if culprit is None:
        return f"{name}: {_subject(value)} cannot be sent to a worker: {said}."
    path = _path(value, culprit, tracer.seen)
    found = f"{_subject(value)} holds {_kind(culprit)}, which" if path is None else reached(value, culprit, path)
    return f"{name}: {found} cannot be sent to a worker ({said}). {_remedy(culprit, path)}."


def reached(value: Any, culprit: Any, path: Sequence[Hop]) -> str:
    """Begin a sentence about a part of ``value``, up to its verb: ``function f uses the global `LOCK`, a lock, which``.

    Args:
        value: a function or object of the user's.
        culprit: the part that the sentence is about.
        path: how ``value`` leads to it; empty if it is ``value`` itself.
    """
    if not path:
        return _subject(value)
    if len(path) == 1:
        return f"{_subject(value)} {_HOW[path[0].kind].format(path[0].label)}, {_kind(culprit)}, which"
    return f"{_subject(value)} reaches {_kind(culprit)} ({_route(value, path)}), which"


def too_large(values: Sequence[Any], names: Sequence[str], max_bytes: int) -> str:
    """Explain which part of ``values``, more than ``max_bytes`` together, is to blame."""
    sizes = [_size(value) for value in values]
    size = max(sizes)
    first = sizes.index(size)
    value: Any = values[first]
    path: list[Hop] = []
    while len(path) < _MOST_HOPS:
        inside = list(islice(children(value), _MOST_CHILDREN + 1))
        if not inside or len(inside) > _MOST_CHILDREN:
            break
        heaviest, hop, child = max(((_size(child), hop, child) for hop, child in inside), key=lambda found: found[0])
        if heaviest < size / 2:
            break
        size, value = heaviest, child
        path.append(hop)
    subject = _subject(values[first])
    if not path:
        what = f"{subject} takes {_bytes(size)}"
    elif len(path) == 1:
        what = f"{subject} {_HOW[path[0].kind].format(path[0].label)}, {_kind(value)} of {_bytes(size)}"
    else:
        what = f"{subject} reaches {_kind(value)} of {_bytes(size)} ({_route(values[first], path)})"
    return (
        f"{names[first]}: {what}, and functions with all that they hold may take {_bytes(max_bytes)}, as every worker "
        f"gets them whole. Keep large data in files: let the pipeline read them (from_files, from_tfrecords, "
        f"from_parquet, ...), or let the function load them when it is first called on a worker."
    )


def children(value: Any) -> Iterator[tuple[Hop, Any]]:
    """List what ``value`` holds, as far as pickle would follow it."""
    try:
        yield from _children(value)
    except Exception:  # noqa: BLE001 (a user's property or repr that fails must not hide what is to be said)
        return


def _children(value: Any) -> Iterator[tuple[Hop, Any]]:
    if isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, MethodType):
        yield Hop("self", "self"), value.__self__
        yield Hop("part", "function"), value.__func__
    elif isinstance(value, functools.partial):
        yield Hop("part", "function"), value.func
        yield from ((Hop("default", f"argument {i}"), item) for i, item in enumerate(value.args))
        yield from ((Hop("default", key), item) for key, item in value.keywords.items())
    elif isinstance(value, (staticmethod, classmethod)):
        yield Hop("part", "function"), value.__func__
    elif isinstance(value, property):
        yield from ((Hop("part", "getter"), f) for f in (value.fget, value.fset, value.fdel) if f is not None)
    elif isinstance(value, type):
        yield from ((Hop("part", base.__name__), base) for base in value.__bases__)
        yield from ((Hop("attribute", key), item) for key, item in list(vars(value).items()))
    elif not isinstance(value, ModuleType):
        yield from _of_object(value)


def _of_function(function: FunctionType) -> Iterator[tuple[Hop, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Hop("variable", name), cell.cell_contents
        except ValueError:
            continue  # an empty cell: the variable isn't set yet
    for name in dict.fromkeys(_names(code)):
        if name in function.__globals__:
            yield Hop("global", name), function.__globals__[name]
    defaults = function.__defaults__ or ()
    named = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    yield from ((Hop("default", name), item) for name, item in zip(named, defaults, strict=True))
    yield from ((Hop("default", name), item) for name, item in (function.__kwdefaults__ or {}).items())
    yield from ((Hop("attribute", name), item) for name, item in vars(function).items())


def _of_object(value: Any) -> Iterator[tuple[Hop, Any]]:
    if isinstance(value, dict):
        yield from ((Hop("item", f"[{_brief(key)}]"), item) for key, item in value.items())
        yield from ((Hop("item", f"key {_brief(key)}"), key) for key in value)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from ((Hop("item", f"[{i}]"), item) for i, item in enumerate(value))
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield from ((Hop("attribute", str(key)), item) for key, item in list(attributes.items()))
    slots = chain.from_iterable(_slots(cls) for cls in type(value).__mro__)
    yield from ((Hop("attribute", name), getattr(value, name)) for name in slots if hasattr(value, name))
    wrapped = getattr(value, "__wrapped__", None)
    if isinstance(wrapped, FunctionType):
        yield Hop("part", "function"), wrapped
    yield Hop("part", "class"), type(value)


def _slots(cls: type) -> Sequence[str]:
    slots = vars(cls).get("__slots__", ())
    return [slots] if isinstance(slots, str) else [name for name in slots if name not in ("__dict__", "__weakref__")]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


class _ByteCounter:
    """File that only counts the bytes written."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: Any) -> None:
        self.bytes += memoryview(data).nbytes


class _Tracer(Pickler):
    """Pickler that notes what pickle asks about; it asks before it looks inside, so the last object is the culprit."""

    def __init__(self) -> None:
        super().__init__(_ByteCounter())
        self.last: Any = None
        self.seen: set[int] = set()

    def reducer_override(self, obj: Any) -> Any:
        self.last = obj
        self.seen.add(id(obj))
        return super().reducer_override(obj)


def _path(value: Any, culprit: Any, seen: set[int]) -> list[Hop] | None:
    """Shortest path from ``value`` to ``culprit`` through what pickle looked at; None if there is none."""
    queue: deque[tuple[Any, list[Hop]]] = deque([(value, [])])
    visited = {id(value)}
    while queue and len(visited) < _MOST_VISITED:
        current, path = queue.popleft()
        if current is culprit:
            return path
        for hop, child in children(current):
            plain = isinstance(child, (dict, list, tuple, set, frozenset))
            if id(child) not in visited and (plain or id(child) in seen):
                visited.add(id(child))
                queue.append((child, [*path, hop]))
    return None


def _size(value: Any) -> int:
    """Pickled size in bytes, as far as it can be pickled."""
    counter = _ByteCounter()
    try:
        Pickler(counter).dump(value)
    except Exception:  # noqa: BLE001 (it is about size here; the message is made of the parts that have one)
        return counter.bytes
    return counter.bytes


def _subject(value: Any) -> str:
    kind = "function" if isinstance(value, (FunctionType, functools.partial)) else "object"
    if isinstance(value, MethodType):
        kind = "method"
    elif isinstance(value, type):
        kind = "class"
    name, where = name_of(value), where_of(value)
    if name.startswith("lambda at"):
        return f"the {name}"
    if kind == "object" and type(value).__module__ == "builtins":
        return f"the {type(value).__name__}"
    return f"{kind} {name} ({where})" if where else f"{kind} {name}"


def _route(value: Any, path: Sequence[Hop]) -> str:
    """Path in words: ``augment -> self.model -> _lock``."""
    labels = [hop.label for hop in path]
    if labels[0] == "self" and len(labels) > 1:
        labels[:2] = [f"self.{labels[1]}"]
    if len(labels) > _MOST_HOPS:
        labels[_MOST_HOPS // 2 : -_MOST_HOPS // 2] = ["..."]
    return " -> ".join([name_of(value), *labels])


def _kind(value: Any) -> str:
    cls = type(value)
    name = cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
    return f"{'an' if name.lstrip('_')[:1].lower() in 'aeiou' else 'a'} {name}"


def _remedy(culprit: Any, path: list[Hop] | None) -> str:
    if path and path[-1].kind == "attribute":
        return _LEAVE_OUT
    name = type(culprit).__name__
    return next((remedy for names, remedy in _REMEDIES if name in names), _OTHERWISE)


def _brief(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 30 else f"{text[:27]}..."


def _bytes(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
