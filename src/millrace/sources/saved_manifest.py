"""Manifest of a saved dataset, ``saved.json``: its files, what made them and when, and the files that they replaced.

It is written last and in one step: without it nothing is there, and with it all is.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from millrace.errors import SourceCorruptError, SourceNotFoundError
from millrace.policies.saved_data import MadeOf
from millrace.sources import storage

MANIFEST = "saved.json"
FORMAT = 2
"""Version of the manifest."""
FILE_NAME = re.compile(r"\d{6,}-(?P<token>[0-9a-f]{16})\.block")
"""Names of files: their number, and the token of the save that wrote them."""
T = TypeVar("T")


class SavedFile(msgspec.Struct, frozen=True):
    """File of a saved dataset: blocks one behind the other.

    Attributes:
        file: its name, without the folder.
        elements: number of them in each block.
        bytes: of each block.
    """

    file: str
    elements: list[int]
    bytes: list[int]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(self.bytes)


class Made(msgspec.Struct, frozen=True):
    """Origin of a saved dataset.

    Attributes:
        of: pipeline and data.
        at: seconds since 1970 at which the save began, by the clock of the process that did it.
        version: of millrace.
        file_bytes: size at which a file is complete.
        why_file_bytes: the reason for that size; empty: the data fit into less than any that would be chosen.
    """

    of: MadeOf
    at: float
    version: str
    file_bytes: int = 0
    why_file_bytes: str = ""


class Replaced(msgspec.Struct, frozen=True):
    """Files that a later save has replaced, which stay for those who read them.

    Attributes:
        files: their names.
        at: seconds since 1970 at which they were replaced.
        until: until which they stay; None: nobody noted it, and whoever saves later decides.
    """

    files: list[str]
    at: float
    until: float | None = None


class Contents(msgspec.Struct, frozen=True):
    """Contents of the manifest.

    Attributes:
        format: version of the manifest.
        files: in the order of their elements.
        made: the origin; None: it was not noted.
        replaced: files of earlier saves that were not removed yet.
    """

    format: int
    files: list[SavedFile]
    made: Made | None = None
    replaced: list[Replaced] = []

    @property
    def names(self) -> set[str]:
        """Names of all files, those that were replaced included."""
        return {each.file for each in self.files}.union(*(each.files for each in self.replaced))


class _OlderBlock(msgspec.Struct, frozen=True):
    file: str
    elements: int
    bytes: int


class _Older(msgspec.Struct, frozen=True):
    """Manifest of the first format, in which each block is a file."""

    blocks: list[_OlderBlock]

    def contents(self) -> Contents:
        return Contents(1, [SavedFile(each.file, [each.elements], [each.bytes]) for each in self.blocks])


class Unfinished(msgspec.Struct, frozen=True):
    """Progress of a save that is under way, as of its last complete file.

    Attributes:
        of: pipeline and data.
        state: the pipeline's state behind the last element of the last file.
        files: those that are complete.
        began: seconds since 1970 at which the save began.
        file_bytes: size at which a file is complete, if that was chosen; 0: not yet.
        why_file_bytes: the reason.
    """

    of: MadeOf
    state: dict[str, Any]
    files: list[SavedFile]
    began: float = 0.0
    file_bytes: int = 0
    why_file_bytes: str = ""


class SavedInfo(msgspec.Struct, frozen=True):
    """Facts about a saved dataset.

    Attributes:
        path: folder or URL.
        elements: number of them.
        bytes: of its files.
        files: number of them.
        made: pipeline, data, time and version; None: a millrace saved it that did not note them.
    """

    path: str
    elements: int
    bytes: int
    files: int
    made: Made | None


class SaveResult(msgspec.Struct, frozen=True):
    """Outcome of a save.

    Attributes:
        made: whether elements were computed and written; False: what was there is as wanted.
        reason: one sentence that says why.
        info: the dataset that is there now.
    """

    made: bool
    reason: str
    info: SavedInfo


def info(path: str, contents: Contents) -> SavedInfo:
    """Summarize a manifest."""
    elements = sum(sum(each.elements) for each in contents.files)
    return SavedInfo(path, elements, sum(each.size for each in contents.files), len(contents.files), contents.made)


def at(path: str, name: str) -> str:
    """Location of a file of the folder or prefix."""
    return f"{path.rstrip('/')}/{name}"


def encode(value: Contents | Unfinished) -> bytes:
    """Encode a manifest or a progress file as JSON that can be read."""
    return msgspec.json.format(msgspec.json.encode(value))


def decode(raw: bytes, kind: type[T], location: str) -> T:
    """Decode a manifest or a progress file.

    Raises:
        SourceCorruptError: it is none.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise SourceCorruptError(f"{location} is not what save() writes: {error}") from error


class _Format(msgspec.Struct, frozen=True):
    format: int


def is_later(raw: bytes) -> bool:
    """Whether a manifest is of a format that a later millrace writes."""
    try:
        return msgspec.json.decode(raw, type=_Format).format > FORMAT
    except (msgspec.DecodeError, ValueError):
        return False


def decode_contents(raw: bytes, location: str) -> Contents:
    """Decode a manifest.

    Raises:
        SourceCorruptError: it is none, or of a format that this millrace does not know.
    """
    known = decode(raw, _Format, location).format
    if not 1 <= known <= FORMAT:
        raise SourceCorruptError(f"{location} is of format {known}, and this millrace reads up to {FORMAT}")
    found = decode(raw, _Older, location).contents() if known == 1 else decode(raw, Contents, location)
    if not all(map(FILE_NAME.fullmatch, found.names)) or not all(map(_fits, found.files)):
        raise SourceCorruptError(f"{location} is not what save() writes: it names files or blocks that are none")
    return found


def _fits(file: SavedFile) -> bool:
    """Whether a file can have blocks of these numbers of elements and bytes."""
    same = len(file.elements) == len(file.bytes) > 0
    return same and min(file.elements) > 0 and min(file.bytes) > 0


def read_contents(path: str) -> Contents:
    """Read the manifest of a folder or prefix.

    Raises:
        SourceNotFoundError: nothing is saved there.
        SourceCorruptError: it is none, or of a format that this millrace does not know.
    """
    location = at(path, MANIFEST)
    try:
        raw = storage.read(location)
    except SourceNotFoundError as error:
        raise SourceNotFoundError(
            f"{path} holds no saved dataset, or one that is not whole: {error}. ds.save(path) makes one"
        ) from error
    return decode_contents(raw, location)
