"""Plain text: what users have named, without characters that a terminal acts on."""

from __future__ import annotations

from typing import Any


def plain(value: Any, *, lines: bool = True) -> Any:
    """Copy a tree of dicts and lists, with Python's escapes in the place of control characters in its strings.

    Whoever may begin a job chooses its name, and others look at it on their terminals.

    Args:
        value: the tree.
        lines: ends of lines stay, but for those in names.
    """
    match value:
        case dict():
            return {key: plain(each, lines=lines and key != "name") for key, each in value.items()}
        case list():
            return [plain(each, lines=lines) for each in value]
        case str() if not value.isprintable():
            kept = "\n" if lines else ""
            return "".join(each if each.isprintable() or each in kept else _escaped(each) for each in value)
    return value


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
