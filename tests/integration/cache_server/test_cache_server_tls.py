"""A cache server on another host: workers ask it under TLS, and only if its certificate is a worker's or its host's."""

import functools
import time
from pathlib import Path

import pytest
from tests.integration.cache_server.test_cache_server import Store, Watch, bytes_of, entry, until_inserted
from tests.integration.tls_hosts import TlsHosts, files

from millrace.cache_server.item_server import ItemServer
from millrace.cache_server.item_store import ItemStore
from millrace.errors import TlsError
from millrace.protocol.cache_server_messages import SourceCounts
from millrace.worker import source_cache
from millrace.worker.source_cache import SourceCache, connect

pytest.importorskip("cryptography")

KEY = b"key of the tenant's"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory) -> TlsHosts:
    return TlsHosts(tmp_path_factory.mktemp("tls"))


@pytest.fixture(autouse=True)
def far(monkeypatch):
    """Loopback is taken for another host's network."""
    monkeypatch.setattr(source_cache, "beyond_loopback", lambda tls, _host: tls)


def asked(server: ItemServer, folder: Path, count: int, inserts: int = 0) -> tuple[SourceCounts, Store]:
    """What a server counts when a worker with a folder of certificates has asked for some items, and the store."""
    store = Store()
    cache = SourceCache(functools.partial(connect, tenant="vision", key=KEY, tls=files(folder)), [server.address])
    try:
        read = cache.tier(store.request)
        for number in range(count):
            assert read(entry(number), Watch()) == bytes_of(entry(number))
        until_inserted(inserts, server)
        return server.counts, store
    finally:
        cache.close()


def serving(tmp_path: Path, folder: Path) -> tuple[ItemServer, ItemStore]:
    store = ItemStore(str(tmp_path / "cache"), 64 << 20, time.monotonic)
    tls = files(folder)
    return ItemServer("127.0.0.2", store, token="secret", key_of=lambda _tenant: KEY, tls=tls), store


def test_workers_ask_under_tls_a_server_that_has_a_workers_certificate(hosts, tmp_path):
    server, store = serving(tmp_path, hosts.issue("millrace-worker"))
    try:
        asked(server, hosts.anonymous, 10, inserts=10)
        counts, second = asked(server, hosts.other, 10, inserts=10)
        assert (counts.misses, counts.hits) == (10, 10)
        assert not second.read
    finally:
        server.close()
        store.close()


def test_who_has_another_hosts_certificate_is_asked_nothing(hosts, tmp_path):
    server, store = serving(tmp_path, hosts.issue("127.0.0.3"))
    try:
        with pytest.raises(TlsError, match=r"is for 127\.0\.0\.3"):
            connect(server.address, "vision", KEY, files(hosts.other))
        counts, read = asked(server, hosts.other, 5)
        assert counts == SourceCounts()
        assert len(read.read) == 5, "the store is asked instead"
    finally:
        server.close()
        store.close()
