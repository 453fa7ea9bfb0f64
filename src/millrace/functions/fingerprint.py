"""Fingerprint of a user's function or object: 16 bytes that change with whatever it computes.

Code, constants, defaults, variables around the function, and the globals and the user's own functions and modules that
it refers to count, all the way down; of installed packages name and version count. Line numbers, files, comments,
docstrings and annotations do not, nor does anything that differs between two runs of one program.
"""

from __future__ import annotations

import sys
from typing import Any

from millrace.errors import UnsureError
from millrace.functions.closure_scan import ReadsMetadataError, Reference, UndecidableError
from millrace.functions.graph_hash import ValueNode, hash_graph, hash_parts
from millrace.functions.value_graph import take_apart

_VERSION = b"1"
"""Version of this algorithm; increment it when a value gets another fingerprint than before."""


def fingerprint(value: Any) -> bytes:
    """Hash what ``value`` computes, or is, into 16 bytes: the same in all processes and machines of one Python 3.x.

    A function that was changed, or refers to anything that was changed, has another fingerprint; text about it counts
    only if code that it reaches reads that text (``__doc__``, ``__name__``, ...). Order counts in dicts, and 1, 1.0 and
    True are three values. Modules of the user's that a function imports when it is called are imported.

    What a function reads when it runs (files, clocks, shared random generators) isn't seen, nor are packages that were
    changed without a change of version. Large arrays are read once, at the speed of SHA-256, 1 to 2 GB/s.

    Raises:
        UnsureError: nobody can tell what it computes; the message names the place and the way out.
    """
    metadata: frozenset[str] = frozenset()
    while True:
        try:
            digest = hash_graph(_nodes(value, metadata))
        except ReadsMetadataError as error:
            metadata = error.metadata
        except RecursionError:
            raise UnsureError(f"this {type(value).__name__} is nested too deeply to be compared with others") from None
        else:
            return hash_parts(_VERSION, b"%d.%d" % sys.version_info[:2], digest)


def _nodes(root: Any, metadata: frozenset[str]) -> list[ValueNode]:
    values = [root]  # kept alive, for an id is one's own as long as one lives
    numbers = {id(root): 0}
    found: list[tuple[int, Reference] | None] = [None]
    nodes = []
    for number, value in enumerate(values):  # it grows
        try:
            label, holds, ordered = take_apart(value, metadata)
        except UndecidableError as error:
            raise UnsureError(_message(values, found, number, str(error))) from None
        children = []
        for held in holds:
            child = numbers.setdefault(id(held.value), len(values))
            if child == len(values):
                values.append(held.value)
                found.append((number, held))
            children.append(child)
        nodes.append(ValueNode(label, children, ordered))
    return nodes


def _message(values: list[Any], found: list[tuple[int, Reference] | None], number: int, reason: str) -> str:
    """Say which value cannot be judged, why, and what to do."""
    from millrace.functions.pickle_diagnostics import Hop, reached

    path: list[Hop] = []
    at = found[number]
    while at is not None:
        above, held = at
        path.insert(0, Hop(held.kind, held.name))
        at = found[above]
    return (
        f"{reached(values[0], values[number], path)} {reason}, so that nobody can tell by looking whether it computes "
        f'the same as in another run. Name its version, as in map(fn, key="v3"), and change that name whenever the '
        f"function changes."
    )
