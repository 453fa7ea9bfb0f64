"""What a user's function or object computes, as 16 bytes: whatever of it changes, they change.

Looked at are code, constants, defaults, variables around the function, and the globals and the user's own functions and
modules that it refers to, all the way down; of installed packages name and version. Line numbers, files, comments,
docstrings and annotations are not, nor is anything that differs between two runs of one program.
"""

from __future__ import annotations

import sys
from typing import Any

from millrace.errors import UnsureError
from millrace.functions.closure_scan import Held, ReflectiveError, UntoldError
from millrace.functions.graph_hash import Node, digest_of, hashed
from millrace.functions.value_graph import dissect

_VERSION = b"1"
"""Of this way of looking at things; count it up when a value gets another fingerprint than before."""


def fingerprint(value: Any) -> bytes:
    """What ``value`` computes, or is, as 16 bytes: the same in all processes and on all machines of one Python 3.x.

    A function that was changed, or anything that it refers to, has another fingerprint; what of it is mere text has no
    part in it, unless code that it reaches looks at that (``__doc__``, ``__name__``, ...). Order counts in dicts, and
    1, 1.0 and True are three values. Modules of the user's that a function imports when it is called are imported.

    What a function reads when it runs (files, clocks, shared random generators) isn't seen, nor are packages that were
    changed without a change of version. Large arrays are read once, at what SHA-256 does, 1 to 2 GB/s.

    Raises:
        UnsureError: that cannot be told, with the place and the way out.
    """
    beside: frozenset[str] = frozenset()
    while True:
        try:
            digest = digest_of(_nodes(value, beside))
        except ReflectiveError as error:
            beside = error.beside
        except RecursionError:
            raise UnsureError(f"this {type(value).__name__} is nested too deeply to be compared with others") from None
        else:
            return hashed(_VERSION, b"%d.%d" % sys.version_info[:2], digest)


def _nodes(root: Any, beside: frozenset[str]) -> list[Node]:
    values = [root]  # kept alive, for an id is one's own as long as one lives
    numbers = {id(root): 0}
    found: list[tuple[int, Held] | None] = [None]
    nodes = []
    for number, value in enumerate(values):  # it grows
        try:
            label, holds, ordered = dissect(value, beside)
        except UntoldError as error:
            raise UnsureError(_message(values, found, number, str(error))) from None
        children = []
        for held in holds:
            child = numbers.setdefault(id(held.value), len(values))
            if child == len(values):
                values.append(held.value)
                found.append((number, held))
            children.append(child)
        nodes.append(Node(label, children, ordered))
    return nodes


def _message(values: list[Any], found: list[tuple[int, Held] | None], number: int, reason: str) -> str:
    """Where the value is that nothing can be told of, why, and what to do."""
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
