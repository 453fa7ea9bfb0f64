"""Whole numbers among what users pass: checked wherever one is asked for."""

from __future__ import annotations

from typing import Any

from millrace.errors import PipelineError


def is_int(value: Any) -> bool:
    """Whether ``value`` is a whole number, of Python or numpy; True and False are none."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def whole(operator: str, name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Whole number of at least ``least`` and at most ``most``."""
    bound = "" if least is None else f" of at least {least}"
    if most is not None and is_int(value) and int(value) > most:
        bound = f" of at most {most:,}"
    elif is_int(value) and (least is None or int(value) >= least):
        return int(value)
    raise PipelineError(f"{operator}: {name} must be a whole number{bound}, not {value!r}")
