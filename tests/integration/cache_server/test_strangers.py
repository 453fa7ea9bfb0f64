"""What a tenant learns of a cache server about others: the same answers, by the same work, whatever others have."""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millrace.cache_server.item_server import ItemServer
from millrace.cache_server.item_store import ItemStore
from millrace.protocol import source_cache_messages as msg
from millrace.wire.data.data_connection import DataConnection, open_data_connection
from millrace.wire.data.data_keys import Credential, draw_key, source_key

ITEMS = 200


def data_of(number: int) -> bytes:
    return hashlib.shake_128(f"item {number}".encode()).digest(100)


def name_of(number: int) -> bytes:
    return msg.NAME + hashlib.sha256(f"place {number}".encode()).digest()


def hash_of(number: int) -> bytes:
    return msg.CONTENT + hashlib.sha256(data_of(number)).digest()


@dataclass
class Tenant:
    """A tenant's connection, which asks for one thing at a time."""

    connection: DataConnection
    number: int = field(default=0)

    def ask(self, key: bytes) -> bytes | None:
        """The item; None: it is to be fetched."""
        self.number += 1
        self.connection.send(msg.AskItems([self.number], [key]))
        header, payload = self.connection.receive(msg.CACHE_ANSWER)
        assert header.numbers == [self.number]
        return bytes(payload)[: header.sizes[0]] if isinstance(header, msg.FoundItems) else None

    def say(self, message: msg.CacheRequest, data: bytes = b"") -> None:
        """Send something, and wait until it was heard."""
        self.connection.send(message, [data] if data else [])
        self.connection.send(msg.AskItems([], []))
        assert self.connection.receive(msg.CACHE_ANSWER)[0] == msg.FoundItems([0], [0])


@dataclass
class Steps:
    """Counts what the index of a store does: every instruction of its virtual machine."""

    count: int = 0

    def step(self) -> int:
        self.count += 1
        return 0


@dataclass
class Served:
    server: ItemServer
    steps: Steps
    open: Callable[[str], Tenant]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server that has items of tenant "owner" under their names."""
    secret = draw_key()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(ItemStore(str(tmp_path / "cache"), 64 << 20, time.monotonic)))
        steps = Steps()
        store._base.set_progress_handler(steps.step, 1)
        server = ItemServer("127.0.0.1", store, key_of=lambda tenant: source_key(secret, tenant))
        stack.callback(server.close)

        def open_for(tenant: str) -> Tenant:
            credential = Credential(source_key(secret, tenant.encode()), tenant.encode())
            opened = open_data_connection(server.address, local=False, sockets=1, credential=credential)
            return Tenant(stack.enter_context(opened))

        owner = open_for("owner")
        for number in range(ITEMS):
            owner.say(msg.InsertItem(name_of(number)), data_of(number))
        yield Served(server, steps, open_for)


def kept_name_of(tenant: bytes, number: int) -> bytes:
    """The owner's name as it is in the server's index, as a key."""
    return msg.NAME + hashlib.sha256(len(tenant).to_bytes(4, "big") + tenant + name_of(number)[1:]).digest()


GUESSES: dict[str, Callable[[int], bytes]] = {
    "a name that the owner has": name_of,
    "the name as it is kept": lambda number: kept_name_of(b"owner", number),
    "the name as it would be kept for somebody else": lambda number: kept_name_of(b"stranger", number),
    "the hash as a name": lambda number: msg.NAME + hash_of(number)[1:],
    "the name as a hash": lambda number: msg.CONTENT + name_of(number)[1:],
    "half of a hash": lambda number: hash_of(number)[:17] + os.urandom(16),
    "a hash but for one bit": lambda number: hash_of(number)[:-1] + bytes([hash_of(number)[-1] ^ 1]),
}


@pytest.mark.parametrize("guess", GUESSES)
def test_what_others_have_is_answered_as_what_nobody_has_and_by_the_same_work(served: Served, guess: str):
    owner, stranger = served.open("owner"), served.open("stranger")

    def work(key: bytes) -> tuple[bytes | None, int]:
        before = served.steps.count
        answer = stranger.ask(key)
        steps = served.steps.count - before
        stranger.say(msg.ReleaseItem(key))
        return answer, steps

    for number in range(0, ITEMS, 10):
        assert owner.ask(name_of(number)) == data_of(number), "it is there, and was just read"
        key = GUESSES[guess](number)
        nobodys = key[:1] + os.urandom(32)
        answer, steps = work(key)
        assert answer is None
        assert (answer, steps) == work(nobodys)
        assert steps > 0, "the index was asked"
    misses = served.server.counts.misses
    assert misses == 2 * ITEMS // 10, "each look counts as one for what is missing"


def test_the_work_for_what_is_there_is_told_apart(served: Served):
    """Otherwise the test above would find nothing."""
    stranger = served.open("stranger")
    stranger.say(msg.InsertItem(name_of(5)), data_of(5))
    before = served.steps.count
    assert stranger.ask(name_of(5)) == data_of(5)
    found, before = served.steps.count - before, served.steps.count
    assert stranger.ask(name_of(6)) is None
    assert served.steps.count - before != found


def test_who_knows_a_hash_has_the_item_by_intention(served: Served):
    assert served.open("stranger").ask(hash_of(3)) == data_of(3)


def test_what_another_tenant_fetches_is_neither_waited_for_nor_given(served: Served):
    owner, stranger = served.open("owner"), served.open("stranger")
    name, data = name_of(ITEMS), data_of(ITEMS)
    assert owner.ask(name) is None
    assert stranger.ask(name) is None, "it is not told to wait"
    counts = served.server.counts
    assert (counts.joined, counts.misses) == (0, 2)
    stranger.say(msg.ReleaseItem(name))
    assert served.server.counts.passed_on == 0, "the owner's claim is its own"
    assert stranger.ask(name) is None
    owner.say(msg.InsertItem(name), data)
    assert stranger.number == 2, "nothing was sent for the owner's insert, or this would not be the answer:"
    assert stranger.ask(name_of(ITEMS + 1)) is None
    stranger.say(msg.InsertItem(name), b"its own")
    assert (stranger.ask(name), owner.ask(name)) == (b"its own", data)


def test_who_guesses_half_of_a_hash_that_is_fetched_is_not_told_to_wait(served: Served):
    owner, stranger = served.open("owner"), served.open("stranger")
    assert owner.ask(hash_of(ITEMS)) is None
    assert stranger.ask(hash_of(ITEMS)[:17] + os.urandom(16)) is None
    assert served.server.counts.joined == 0
