"""Plain text: what users have named, without characters that a terminal acts on."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def plain(value: T, *, lines: bool = True) -> T:
    """Copy a tree of dicts and lists, with Python's escapes in the place of control characters in its strings.

    Whoever may begin a job chooses its name, and others look at it on their terminals.

    Args:
        value: the tree.
        lines: ends of lines stay, but for those in names.
    """
    if isinstance(value, str):
        kept = "\n" if lines else ""
        return (
            value
            if value.isprintable()
            else "".join(  # type: ignore[return-value]
                each if each.isprintable() or each in kept else each.encode("unicode_escape").decode() for each in value
            )
        )
    if isinstance(value, dict):
        return {key: plain(each, lines=lines and key != "name") for key, each in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [plain(each, lines=lines) for each in value]  # type: ignore[return-value]
    return value
