"""Decisions, each with the sentence that explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Decision(msgspec.Struct, Generic[T], frozen=True):
    """Decision of a policy.

    Attributes:
        value: the decision.
        reason: one sentence in plain words: what was measured, against what. It reaches the journal, ``status`` and
            ``explain`` unchanged.
        inputs: the numbers it was made from.
    """

    value: T
    reason: str
    inputs: Mapping[str, Any] = {}


def listed(names: Sequence[str]) -> str:
    """List the first three of the names, and the number of the others, for a sentence."""
    others = len(names) - 3
    return ", ".join(names[:3]) + (f" and {others} other{'s' * (others > 1)}" if others > 0 else "")
