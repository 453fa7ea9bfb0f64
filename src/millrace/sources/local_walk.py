"""Local walk: the paths that match a pattern, as :mod:`glob` has them, where nothing is passed over in silence."""

from __future__ import annotations

import os
from collections.abc import Iterator

from millrace.errors import SourceError, SourceNotFoundError
from millrace.sources import globs as language


def matching(pattern: str) -> Iterator[str]:
    """Find the files and folders that match, in no order.

    Under ``**`` links to folders are followed, but for those that lead to a folder above themselves: the files there
    have other names already.

    Raises:
        SourceError: a folder on the way can't be listed: nobody knows what is in there.
        SourceNotFoundError: a link that is to be a folder leads to nothing.
    """
    folder = language.fixed_folder(pattern)
    parts: list[str] = []
    for part in pattern[len(folder) :].split("/"):
        if part != "**" or parts[-1:] != ["**"]:
            parts.append(part)
    return _walk(folder, parts)


def _walk(folder: str, parts: list[str]) -> Iterator[str]:
    """Find what matches the ``parts`` of a pattern below a folder, which is written with its slash."""
    part, rest = parts[0], parts[1:]
    if not language.has_glob(part):
        if rest:
            yield from _walk(f"{folder}{part}/", rest)
        elif os.path.lexists(folder + part):
            yield folder + part
        return
    if part == "**" and rest:
        yield from _walk(folder, rest)
    matches = language.compile_glob("*" if part == "**" else part).match
    for entry in _entries(folder):
        if not matches(entry.name):
            continue
        if not rest:
            yield folder + entry.name
        if part == "**" and _is_folder(entry) and not (entry.is_symlink() and _leads_above(entry.path)):
            yield from _walk(f"{folder}{entry.name}/", parts)
        elif part != "**" and rest:
            if _is_folder(entry):
                yield from _walk(f"{folder}{entry.name}/", rest)
            else:
                check_link(entry.path)  # to a folder, perhaps


def check_link(path: str) -> None:
    """Raise a SourceNotFoundError if this is a link that leads to nothing."""
    if os.path.islink(path) and not os.path.exists(path):
        raise SourceNotFoundError(
            f"{path} is a link to {os.readlink(path)!r}, which is not there: fetch it, remove the link, or write a "
            "pattern that leaves it out"
        )


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder or ".") as found:
            entries = list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unlistable(folder or os.getcwd(), error) from error
    return entries


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        raise _unlistable(entry.path, error) from error


def _leads_above(path: str) -> bool:
    """Whether a link to a folder leads to one that it lies in."""
    there, above = os.stat(path), os.path.dirname(os.path.abspath(path))
    while not os.path.samestat(there, os.stat(above)):
        if above == (above := os.path.dirname(above)):
            return False
    return True


def _unlistable(path: str, error: OSError) -> SourceError:
    return SourceError(
        f"the folder {path} cannot be listed, so that files in it would be missing: {error.strerror or error}. Give "
        "this process access to it, or write a pattern that leaves it out"
    )
