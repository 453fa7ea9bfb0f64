"""Digests where they are stored: read part by part, and written so that they are there wholly or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from typing import IO

from millrace.errors import MillraceError, SourceCorruptError, SourceError
from millrace.sources import storage
from millrace.sources.digests.digest_file import DigestReader
from millrace.sources.reads import Reads
from millrace.sources.store_requests import Entry


@contextlib.contextmanager
def open_digest(location: str, reads: Reads) -> Iterator[DigestReader]:
    """Open a digest at a path or URL.

    Raises:
        SourceNotFoundError: there is none.
        SourceCorruptError: it is no digest, or a damaged one; also if the body finds it out.
    """
    found = storage.stat_readable(location)
    with reads.open(Entry(location, 0, found.size, found.version, found.size)) as stream:
        try:
            yield DigestReader(stream, found.size)
        except MillraceError:  # of the body; some are a ValueError as well
            raise
        except ValueError as error:
            raise SourceCorruptError(
                f"{location} can't be read as a digest: {error}. `millrace digest` makes one, where no other file is"
            ) from error


@contextlib.contextmanager
def draft(location: str) -> Iterator[IO[bytes]]:
    """File that is there under its name, wholly, once this ends well."""
    if storage.is_remote(location):
        with tempfile.TemporaryFile(prefix="millrace-digest-") as file:
            yield file
            file.seek(0)
            storage.write(location, file)
        return
    path = storage.local_path(location)
    partial = f"{path}.{uuid.uuid4().hex}.draft"
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        if isinstance(error, OSError) and not isinstance(error, SourceError):
            raise SourceError(f"{path}: {error.strerror or error}") from error
        raise
