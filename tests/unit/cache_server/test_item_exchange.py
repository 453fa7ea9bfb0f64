"""Answers of a cache server: what is there, who is to fetch what is missing, and who gets what was inserted."""

import hashlib
from typing import NamedTuple

import pytest

from millrace.cache_server.item_exchange import ItemExchange, checked_key, content_of, examined
from millrace.errors import ProtocolError
from millrace.protocol import source_cache_messages as msg

NAME = msg.NAME + bytes(32)
DATA = memoryview(b"some bytes")
CONTENT = msg.CONTENT + content_of(DATA)


class Item(NamedTuple):
    """Item of a store that is a dict."""

    size: int


class Exchange(ItemExchange[Item]):
    """An exchange, and what its store has."""

    def __init__(self) -> None:
        self.there: dict[bytes, Item] = {}
        super().__init__(lambda *keys: tuple([self.there.get(key) for key in some] for some in keys), 30.0)

    def ask(self, peer, *keys, tenant=b"", now=0.0, first=1):
        return self.asked(peer, tenant, msg.AskItems([*range(first, first + len(keys))], [*keys]), 0, now)

    def insert(self, peer, key, data=DATA, tenant=b"", *, keep=True):
        insert = examined(tenant, key, data, b"")
        kept = Item(data.nbytes) if keep and insert.right else None
        if kept is not None:
            self.there[insert.content] = kept
            if insert.name is not None:
                self.there[insert.name] = kept
        return self.inserted(insert, peer, data, kept, 1.0)


def test_the_first_fetches_others_get_what_it_inserts_and_later_ones_what_is_there():
    exchange = Exchange()
    assert [each.fetch for each in exchange.ask("one", NAME)] == [True]
    assert exchange.ask("two", NAME) == []
    assert exchange.insert("one", NAME) == [("two", 1, Item(10), None)]
    assert exchange.ask("three", NAME, CONTENT) == [("three", 1, Item(10), None), ("three", 2, Item(10), None)]
    expected = {"misses": 1, "joined": 1, "hits": 2, "hit_bytes": 20, "inserted": 1, "inserted_bytes": 10, "refused": 0}
    assert exchange.counts == expected


def test_those_who_wait_get_what_is_not_kept():
    exchange = Exchange()
    exchange.ask("one", NAME)
    exchange.ask("two", NAME)
    assert exchange.insert("one", NAME, keep=False) == [("two", 1, None, b"some bytes")]
    assert exchange.counts["refused"] == 1


def test_a_name_is_its_tenants():
    exchange = Exchange()
    exchange.ask("one", NAME, tenant=b"a")
    exchange.insert("one", NAME, tenant=b"a")
    assert [each.fetch for each in exchange.ask("two", NAME, tenant=b"b")] == [True]
    assert [each.fetch for each in exchange.ask("two", CONTENT, tenant=b"b", first=2)] == [False]


def test_what_is_not_what_its_hash_says_goes_to_nobody_and_the_next_one_fetches():
    exchange = Exchange()
    exchange.ask("one", CONTENT)
    exchange.ask("two", CONTENT)
    ((peer, number, item, data),) = exchange.insert("one", CONTENT, memoryview(b"other bytes"))
    assert (peer, number, item, data) == ("two", 1, None, None)
    assert exchange.counts["wrong"] == exchange.counts["passed_on"] == 1
    assert not exchange.there


def test_who_fails_goes_or_takes_too_long_leaves_it_to_the_next():
    exchange = Exchange()
    for number, peer in enumerate(["one", "two", "three", "four"]):
        exchange.ask(peer, NAME, now=float(number))
    assert exchange.released(NAME, "one", 5.0) == [], "the key has the tenant in it"
    key = checked_key(b"", NAME)
    assert exchange.released(key, "one", 5.0) == [("two", 1, None, None)]
    assert exchange.left("two", 6.0) == [("three", 1, None, None)]
    assert exchange.next_expiry == 36.0
    assert exchange.expired(35.0) == []
    assert exchange.expired(36.0) == [("four", 1, None, None)]


def test_a_question_without_keys_is_answered():
    ((peer, number, item, data),) = Exchange().ask("one")
    assert (peer, number, item, data) == ("one", 0, None, b"")


def test_what_no_peer_may_say_is_refused():
    exchange = Exchange()
    with pytest.raises(ProtocolError, match="2 numbers came for 1 keys"):
        exchange.asked("one", b"", msg.AskItems([1, 2], [NAME]), 0, 0.0)
    with pytest.raises(ProtocolError, match="3 bytes came as the key"):
        exchange.ask("one", b"nop")
    with pytest.raises(ProtocolError, match="33 bytes came as the key"):
        exchange.ask("one", b"x" + bytes(32))
    with pytest.raises(ProtocolError, match="25 bytes came as the label"):
        examined(b"", NAME, DATA, bytes(25))
    many = [msg.NAME + hashlib.sha256(str(number).encode()).digest() for number in range(4000)]
    exchange.ask("one", *many)
    with pytest.raises(ProtocolError, match="more than 4096 questions"):
        exchange.ask("one", *many[:97], first=5000)
    with pytest.raises(ProtocolError, match="more than 4096 questions"):
        exchange.asked("two", b"", msg.AskItems([1], [NAME]), 4096, 0.0)
