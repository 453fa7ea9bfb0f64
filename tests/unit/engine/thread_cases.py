"""What tests of the engine's threads share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from millrace.elements.chunk import Chunk, Origin

ORIGIN = Origin(0, 0)


class Sized:
    """An element that says how many bytes it has, and doesn't have them."""

    def __init__(self, number: int, nbytes: int) -> None:
        self.number, self.nbytes = number, nbytes


def chunks(elements: list[Any], size: int = 4) -> Iterator[Chunk]:
    """``elements`` in chunks of ``size``."""
    for start in range(0, len(elements), size):
        part = elements[start : start + size]
        yield Chunk(part, ORIGIN, range(start, start + len(part)))


def millrace_threads() -> list[str]:
    """Names of the engine's threads that live."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("millrace")]
