"""Traced origins, which lead back to what arrived from a service."""

from __future__ import annotations

from millrace.elements.chunk import Origin

Path = tuple[int, ...]


class Traced(Origin):
    """Origin whose elements have paths: ``above``, and at its end the position plus ``shift``."""

    above: Path = ()
    shift: int = 0
    place: tuple[int, int] = (-1, -1)
    """Task and output that the elements were made of, if they are parts of it."""


def traced(origin: Origin, above: Path, shift: int, place: tuple[int, int] = (-1, -1)) -> Traced:
    """Give an origin these paths."""
    found = Traced(*origin)
    found.above, found.shift, found.place = above, shift, place
    return found
