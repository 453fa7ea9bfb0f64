"""Remains of earlier saves: a dataset, files that it has replaced, and what savers wrote that were stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from millrace.errors import MillraceError, SourceError, SourceNotFoundError
from millrace.sources import storage
from millrace.sources.saved_manifest import (
    FILE_NAME,
    FORMAT,
    MANIFEST,
    Contents,
    Replaced,
    SavedFile,
    Unfinished,
    decode,
    decode_contents,
    encode,
    is_later,
)
from millrace.sources.saved_place import ConflictError, SavedPlace, Version


def names_of(files: Iterable[SavedFile]) -> set[str]:
    """Names of files."""
    return {each.file for each in files}


def find_contents(place: SavedPlace, seen: Version) -> tuple[Contents | None, str]:
    """Decode what is published; what is wrong with it or its files, if anything is.

    Raises:
        SourceCorruptError: a later millrace has written it.
    """
    contents, damage = decode_published(place, seen)
    if contents is None:
        return contents, damage

    def wrong(each: SavedFile) -> str:
        try:
            size = storage.stat(place.location(each.file)).size
        except SourceNotFoundError:
            return f"{each.file} is gone"
        return "" if size == each.size else f"{each.file} has {size} bytes, not {each.size}"

    said = storage.for_each(wrong, contents.files, lambda each: place.location(each.file))
    return contents, next(filter(None, said), "")


def decode_published(place: SavedPlace, seen: Version) -> tuple[Contents | None, str]:
    """Do as :func:`find_contents`, and look at no file."""
    if seen.raw is None:
        return None, ""
    try:
        return decode_contents(seen.raw, place.location(MANIFEST)), ""
    except MillraceError as error:
        if is_later(seen.raw):
            raise
        return None, str(error)


def split_replaced(contents: Contents, keep_s: float) -> tuple[list[Replaced], list[str]]:
    """Divide the files of earlier saves into those that stay, and the names of those whose time is over."""
    now = time.time()
    stay = [each for each in contents.replaced if now < (each.at + keep_s if each.until is None else each.until)]
    return stay, [name for each in contents.replaced if each not in stay for name in each.files]


def tidy(place: SavedPlace, seen: Version, found: Contents, keep_s: float) -> None:
    """Remove files of earlier saves whose time is over, and what dead savers left, where the dataset stays as it is."""
    with contextlib.suppress(SourceError):  # what cannot be removed now a later save removes
        _remove_replaced(place, seen, found, keep_s)
        _remove_left(place)


def _remove_replaced(place: SavedPlace, seen: Version, found: Contents, keep_s: float) -> None:
    stay, over = split_replaced(found, keep_s)
    if over:
        try:
            place.publish(encode(Contents(FORMAT, found.files, found.made, stay)), seen)
        except ConflictError:  # whoever has published something else removes them
            return
        place.remove(over)


def _remove_left(place: SavedPlace) -> None:
    with place.alone(()) as others:
        now, _ = decode_published(place, place.published())  # nobody publishes meanwhile, but in a bucket
        if now is None or others.living:
            return
        left, unsure = others.left, others.unsure
        if place.remote:  # of those who wrote within a day some may live
            unsure = {**unsure, **{token: names for token, names in left.items() if token not in others.old}}
        gone = {name for token, names in left.items() if token not in unsure for name in names}
        place.remove(sorted(gone - now.names - listed_files(place, unsure.values())))


def find_unfinished(place: SavedPlace, names: Iterable[str]) -> Unfinished | None:
    """Progress file among the files that a saver left, if it is one."""
    for name in names:
        if name.startswith("saving-") and name.endswith(".json"):
            location = place.location(name)
            with contextlib.suppress(SourceError):  # gone meanwhile, or half of it was written: it is left out
                found = decode(storage.read(location), Unfinished, location)
                return found if all(map(FILE_NAME.fullmatch, names_of(found.files))) else None
    return None


def listed_files(place: SavedPlace, savers: Iterable[list[str]]) -> set[str]:
    """Files that progress files list, by the names of what their savers wrote."""
    found = [find_unfinished(place, names) for names in savers]
    return {each.file for unfinished in found if unfinished is not None for each in unfinished.files}
