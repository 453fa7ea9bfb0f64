"""File listing: from patterns to files, local and remote."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import TypeVar

from millrace.errors import PipelineError, SourceError, SourceNotFoundError
from millrace.planning.split_table import Files, SplitTable, stamp_of
from millrace.sources import globs as language
from millrace.sources import local_walk, storage
from millrace.sources.concurrent_calls import in_order
from millrace.sources.file_list import FileList
from millrace.sources.source import ListingProgress, ignore_progress
from millrace.sources.storage import FileInfo

_LOOKED_AT = 1000
_AT_ONCE = 1024
"""Names that are looked at together for whether any is remote."""
_TOLD = 256
"""Files between two reports of progress."""
T = TypeVar("T")


def expand(patterns: Sequence[str]) -> list[FileInfo]:
    """Expand paths, URLs and patterns to files: matches of one pattern sorted, patterns in the order given.

    A file named by two patterns comes twice. Patterns are described in :mod:`millrace.sources.globs`; a path that
    exists as written is not looked at for special characters, unless it is of a store and has a ``*``. Folders never
    match. Over ``http(s)://``, which cannot be listed, only braces are expanded.

    Raises:
        PipelineError: there is no pattern, or one is none that can be read.
        SourceNotFoundError: a path does not exist, or a pattern matches nothing; says how far it matched.
    """
    return list(_each(patterns, _in_order, ignore_progress))


def expand_many(patterns: Sequence[str], seen: ListingProgress) -> Iterator[Files]:
    """Expand as :func:`expand` does, without an object per file; ``seen`` is called as files are looked at."""
    return _each(patterns, _by_folder, seen)


def _each(
    patterns: Sequence[str], collect: Callable[[Iterator[FileInfo]], Iterable[T]], seen: ListingProgress
) -> Iterator[T]:
    """Apply ``collect`` to the files that each name stands for, which come in no order."""
    if not patterns:
        raise PipelineError("No files given: the list of paths is empty. Give a path, a pattern, or a list of them")

    def resolve(name: str) -> Iterable[T]:
        return collect(_counted(_resolve(name), seen))

    names = (name for pattern in patterns for name in _names(pattern))
    some = iter(lambda: list(islice(names, _AT_ONCE)), [])
    for remote, lists in groupby(some, key=lambda some: any(map(storage.is_remote, some))):
        each = chain.from_iterable(lists)
        for found in in_order(resolve, each) if remote else map(resolve, each):
            yield from found


def _counted(found: Iterator[FileInfo], seen: ListingProgress) -> Iterator[FileInfo]:
    count = 0
    for count, file in enumerate(found, start=1):
        yield file
        if not count % _TOLD:
            seen(_TOLD)
    seen(count % _TOLD)


def _in_order(found: Iterator[FileInfo]) -> list[FileInfo]:
    by_location = {file.location.encode("utf-8", "surrogateescape"): file for file in found}
    return [by_location[location] for location in sorted(by_location)]


def _by_folder(found: Iterator[FileInfo]) -> Iterable[Files]:
    some = list(islice(found, 2))
    if len(some) == 1:  # a path, of which there may be millions
        ((location, size, version),) = some
        return [Files(b"", [location.encode("utf-8", "surrogateescape")], [size], [stamp_of(version)])]
    files = FileList()
    for file in chain(some, found):
        files.add(file)
    return files.take()


def changed_file(table: SplitTable) -> str:
    """Find a local file that changed since ``table`` was made; empty if there is none, or nobody can tell.

    Time and size tell. Of large tables only the first files are looked at.
    """
    known: Iterable[tuple[str, int]] = islice(zip(table.locations, table.stamps, strict=False), _LOOKED_AT)
    if table.splits:
        known = {split.location: stamp_of(split.version) for split in islice(table.splits, _LOOKED_AT)}.items()
    for location, stamp in known:
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


def _resolve(name: str) -> Iterator[FileInfo]:
    """Find the file, or the files that match a pattern, in no order and some perhaps twice."""
    if storage.is_remote(name):
        http = storage.scheme_of(name).startswith("http")
        if language.has_glob(name) and not http:
            yield from _match_remote(name)
            return
        yield _http(name) if http else storage.stat(name)
        return
    path = storage.local_path(name)
    if language.has_glob(path) and not os.path.lexists(path):
        yield from _match_local(path)
        return
    try:
        yield storage.stat(path)
    except SourceNotFoundError as error:
        if os.path.isdir(path):
            raise
        raise SourceNotFoundError(f"{path} does not exist: {_reach_local(path)}") from error


def _http(url: str) -> FileInfo:
    # "?" begins a query here; the rest cannot be meant as anything but a pattern if the file is not there.
    try:
        return storage.stat_readable(url)
    except SourceNotFoundError as error:
        if "*" in url:
            raise PipelineError(
                f"{url}: web servers have no listing to match '*' with. Name the files, or use {{0..9}}"
            ) from error
        raise


# -- local -------------------------------------------------------------------------------------------------------------


def _match_local(pattern: str) -> Iterator[FileInfo]:
    files = folders = False
    for path in local_walk.matching(pattern):
        try:
            yield storage.stat_local(path)
            files = True
        except SourceNotFoundError:  # a folder, or a file deleted since
            local_walk.check_link(path)
            folders = True
    if not files:
        reason = "only folders match it" if folders else _reach_local(pattern)
        raise SourceNotFoundError(f"{pattern!r} matches no file: {reason}")


def _reach_local(pattern: str) -> str:
    """Describe how far a path or pattern that matches nothing does match."""
    deepest, hit = "", ""
    for prefix in language.prefixes(pattern):
        match = prefix if os.path.lexists(prefix) else next(local_walk.matching(prefix), None)
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


def _match_remote(pattern: str) -> Iterator[FileInfo]:
    folder = language.fixed_folder(pattern)
    rest = pattern[len(folder) :]
    match = language.compile_glob(rest).match
    folders: set[str] = set()
    empty: list[FileInfo] = []
    held: list[FileInfo] | None = [] if "*" not in rest else None
    found = False
    for file in storage.list_folder(folder, recursive="/" in rest or "**" in rest):
        above = file.location.rpartition("/")[0]
        while len(above) > len(folder) and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
        if file.location == pattern and held is not None:  # it exists as written, and is no pattern then
            yield file
            return
        if match(file.location, len(folder)):
            if file.size:
                found = True
                if held is None:
                    yield file
                else:
                    held.append(file)
            else:
                empty.append(file)
    # Consoles mark a folder by an empty object of its name.
    files = [file for file in empty if file.location not in folders]
    if not (found or files):
        raise SourceNotFoundError(f"{pattern!r} matches no file: {_reach_remote(folder, rest)}")
    yield from held or ()
    yield from files


def _reach_remote(folder: str, rest: str) -> str:
    root, key = storage.split_url(folder)
    fixed = key.rstrip("/")
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
