"""Choice of a block store by its location."""

from __future__ import annotations

from millrace.blocks.stores.block_store import BlockStore
from millrace.blocks.stores.file_store import FileStore
from millrace.blocks.stores.object_store import ObjectStore
from millrace.sources.storage import is_remote, local_path


def open_store(location: str) -> BlockStore:
    """Open the store at a path (of any mounted file system), or at ``s3://``, ``gs://``, ``az://`` or ``memory://``.

    Args:
        location: a folder, which is made if it isn't there, or a bucket with or without a prefix.

    Raises:
        CacheError: the folder cannot be made or written to.
        PipelineError: the scheme is none that blocks can be written to.
    """
    return ObjectStore(location) if is_remote(location) else FileStore(local_path(location))
