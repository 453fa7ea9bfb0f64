"""From patterns to files, local and remote."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from itertools import islice

from millrace.errors import PipelineError, SourceError, SourceNotFoundError
from millrace.planning.tables import SplitTable, stamp_of
from millrace.sources import patterns as language
from millrace.sources import storage
from millrace.sources.storage import Found

_LOOKED_AT = 1000


def expand(patterns: Sequence[str]) -> list[Found]:
    """The files that paths, URLs and patterns name: matches of one pattern sorted, patterns in the order given.

    A file named by two patterns comes twice. Patterns are described in :mod:`millrace.sources.patterns`; a path that
    exists as written is not looked at for special characters. Folders never match. Over ``http(s)://``, which cannot
    be listed, only braces are expanded.

    Raises:
        PipelineError: there is no pattern, or one is none that can be read.
        SourceNotFoundError: a path does not exist, or a pattern matches nothing; says how far it matched.
    """
    if not patterns:
        raise PipelineError("No files given: the list of paths is empty. Give a path, a pattern, or a list of them")
    names = [name for pattern in patterns for name in _names(pattern)]
    if any(storage.is_remote(name) for name in names):
        found = storage.concurrently(_resolve, names)
    else:
        found = [_resolve(name) for name in names]
    return [file for files in found for file in files]


def changed_file(table: SplitTable) -> str:
    """A local file that is no longer what it was when ``table`` was made; empty if there is none, or nobody can tell.

    It is told by time and size. Of large tables only the first files are looked at.
    """
    known = {split.location: stamp_of(split.version) for split in table.splits}
    known.update(zip(table.locations, table.stamps, strict=False))
    for location, stamp in islice(known.items(), _LOOKED_AT):
        if storage.is_remote(location):
            continue
        try:
            found = storage.stat(location)
        except SourceError:
            return location
        if stamp and stamp_of(found.version) != stamp:
            return location
    return ""


def _names(pattern: str) -> Iterator[str]:
    literal = "{" not in pattern or (not storage.is_remote(pattern) and os.path.exists(storage.local_path(pattern)))
    yield from [pattern] if literal else language.expand_braces(pattern)


def _resolve(name: str) -> list[Found]:
    if storage.is_remote(name):
        if storage.scheme_of(name).startswith("http"):
            return [_http(name)]
        return _match_remote(name) if language.has_glob(name) else [storage.stat(name)]
    path = storage.local_path(name)
    if language.has_glob(path) and not os.path.lexists(path):
        return _match_local(path)
    try:
        return [storage.stat(path)]
    except SourceNotFoundError as error:
        if os.path.isdir(path):
            raise
        raise SourceNotFoundError(f"{path} does not exist: {_reach_local(path)}") from error


def _http(url: str) -> Found:
    # "?" begins a query here; the rest cannot be meant as anything but a pattern if the file is not there.
    try:
        return storage.stat(url)
    except SourceNotFoundError as error:
        if "*" in url:
            raise PipelineError(
                f"{url}: web servers have no listing to match '*' with. Name the files, or use {{0..9}}"
            ) from error
        raise


# -- local -------------------------------------------------------------------------------------------------------------


def _match_local(pattern: str) -> list[Found]:
    found: list[Found] = []
    paths = sorted(set(glob.iglob(pattern, recursive=True)))
    for path in paths:
        try:
            found.append(storage.stat(path))
        except SourceNotFoundError:  # a folder, a dangling link, or a file deleted since
            continue
    if not found:
        reason = "only folders match it" if paths else _reach_local(pattern)
        raise SourceNotFoundError(f"{pattern!r} matches no file: {reason}")
    return found


def _reach_local(pattern: str) -> str:
    """How far a path or pattern that matches nothing does match, in words."""
    deepest, hit = "", ""
    for prefix in language.prefixes(pattern):
        match = prefix if os.path.lexists(prefix) else next(glob.iglob(prefix, recursive=True), None)
        if match is None:
            break
        deepest, hit = prefix, match
    missing = pattern[len(deepest) :].lstrip("/").split("/", 1)[0]
    if not deepest:
        where = "/" if pattern.startswith("/") else f"the current folder, {os.getcwd()},"
        return f"{where} has nothing that matches {missing!r}"
    if deepest != hit:
        return f"{deepest!r} matches {hit!r} and maybe more, but nothing in there matches {missing!r}"
    kind = "the folder" if os.path.isdir(hit) else "the file (not a folder)"
    return f"{kind} {hit!r} exists, but has nothing that matches {missing!r}"


# -- object stores -----------------------------------------------------------------------------------------------------


def _match_remote(pattern: str) -> list[Found]:
    folder = language.fixed_folder(pattern)
    rest = pattern[len(folder) :]
    match = language.compile_glob(rest).match
    listed = storage.list_folder(folder, recursive="/" in rest or "**" in rest)
    folders: set[str] = set()
    found: list[Found] = []
    for file in listed:
        above = file.location.rpartition("/")[0]
        while len(above) > len(folder) and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
        if match(file.location, len(folder)):
            found.append(file)
    # Consoles mark a folder by an empty object of its name.
    found = sorted(file for file in found if file.size or file.location not in folders)
    if not found:
        raise SourceNotFoundError(f"{pattern!r} matches no file: {_reach_remote(folder, rest)}")
    return found


def _reach_remote(folder: str, rest: str) -> str:
    root, key = storage.split_url(folder + "_")
    fixed = key[: key.rfind("/") + 1].rstrip("/")
    missing = rest.split("/", 1)[0]
    for deepest in [*reversed(language.prefixes(fixed + "/")), ""] if fixed else [""]:
        place = root + deepest + ("/" if deepest else "")
        try:
            some = next(iter(storage.list_folder(place, recursive=True)), None)
        except SourceError as error:
            return str(error)
        if some is not None:
            return f"{place} exists, but has nothing that matches {missing!r}"
        missing = deepest.rsplit("/", 1)[-1]
    return f"{root} is empty"
