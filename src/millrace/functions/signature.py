"""Signatures of user functions: their name, where they were written, and how they are to be called.

A function of one element is called as ``fn(element)``, or as ``fn(element, rng=generator)`` if it has a parameter of
that name: by keyword, so that ``def augment(x, scale=2, *, rng)``, partials and wrappers work alike.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, NamedTuple

from millrace.errors import PipelineError

RNG = "rng"
"""Name of the parameter that asks for the element's random generator."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Description(NamedTuple):
    """User's function as messages and callers see it; the fields of :class:`millrace.graph.nodes.Opaque`.

    Attributes:
        name: e.g. ``decode``, ``Augment.apply``, ``partial(resize)``, ``lambda at train.py:12``.
        where: e.g. ``train.py:12``; empty if unknown.
        takes_rng: to be called with ``rng=``, a :class:`numpy.random.Generator`.
    """

    name: str
    where: str
    takes_rng: bool


def describe(
    fn: Any, operator: str, arguments: Sequence[str] = ("element",), *, passes_rng: bool = True
) -> Description:
    """Describe a function that the user gave to ``operator``, without calling it.

    Functions without a signature (ufuncs, many builtins) are taken to be right.

    Args:
        fn: what the user gave.
        operator: where, as in the public API, e.g. ``map``.
        arguments: what ``operator`` calls it with; ``("key", "elements")`` for the reduce function of a window.
        passes_rng: ``operator`` passes a random generator to functions that ask for one.

    Raises:
        PipelineError: ``fn`` cannot be called, or not with ``arguments``, or asks for a generator that is not passed.
    """
    if not callable(fn):
        raise PipelineError(
            f"{operator}() takes a function of ({', '.join(arguments)}), not {_shown(fn)} of type {type(fn).__name__}."
        )
    name, where = name_of(fn), where_of(fn)
    label = f"{operator}({name})"
    subject = f"{name} ({where})" if where and where not in name else name
    if inspect.iscoroutinefunction(fn):
        raise PipelineError(
            f"{label}: {subject} is an async function. {operator} runs functions on threads; write a plain one."
        )
    parameters = _parameters(fn)
    if parameters is None:
        return Description(name, where, takes_rng=False)
    _check(parameters, arguments, label, subject, call=name if name.isidentifier() else "f")
    takes_rng = _takes_rng(fn, parameters, arguments)
    if takes_rng and not passes_rng:
        raise PipelineError(f"{label}: {subject} takes `rng`, but is called with ({', '.join(arguments)}) alone.")
    return Description(name, where, takes_rng)


def name_of(value: Any) -> str:
    """Short name for a user's function, class or object."""
    if isinstance(value, functools.partial):
        return f"partial({name_of(value.func)})"
    name = getattr(value, "__name__", None) if callable(value) else None
    if not isinstance(name, str):
        return type(value).__name__
    if name == "<lambda>":
        where = where_of(value)
        return f"lambda at {where}" if where else "lambda"
    owner = getattr(value, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):
        return f"{(owner if isinstance(owner, type) else type(owner)).__name__}.{name}"
    qualname = getattr(value, "__qualname__", name)
    return qualname.rpartition("<locals>.")[2] if isinstance(qualname, str) else name


def where_of(value: Any) -> str:
    """File and line that define ``value``, e.g. ``train.py:12``; empty if it isn't written in Python."""
    code = _code(value)
    return f"{_short(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""


def _code(value: Any) -> CodeType | None:
    """Code that best shows where ``value`` was written."""
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, type):
        members = [vars(value).get(name) for name in ("__init__", "__call__", "__getitem__")]
    elif inspect.isroutine(value):
        members = [inspect.unwrap(value)]
    else:
        names = ("__call__", "__getitem__", "__init__")
        members = [inspect.getattr_static(type(value), name, None) for name in names]
    codes = (getattr(member, "__code__", None) for member in members)
    return next((code for code in codes if isinstance(code, CodeType)), None)


def _short(path: str) -> str:
    if path.startswith("<"):
        return path
    folder, name = os.path.split(path)
    if os.path.basename(folder).startswith("ipykernel_"):
        return "notebook cell"
    inside = os.path.relpath(path) if os.path.isabs(path) else path
    return name if inside.startswith(os.pardir) else inside


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(fn, follow_wrapped=False).parameters.values())
    except (ValueError, TypeError):
        return None


def _check(parameters: list[inspect.Parameter], arguments: Sequence[str], label: str, subject: str, call: str) -> None:
    given = len(arguments)
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    wanted = ", ".join(arguments)
    if len(positional) < given and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        has = f"only ({', '.join(p.name for p in positional)})" if positional else "no argument"
        raise PipelineError(f"{label}: {subject} takes {has}, but is called with ({wanted}).")
    for parameter in positional[given:]:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.name == RNG:
            raise PipelineError(
                f"{label}: {subject} takes `rng` by position only, but it is passed by keyword. Remove the `/`."
            )
    missing = [p for p in positional[given:] if p.default is p.empty and p.name != RNG]
    if missing:
        names = ", ".join(p.name for p in positional)
        hint = f"Give `{missing[0].name}` a default, or fix it with functools.partial."
        if given == 1:
            hint = (
                f"An element is passed as one argument; tuples are not unpacked as in tf.data. "
                f"Write `lambda pair: {call}(*pair)`, or, if `{missing[0].name}` is meant to be the random "
                f"generator, name it `rng`."
            )
        raise PipelineError(f"{label}: {subject} takes ({names}), but is called with ({wanted}). {hint}")
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty and parameter.name != RNG:
            raise PipelineError(
                f"{label}: {subject} needs the keyword `{parameter.name}`, but is called with ({wanted}). "
                f"Fix it with functools.partial({call}, {parameter.name}=...)."
            )


def _takes_rng(fn: Callable[..., Any], parameters: list[inspect.Parameter], arguments: Sequence[str]) -> bool:
    if isinstance(fn, functools.partial) and RNG in fn.keywords:
        return False  # the user has bound a generator of their own
    skipped = {p.name for p in [p for p in parameters if p.kind in _POSITIONAL][: len(arguments)]}
    if any(p.name == RNG and p.kind in _NAMED and p.name not in skipped for p in parameters):
        return True
    # A decorator's wrapper(*args, **kwargs) passes on whatever the function it wraps asks for.
    inner = getattr(fn, "__wrapped__", None)
    if not callable(inner) or not any(p.kind is p.VAR_KEYWORD for p in parameters):
        return False
    below = _parameters(inner)
    return below is not None and _takes_rng(inner, below, arguments)
