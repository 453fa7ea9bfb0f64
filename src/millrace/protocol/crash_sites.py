"""Where a run is, as far as a task that may end workers says so."""

from __future__ import annotations

import msgspec

CrashSite = tuple[int, ...]
"""What a worker is at: (node, then the element's origin node, split, repetition and position, how often the node has
been given it before). Negative nodes stand for what is no function: see
:mod:`millrace.engine.user_code.crash_probe`."""


class Poison(msgspec.Struct, frozen=True):
    """Element that ended the workers that came to it. ``where``: in words, e.g. ``map(decode) of train/0007.jpg``."""

    place: CrashSite
    where: str
