"""Local cache: ``cache()`` without a service keeps items in this process's memory, or in a folder."""

from __future__ import annotations

import logging
import secrets
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from millrace.blocks.block_index import PointIndex
from millrace.blocks.stores.block_store import BlockStore
from millrace.blocks.stores.memory_store import MemoryStore
from millrace.blocks.stores.open_store import open_store
from millrace.engine.cache.cache_writer import CacheWriter
from millrace.engine.cache.cached_items import ActivePoint
from millrace.engine.cache.find_cache_points import find_points
from millrace.errors import CacheError, MillraceWarning
from millrace.graph.nodes import Node, always_reused
from millrace.graph.operator_graph import Graph
from millrace.host_limits import memory_bytes, siblings
from millrace.planning.cache_point import CachePoint, fixed_notice
from millrace.planning.split_table import SplitTable

MEMORY_SHARE = 4
"""Divisor of the machine's memory that gives the bytes for the caches of all datasets of a training."""
_UNBOUNDED = 1 << 62

_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_indexes: weakref.WeakValueDictionary[str, PointIndex] = weakref.WeakValueDictionary()
_held: weakref.WeakKeyDictionary[Node, dict[str, PointIndex]] = weakref.WeakKeyDictionary()
_names: weakref.WeakKeyDictionary[Node, dict[int, str]] = weakref.WeakKeyDictionary()
"""By node and seed, the fingerprint of what is kept of it."""
_said: weakref.WeakSet[Node] = weakref.WeakSet()
_memory: list[MemoryStore] = []


class LocalCache:
    """Cache of one pipeline in this process: its last ``cache()``, or none.

    Args:
        graph: with user functions.
        tables: split table of every source, by node id.
        seed: the pipeline's.
        parts: processes that read the pipeline together, each with a memory of its own.
    """

    def __init__(self, graph: Graph, tables: Mapping[int, SplitTable], seed: int, parts: int = 1) -> None:
        self._parts = parts
        self._point: CachePoint | None = None
        self._fingerprint = ""
        self._store: BlockStore | None = None
        self._catalog: PointIndex | None = None
        self._full = False
        if not any(map(always_reused, graph.nodes)):
            return
        points = [point for point in find_points(graph, tables, seed) if point.always]
        for point in points:
            if not _usable(point):
                warnings.warn(f"cache after {point.label} keeps nothing: {point.why}", MillraceWarning, stacklevel=2)
            if point.fixed and not _is_said(graph.nodes[point.node]):
                warnings.warn(fixed_notice(point), MillraceWarning, stacklevel=2)
        usable = [point for point in points if _usable(point)]
        if usable:
            self._open(graph, usable[-1], seed)

    def _open(self, graph: Graph, point: CachePoint, seed: int) -> None:
        node = graph.nodes[point.node]
        self._point = point
        self._fingerprint = point.fingerprint if point.path else _first_name(node, seed, point.fingerprint)
        try:
            self._store = open_store(point.path) if point.path else _memory_store(self._parts)
            key = f"{self._store.location} {self._fingerprint}"
            with _lock:
                self._catalog = _indexes.get(key) or _catalog(self._store, self._fingerprint, point.path)
                _indexes[key] = self._catalog
                _held.setdefault(node, {})[key] = self._catalog
            if point.path:
                self._catalog.learn(name for _, name in self._store.blocks(self._fingerprint))
        except CacheError as error:
            self._catalog = None
            warnings.warn(f"cache after {point.label} keeps nothing: {error}", MillraceWarning, stacklevel=2)

    @property
    def in_memory(self) -> bool:
        """Whether what is kept ends with this process."""
        return self._point is not None and not self._point.path

    def point(self) -> ActivePoint | None:
        """Make the point in use, as tasks get it; None: nothing is kept."""
        if self._catalog is None or self._point is None:
            return None
        key = bytes.fromhex(self._fingerprint)
        return ActivePoint(self._point.node, key, self._point.random, self._catalog)

    @contextmanager
    def using(self) -> Iterator[dict[str, Any]]:
        """Open the cache for one task, as arguments of :meth:`Program.run`; keep what it made if the body ends well."""
        point = self.point()
        if point is None or self._catalog is None or self._store is None or self._point is None:
            yield {}
            return
        writer = None if self._full else CacheWriter(self._store, self._fingerprint, _UNBOUNDED)
        try:
            yield {"point": point, "writer": writer}
            if writer is not None:
                writer.finish()
                self._catalog.learn(info.name for info in writer.blocks)
                self._note(writer)
        finally:
            if writer is not None:
                writer.close()

    def _note(self, writer: CacheWriter) -> None:
        """Note why a task has not kept all that it made, if it has not."""
        assert self._point is not None
        if writer.lasting and not self._full:
            self._full = True  # the next epoch tries again
            text = f"cache after {self._point.label} keeps nothing more in this epoch: {writer.error}"
            warnings.warn(text, MillraceWarning, stacklevel=2)
        elif writer.error:
            _logger.info("cache after %s: %s", self._point.label, writer.error)


def _is_said(node: Node) -> bool:
    """Whether this process was told before that all below this cache is as in the first epoch; from now on it was."""
    with _lock:
        said = node in _said
        _said.add(node)
        return said


def _usable(point: CachePoint) -> bool:
    """Whether the point can be used: in this process's memory a function needs no fingerprint, being one object."""
    return bool(point.fingerprint) or (point.known and not point.path)


def _first_name(node: Node, seed: int, fingerprint: str) -> str:
    """Name what is kept in memory of a node by the fingerprint that it had first.

    An object that counts its calls, or loads a model with the first, has another one in each epoch. One whose work
    can't be told from others' has none: here it is this one.
    """
    with _lock:
        names = _names.setdefault(node, {})
        return names.setdefault(seed, fingerprint or secrets.token_hex(16))


def _memory_store(parts: int) -> MemoryStore:
    with _lock:
        if not _memory:
            _memory.append(MemoryStore(memory_bytes() // (MEMORY_SHARE * siblings() * parts)))
        return _memory[0]


def _catalog(store: BlockStore, fingerprint: str, path: str) -> PointIndex:
    """Make an index; blocks in memory go with it."""
    catalog = PointIndex(store, fingerprint)
    if not path:
        weakref.finalize(catalog, _drop, store, fingerprint)
    return catalog


def _drop(store: BlockStore, fingerprint: str) -> None:
    for point, name in store.blocks(fingerprint):
        store.delete(point, name)
