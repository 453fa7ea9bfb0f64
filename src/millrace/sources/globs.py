"""Path patterns: ``*``, ``?``, ``[...]`` and ``**`` as in :mod:`glob`, and braces, ``{000..012}`` or ``{a,b}``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

_GLOB = re.compile(r"[*?[]")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_ANY_FOLDERS = r"(?:(?!\.)[^/]+/)*"
_ANY_NAME = r"(?!\.)[^/]+"


def has_glob(text: str) -> bool:
    """Whether ``text`` contains ``*``, ``?`` or ``[``."""
    return _GLOB.search(text) is not None


def expand_braces(pattern: str) -> Iterator[str]:
    """Expand ``shard-{000..012}.tar`` and ``{train,val}.tar``, as a shell does; numbers keep their width."""
    start = pattern.find("{")
    while start >= 0:
        cuts = _cuts(pattern, start)
        choices = _choices(pattern, cuts)
        if choices is not None:
            rest = list(expand_braces(pattern[cuts[-1] + 1 :]))
            for choice in choices:
                for end in rest:
                    yield pattern[:start] + choice + end
            return
        start = pattern.find("{", start + 1)
    yield pattern


def _cuts(pattern: str, start: int) -> list[int]:
    """Find the brace at ``start``, the commas of its own, and the brace that closes it; [] if none does."""
    depth, cuts = 0, [start]
    for at in range(start, len(pattern)):
        depth += (pattern[at] == "{") - (pattern[at] == "}")
        if depth == 0 or (depth == 1 and pattern[at] == ","):
            cuts.append(at)
        if depth == 0:
            return cuts
    return []


def _choices(pattern: str, cuts: list[int]) -> Iterable[str] | None:
    """Expand what stands in a brace; None if it is no list and no range."""
    if len(cuts) > 2:
        return [each for low, high in pairwise(cuts) for each in expand_braces(pattern[low + 1 : high])]
    found = _RANGE.fullmatch(pattern, cuts[0] + 1, cuts[1]) if cuts else None
    if found is None:
        return None
    first, last = found.groups()
    start, stop = int(first), int(last)
    padded = any(len(text) > 1 and text.lstrip("-").startswith("0") for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    step = 1 if start <= stop else -1
    return (f"{number:0{width}d}" for number in range(start, stop + step, step))


def fixed_folder(pattern: str) -> str:
    """Folder, with its slash, above the first component with a glob character; empty if there is none."""
    glob = _GLOB.search(pattern)
    end = glob.start() if glob else len(pattern)
    return pattern[: pattern.rfind("/", 0, end) + 1]


def prefixes(pattern: str) -> list[str]:
    """List ``a``, ``a/*``, ``a/*/c`` ... for ``a/*/c/d``: the pattern cut before each slash, shortest first."""
    return [pattern[: slash.start()] for slash in re.finditer("/", pattern) if slash.start() > 0]


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Compile a pattern to match whole paths as ``glob.glob(recursive=True)`` does, leading dots only if asked for."""
    parts = pattern.split("/")
    pieces: list[str] = []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            pieces.append(_ANY_FOLDERS + (_ANY_NAME if last else ""))
        else:
            pieces.append(_component(part) + ("" if last else "/"))
    return re.compile("".join(pieces) + r"\Z", re.DOTALL)


def _component(part: str) -> str:
    if not has_glob(part):
        return re.escape(part)
    pieces = [] if part.startswith(".") else [r"(?!\.)"]
    at = 0
    while at < len(part):
        char = part[at]
        at += 1
        if char == "*":
            pieces.append("[^/]*")
        elif char == "?":
            pieces.append("[^/]")
        elif char == "[" and (close := part.find("]", at + 2 if part[at : at + 1] == "!" else at + 1)) > 0:
            pieces.append(_char_class(part[at:close]))
            at = close + 1
        else:
            pieces.append(re.escape(char))
    # A component of wildcards alone must not match the empty name between two slashes.
    return r"(?=[^/])" + "".join(pieces)


def _char_class(inside: str) -> str:
    negate = inside.startswith("!")
    chars = inside[1:] if negate else inside
    ranges: list[str] = []
    at = 0
    while at < len(chars):
        if at + 2 < len(chars) and chars[at + 1] == "-":
            low, high = chars[at], chars[at + 2]
            if low <= high:
                ranges.append(f"{re.escape(low)}-{re.escape(high)}")
            at += 3
        else:
            ranges.append(re.escape(chars[at]))
            at += 1
    if not ranges:
        return "[^/]" if negate else "(?!)"
    return f"[^/{''.join(ranges)}]" if negate else f"(?!/)[{''.join(ranges)}]"
