"""Workers' reads by way of cache servers: once for all, whoever dies, and never wrong."""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from tests.integration.own_host import OWN_HOST

from millrace.cache_server.item_server import ItemServer
from millrace.cache_server.item_store import ItemStore, check_folder
from millrace.errors import CacheError, ServiceUnreachableError, SourceError
from millrace.protocol import source_cache_messages as msg
from millrace.sources.store_requests import Entry, RequestWatch
from millrace.wire.data.data_connection import DataConnection, DataServer, open_data_connection
from millrace.worker.source_cache import SourceCache, key_of

ITEM = 10_000


def entry(number: int, version: str = "v1") -> Entry:
    return Entry(f"s3://bucket/{number}", 0, ITEM, version, ITEM)


def bytes_of(entry: Entry) -> bytes:
    return hashlib.shake_128(f"{entry.location} {entry.version}".encode()).digest(entry.stop)


class Store:
    """The object store behind the cache: what was read of it, and what keeps reads from ending."""

    def __init__(self) -> None:
        self.read = Counter[str]()
        self.began = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()
        self.failing = False
        self._lock = threading.Lock()

    def request(self, entry: Entry, _watch: RequestWatch) -> bytes:
        with self._lock:
            self.read[entry.location] += 1
        self.began.release()
        assert self.go.wait(60)
        if self.failing:
            raise SourceError(f"{entry.location}: no")
        return bytes_of(entry)


def connect(address: str) -> DataConnection:
    return open_data_connection(address, local=False, sockets=1)


@dataclass
class Watch:
    """A reader who wants the answer."""

    second: bool = False

    def abandoned(self) -> bool:
        return False

    def began(self) -> None:
        pass

    def again(self, *, slow_down: bool) -> None:
        pass


class Worker:
    """A worker's reads."""

    def __init__(self, store: Store, *servers: str) -> None:
        self.cache = SourceCache(connect, servers)
        self._read = self.cache.tier(store.request)

    def read(self, entry: Entry, *, second: bool = False) -> bytes:
        return self._read(entry, Watch(second))


@pytest.fixture
def serve(tmp_path):
    with contextlib.ExitStack() as stack:

        def begin(most_bytes: int = 64 << 20, name: str = "cache", **options) -> ItemServer:
            store = ItemStore(str(tmp_path / name), most_bytes, time.monotonic)
            stack.callback(store.close)
            server = ItemServer("127.0.0.1", store, **options)
            stack.callback(server.close)
            return server

        yield begin


@pytest.fixture
def worker():
    with contextlib.ExitStack() as stack:

        def begin(store: Store, *servers: ItemServer | str) -> Worker:
            found = Worker(store, *(each if isinstance(each, str) else each.address for each in servers))
            stack.callback(found.cache.close)
            return found

        yield begin


@pytest.fixture
def pool():
    with ThreadPoolExecutor(64) as executor:
        yield executor


def test_what_one_worker_has_read_another_one_finds(serve, worker):
    server, store = serve(), Store()
    one, two = worker(store, server), worker(store, server)
    for reader in (one, two, one):
        assert [reader.read(entry(number)) for number in range(20)] == [bytes_of(entry(n)) for n in range(20)]
    assert set(store.read.values()) == {1}
    until_inserted(20, server)
    found = server.counts.hits + server.counts.joined  # one that is read before it is there has joined
    assert (found, server.counts.misses, server.counts.inserted) == (40, 20, 20)


def test_who_is_measured_without_the_cache_reads_past_it_and_leaves_nothing_there(serve, worker):
    server, store = serve(), Store()
    one, two = worker(store, server), worker(store, server)
    for number in range(10):
        one.read(entry(number))
    until_inserted(10, server)
    one.cache.past = True
    assert [one.read(entry(number)) for number in range(20)] == [bytes_of(entry(n)) for n in range(20)]
    assert (server.counts.hits, server.counts.misses, server.counts.items) == (0, 10, 10)
    one.cache.past = False
    read = [two.read(entry(n)) for n in range(20)]
    until_inserted(20, server)
    assert read == [one.read(entry(n)) for n in range(20)]
    assert (server.counts.hits, server.counts.misses) == (30, 20)


def test_five_workers_that_begin_in_one_moment_read_each_item_once(serve, worker, pool):
    server, store = serve(), Store()
    workers = [worker(store, server) for _ in range(5)]
    orders = [[(at * step) % 101 for at in range(1, 101)] for step in (1, 7, 13, 29, 50)]
    asked = [(each, n) for numbers in zip(*orders, strict=True) for each, n in zip(workers, numbers, strict=True)]
    read = [pool.submit(each.read, entry(number)) for each, number in asked]
    wanted = [bytes_of(entry(number)) for _, number in asked]
    assert [each.result(60) for each in read] == wanted
    assert len(store.read) == 100
    assert set(store.read.values()) == {1}
    counts = server.counts
    assert (counts.misses, counts.hits + counts.joined) == (100, 400)


def test_two_branches_of_one_worker_join_and_a_second_request_does_not(serve, worker, pool):
    server, store = serve(), Store()
    one = worker(store, server)
    store.go.clear()
    first = pool.submit(one.read, entry(1))
    assert store.began.acquire(timeout=60)
    joined = pool.submit(one.read, entry(1))
    hedge = pool.submit(one.read, entry(1), second=True)
    assert store.began.acquire(timeout=60)
    assert store.read == {"s3://bucket/1": 2}
    store.go.set()
    assert first.result(60) == joined.result(60) == hedge.result(60) == bytes_of(entry(1))
    assert store.read == {"s3://bucket/1": 2}


def test_a_fetch_that_fails_passes_on_to_who_waits(serve, worker, pool):
    server, broken, store = serve(), Store(), Store()
    broken.go.clear()
    broken.failing = True
    first = pool.submit(worker(broken, server).read, entry(1))
    assert broken.began.acquire(timeout=60)
    other = worker(store, server)
    second = pool.submit(other.read, entry(1))
    until_joined(server)
    assert not store.read, "it waits"
    broken.go.set()
    with pytest.raises(SourceError):
        first.result(60)
    assert second.result(60) == bytes_of(entry(1))
    assert server.counts.passed_on == 1


def until_joined(server: ItemServer) -> None:
    """Wait until somebody waits for what another one fetches."""
    deadline = time.monotonic() + 60
    while not server.counts.joined:
        assert time.monotonic() < deadline, server.counts
        threading.Event().wait(0.01)


def until_inserted(count: int, *servers: ItemServer) -> None:
    """Wait until so many items were inserted in all, which nobody who reads waits for."""
    deadline = time.monotonic() + 60
    while sum(server.counts.inserted for server in servers) < count:
        assert time.monotonic() < deadline, [server.counts for server in servers]
        threading.Event().wait(0.01)


def test_who_goes_passes_its_claims_on(serve, worker, pool):
    server, hung, store = serve(), Store(), Store()
    hung.go.clear()
    gone = worker(hung, server)
    first = pool.submit(gone.read, entry(1))
    assert hung.began.acquire(timeout=60)
    second = pool.submit(worker(store, server).read, entry(1))
    until_joined(server)
    gone.cache.close()
    assert second.result(60) == bytes_of(entry(1))
    hung.go.set()
    assert first.result(60) == bytes_of(entry(1)), "its own read goes on without the cache"


def test_who_takes_too_long_passes_its_claims_on(serve, worker, pool):
    server, hung, store = serve(claim_s=0.2), Store(), Store()
    hung.go.clear()
    first = pool.submit(worker(hung, server).read, entry(1))
    assert hung.began.acquire(timeout=60)
    assert worker(store, server).read(entry(1)) == bytes_of(entry(1))
    hung.go.set()
    assert first.result(60) == bytes_of(entry(1))
    until_inserted(1, server)
    assert worker(store, server).read(entry(1)) == bytes_of(entry(1))
    assert store.read == {"s3://bucket/1": 1}


def test_who_has_waited_too_long_reads_it_for_all(serve, worker, pool, monkeypatch):
    server, hung, store = serve(), Store(), Store()
    hung.go.clear()
    first = pool.submit(worker(hung, server).read, entry(1))
    assert hung.began.acquire(timeout=60)
    patient = pool.submit(worker(hung, server).read, entry(1))
    until_joined(server)
    monkeypatch.setattr("millrace.worker.source_cache.WAIT_S", 0.1)
    assert worker(store, server).read(entry(1)) == bytes_of(entry(1))
    assert patient.result(60) == bytes_of(entry(1)), "though who was to fetch it still tries"
    hung.go.set()
    assert first.result(60) == bytes_of(entry(1))
    assert store.read == {"s3://bucket/1": 1}


def test_a_file_that_changed_is_another_item(serve, worker):
    server, store = serve(), Store()
    one = worker(store, server)
    assert one.read(entry(1, "v1")) != one.read(entry(1, "v2"))
    assert one.read(entry(1, "v2")) == bytes_of(entry(1, "v2"))
    assert store.read == {"s3://bucket/1": 2}


@pytest.mark.parametrize("changes", [{"version": ""}, {"version": 0}, {"stop": -1}, {"stop": 1 << 40}])
def test_what_nobody_would_see_change_or_is_too_large_is_not_kept(changes):
    assert key_of(entry(1)) is not None
    assert key_of(entry(1)._replace(**changes)) is None


def test_what_does_not_fit_is_handed_on_and_not_kept(serve, worker, pool):
    server, store = serve(0), Store()
    one, two = worker(store, server), worker(store, server)
    store.go.clear()
    first = pool.submit(one.read, entry(1))
    assert store.began.acquire(timeout=60)
    second = pool.submit(two.read, entry(1))
    until_joined(server)
    store.go.set()
    assert first.result(60) == second.result(60) == bytes_of(entry(1))
    assert store.read == {"s3://bucket/1": 1}
    assert server.counts.refused == 1


def test_nobody_there_is_no_error(worker):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    store = Store()
    assert worker(store, address).read(entry(1)) == bytes_of(entry(1))
    assert worker(store).read(entry(1)) == bytes_of(entry(1))


def test_keys_are_spread_over_servers_and_stay_where_they_are(serve, worker):
    servers = [serve(name=f"cache-{at}") for at in range(3)]
    store = Store()
    one, two = worker(store, *servers), worker(store, *reversed(servers))
    for reader in (one, two):
        assert [reader.read(entry(number)) for number in range(90)] == [bytes_of(entry(n)) for n in range(90)]
    assert set(store.read.values()) == {1}
    assert all(server.counts.inserted > 10 for server in servers)
    until_inserted(90, *servers)
    before = [server.counts.inserted for server in servers]
    two.cache.use([server.address for server in servers[:2]])
    assert [two.read(entry(number)) for number in range(90)] == [bytes_of(entry(n)) for n in range(90)]
    until_inserted(90 + before[2], *servers)
    assert sum(store.read.values()) == 90 + before[2], "what was the third one's, and nothing else"


def test_each_tenant_has_names_of_its_own_and_equal_bytes_are_kept_once(serve):
    keys = {b"ours": b"1" * 32, b"theirs": b"2" * 32}
    server = serve(key_of=keys.__getitem__)

    def open_for(tenant: bytes) -> DataConnection:
        from millrace.wire.data.data_keys import Credential

        return open_data_connection(server.address, local=False, sockets=1, credential=Credential(keys[tenant], tenant))

    data = os.urandom(1000)
    name = msg.NAME + hashlib.sha256(b"name").digest()
    content = msg.CONTENT + hashlib.sha256(data).digest()
    with open_for(b"ours") as ours, open_for(b"theirs") as theirs:
        ours.send(msg.AskItems([1], [name]))
        assert ours.receive(msg.CACHE_ANSWER)[0] == msg.FetchItems([1])
        ours.send(msg.InsertItem(name), [data])
        ours.send(msg.AskItems([2], [name]))
        header, payload = ours.receive(msg.CACHE_ANSWER)
        assert (header, bytes(payload)[: len(data)]) == (msg.FoundItems([2], [1000]), data)
        theirs.send(msg.AskItems([1], [name]))
        assert theirs.receive(msg.CACHE_ANSWER)[0] == msg.FetchItems([1]), "the name is another one's"
        theirs.send(msg.AskItems([2], [content]))
        assert theirs.receive(msg.CACHE_ANSWER)[0] == msg.FoundItems([2], [1000]), "who knows the hash knows the data"
        theirs.send(msg.InsertItem(name), [data])
        theirs.send(msg.AskItems([3], [name]))
        assert theirs.receive(msg.CACHE_ANSWER)[0] == msg.FoundItems([3], [1000])
    assert server._store.totals == (1, 1000)


def test_wrong_bytes_under_a_hash_are_not_seen_and_who_waits_reads_them_anew(serve):
    server = serve()
    content = msg.CONTENT + hashlib.sha256(b"right").digest()
    with connect(server.address) as liar, connect(server.address) as other:
        liar.send(msg.AskItems([1], [content]))
        assert liar.receive(msg.CACHE_ANSWER)[0] == msg.FetchItems([1])
        other.send(msg.AskItems([1], [content]))
        until_joined(server)
        liar.send(msg.InsertItem(content), [b"wrong"])
        assert other.receive(msg.CACHE_ANSWER)[0] == msg.FetchItems([1])
        other.send(msg.InsertItem(content), [b"right"])
        liar.send(msg.AskItems([2], [content]))
        header, payload = liar.receive(msg.CACHE_ANSWER)
        assert (header, bytes(payload)[:5]) == (msg.FoundItems([2], [5]), b"right")
    until_inserted(1, server)
    assert server.counts.wrong == 1


def test_copies_with_a_digest_share_all_items_and_bytes_that_are_not_the_digests_are_not_kept(serve, worker):
    server, store = serve(), Store()
    content = hashlib.sha256(bytes_of(entry(1))).digest()
    one = worker(store, server)
    assert one.read(entry(1)._replace(content=content)) == bytes_of(entry(1))
    copy = Entry("gs://other/copy", 0, ITEM, "", ITEM, content)
    assert worker(store, server).read(copy) == bytes_of(entry(1))
    assert store.read == {"s3://bucket/1": 1}
    wrong = entry(2)._replace(content=hashlib.sha256(b"something else").digest())
    assert one.read(wrong) == bytes_of(entry(2)), "the source compares it, and complains"
    assert one.read(wrong) == bytes_of(entry(2))
    assert store.read["s3://bucket/2"] == 2


@pytest.mark.parametrize(
    "said",
    [
        (msg.FoundItems([1], [10**9]), b"short"),
        (msg.FoundItems([1], [-5]), b"short"),
        (msg.FoundItems([1, 2], [5]), b"short"),
        (msg.FoundItems([1], [5]), b"short"),
        (msg.FoundItems([7, 8, 9], [0, 0, 0]), b""),
    ],
)
def test_a_server_that_lies_is_done_without_or_believed_no_more_than_a_read_of_that_length(worker, said):
    """Whoever is asked for an entry and gives other bytes than it has: the store is asked."""

    def lie(connection: DataConnection) -> None:
        connection.receive(msg.CACHE_REQUEST)
        connection.send(said[0], [said[1]])
        with pytest.raises(ServiceUnreachableError):
            while True:  # it may be asked whether it lives
                connection.receive(msg.CACHE_REQUEST)

    store = Store()
    with DataServer("127.0.0.1", lie) as liar:
        one = worker(store, liar.address)
        ended = threading.Timer(1.0, liar.close)
        ended.start()
        assert one.read(entry(1)) == bytes_of(entry(1))
        ended.join()
    assert store.read == {"s3://bucket/1": 1}


def test_other_bytes_under_a_hash_are_read_from_the_store_instead(worker, caplog):
    """With a digest the hash is known: a server that lies poisons nothing, and is not taken for a file that changed."""
    wanted = [entry(n)._replace(content=hashlib.sha256(bytes_of(entry(n))).digest()) for n in (1, 2)]

    def lie(connection: DataConnection) -> None:
        with contextlib.suppress(ServiceUnreachableError):
            while True:
                asked, _ = connection.receive(msg.CACHE_REQUEST)
                if isinstance(asked, msg.AskItems):
                    said = [b"!" * each.bytes for each in wanted][: len(asked.numbers)]
                    connection.send(msg.FoundItems(asked.numbers, [len(each) for each in said]), said)

    store = Store()
    with DataServer("127.0.0.1", lie) as liar:
        one = worker(store, liar.address)
        for each in wanted:
            assert one.read(each) == bytes_of(each)
    assert store.read == {"s3://bucket/1": 1, "s3://bucket/2": 1}
    assert caplog.text.count("gave bytes whose hash is not the one that it was asked for") == 1


@pytest.mark.parametrize(
    "message",
    [
        msg.AskItems([1, 2], [msg.NAME + bytes(32)]),
        msg.AskItems([1], [b"n"]),
        msg.AskItems([1], [b"x" + bytes(32)]),
        msg.InsertItem(b""),
        msg.ReleaseItem(b"n" * 40),
        msg.AskItems(list(range(5000)), [msg.NAME + at.to_bytes(32, "big") for at in range(5000)]),
    ],
)
def test_nonsense_ends_the_connection_and_nothing_else(serve, worker, message):
    server, store = serve(), Store()
    with connect(server.address) as peer:
        peer.send(message)
        with pytest.raises(Exception, match="lost the connection"):
            while True:
                peer.receive(msg.CACHE_ANSWER)
    assert worker(store, server).read(entry(1)) == bytes_of(entry(1))


def test_who_asks_and_does_not_listen_is_cut_off_and_others_are_served(serve, worker):
    server, store = serve(), Store()
    one = worker(store, server)
    large = Entry("s3://bucket/large", 0, 8 << 20, "v1", 8 << 20)
    one.read(large)
    key = key_of(large)
    assert key is not None
    with connect(server.address) as deaf, pytest.raises(Exception, match="lost the connection"):
        for number in range(1, 10_000):
            deaf.send(msg.AskItems([number], [key]))
        while True:
            deaf.receive(msg.CACHE_ANSWER)
    assert one.read(large) == bytes_of(large)


_SERVER = """
import sys, time
from millrace.cache_server.item_store import ItemStore
from millrace.cache_server.item_server import ItemServer
store = ItemStore(sys.argv[1], 64 << 20, time.monotonic)
server = ItemServer(sys.argv[3], store, port=int(sys.argv[2]))
print(server.address, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def process(folder, port: int = 0):
    command = [sys.executable, "-c", _SERVER, str(folder), str(port), OWN_HOST]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield running, running.stdout.readline().strip()
        finally:
            running.kill()


def test_a_server_that_is_killed_is_done_without_and_found_again_with_what_it_had(tmp_path, worker, pool):
    store = Store()
    with process(tmp_path / "cache") as (server, address):
        one = worker(store, address)
        for number in range(20):
            assert one.read(entry(number)) == bytes_of(entry(number))
        other = worker(store, address)
        for number in range(20):  # what one has read is on its way to the server as it goes on
            assert other.read(entry(number)) == bytes_of(entry(number))
        store.go.clear()
        waiting = pool.submit(one.read, entry(99))
        for _ in range(21):
            assert store.began.acquire(timeout=60)
        server.kill()
        server.wait()
        store.go.set()
        assert waiting.result(60) == bytes_of(entry(99))
        for number in range(20):
            assert one.read(entry(number)) == bytes_of(entry(number))
        assert sum(store.read.values()) == 41
    with process(tmp_path / "cache", int(address.rpartition(":")[2])):
        two = worker(store, address)
        for number in range(20):
            assert two.read(entry(number)) == bytes_of(entry(number))
        assert sum(store.read.values()) == 41, "it had kept them"


def test_a_server_that_hangs_is_done_without(tmp_path, worker, pool, monkeypatch):
    monkeypatch.setattr("millrace.worker.source_cache.PING_S", 0.1)
    monkeypatch.setattr("millrace.worker.source_cache.SILENT_S", 0.5)
    store = Store()
    with process(tmp_path / "cache") as (server, address):
        one = worker(store, address)
        one.read(entry(1))
        server.send_signal(signal.SIGSTOP)
        os.waitpid(server.pid, os.WUNTRACED)
        assert pool.submit(one.read, entry(1)).result(60) == bytes_of(entry(1))
        assert store.read == {"s3://bucket/1": 2}


def test_a_server_that_hangs_while_items_are_sent_to_it_is_done_without(tmp_path, worker, pool, monkeypatch):
    for name, value in {"PING_S": 0.1, "SILENT_S": 0.5, "LEAST_RATE": 64 << 20, "_UNSENT_BYTES": 1 << 20}.items():
        monkeypatch.setattr(f"millrace.worker.source_cache.{name}", value)
    store = Store()
    large = [Entry(f"s3://bucket/{number}", 0, 16 << 20, "v1", 16 << 20) for number in range(3)]
    with process(tmp_path / "cache") as (server, address):
        one = worker(store, address)
        store.go.clear()
        reads = [pool.submit(one.read, each) for each in large]
        for _ in reads:
            assert store.began.acquire(timeout=60)
        server.send_signal(signal.SIGSTOP)
        os.waitpid(server.pid, os.WUNTRACED)
        store.go.set()
        assert [each.result(60) for each in reads] == [bytes_of(each) for each in large]
        assert one.read(large[0]) == bytes_of(large[0])


def test_a_server_that_is_waited_for_long_and_lives_is_not_given_up(serve, worker, pool, monkeypatch):
    monkeypatch.setattr("millrace.worker.source_cache.PING_S", 0.05)
    monkeypatch.setattr("millrace.worker.source_cache.SILENT_S", 2.0)
    server, slow, store = serve(), Store(), Store()
    slow.go.clear()
    first = pool.submit(worker(slow, server).read, entry(1))
    assert slow.began.acquire(timeout=60)
    second = pool.submit(worker(store, server).read, entry(1))
    with pytest.raises(TimeoutError):
        second.result(3.0)
    slow.go.set()
    assert first.result(60) == second.result(60) == bytes_of(entry(1))
    assert not store.read


def test_a_dispatcher_does_not_begin_with_a_folder_that_no_cache_server_can_use(tmp_path):
    def said(folder: str) -> str:
        command = [sys.executable, "-m", "millrace", "dispatcher", "--port", "0", "--source-cache", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        return done.stderr

    (tmp_path / "file").touch()
    assert said(str(tmp_path / "file")).endswith("file: File exists; name another folder for the cache\n")


def test_a_folder_may_be_in_use_yet_as_a_dispatcher_begins_again(tmp_path):
    used = str(tmp_path / "used")
    with contextlib.closing(ItemStore(used, 1 << 20, time.monotonic)):
        check_folder(used)  # the cache server of the dispatcher before is about to end
        with pytest.raises(CacheError, match=r"used: give this one a folder of its own$"):
            ItemStore(used, 1 << 20, time.monotonic)
