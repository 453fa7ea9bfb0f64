"""Claims of a cache server: each missing item has one owner, who changes when it goes, fails or takes too long."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millrace.cache_server.item_claims import Asker, ItemClaims

A, B = b"a", b"b"


def test_the_first_one_fetches_and_the_others_wait():
    claims = ItemClaims(30.0)
    assert claims.ask(A, Asker("one", 1), 0.0)
    assert not claims.ask(A, Asker("two", 1), 0.0)
    assert not claims.ask(A, Asker("three", 7), 0.0)
    assert claims.ask(B, Asker("two", 2), 0.0)
    assert claims.inserted(A) == [Asker("two", 1), Asker("three", 7)]
    assert claims.inserted(A) == []
    assert len(claims) == 1


def test_who_fails_leaves_it_to_who_waits_longest():
    claims = ItemClaims(30.0)
    claims.ask(A, Asker("one", 1), 0.0)
    claims.ask(A, Asker("two", 1), 1.0)
    claims.ask(A, Asker("three", 1), 2.0)
    assert claims.release(A, "two", 3.0) is None, "it isn't the one who fetches"
    assert claims.release(A, "one", 3.0) == Asker("two", 1)
    assert claims.release(A, "one", 3.0) is None
    assert claims.inserted(A) == [Asker("three", 1)]


def test_who_goes_leaves_what_it_fetches_and_waits_for_no_more():
    claims = ItemClaims(30.0)
    claims.ask(A, Asker("one", 1), 0.0)
    claims.ask(A, Asker("two", 1), 0.0)
    claims.ask(B, Asker("two", 2), 0.0)
    claims.ask(B, Asker("one", 2), 0.0)
    assert claims.leave("one", 1.0) == [Asker("two", 1)]
    assert claims.inserted(B) == []
    assert claims.inserted(A) == []
    assert claims.leave("two", 2.0) == []


def test_a_claim_that_takes_too_long_passes_on_once():
    claims = ItemClaims(30.0)
    claims.ask(A, Asker("one", 1), 0.0)
    claims.ask(B, Asker("one", 2), 10.0)
    claims.ask(A, Asker("two", 1), 20.0)
    assert claims.next_expiry == 30.0
    assert claims.expire(29.0) == []
    assert claims.expire(30.0) == [Asker("two", 1)]
    assert claims.expire(39.0) == []
    assert claims.next_expiry == 40.0
    assert claims.expire(40.0) == [], "nobody waits for it: whoever asks next fetches"
    assert claims.ask(B, Asker("three", 1), 41.0)
    assert claims.next_expiry == 60.0


@given(st.integers(1, 40))
def test_a_peer_is_charged_for_what_it_waits_for(count: int):
    claims = ItemClaims(30.0)
    for number in range(count):
        claims.ask(bytes([number]), Asker("one", number), 0.0)
        claims.ask(bytes([number]), Asker("two", number), 0.0)
    assert claims.asked_by("two") == count
    claims.leave("one", 1.0)
    assert (claims.asked_by("one"), claims.asked_by("two")) == (0, count)
    for number in range(count):
        claims.inserted(bytes([number]))
    assert claims.asked_by("two") == 0


def test_a_peer_that_asks_for_one_thing_again_and_again_is_charged_each_time():
    claims = ItemClaims(30.0)
    for number in range(10):
        claims.ask(A, Asker("one", number), 0.0)
    assert claims.asked_by("one") == 10
    assert claims.expire(30.0) == [Asker("one", 1)]
    assert claims.asked_by("one") == 9


class ClaimsBesideAModel(RuleBasedStateMachine):
    """Whatever happens: who asks is told once to fetch or is given the item, unless it has gone; none is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = ItemClaims(10.0)
        self.now = 0.0
        self.number = 0
        self.waiting: dict[bytes, list[Asker]] = defaultdict(list)
        self.fetching: dict[bytes, Asker] = {}
        self.key_of: dict[Asker, bytes] = {}

    keys = st.sampled_from([b"1", b"2", b"3"])
    peers = st.sampled_from(["x", "y", "z"])

    def told_to_fetch(self, askers: list[Asker]) -> None:
        for asker in askers:
            key = self.key_of[asker]
            assert asker == self.waiting[key].pop(0)
            self.fetching[key] = asker

    @rule(key=keys, peer=peers)
    def ask(self, key: bytes, peer: str) -> None:
        self.number += 1
        asker = Asker(peer, self.number)
        self.key_of[asker] = key
        mine = self.claims.ask(key, asker, self.now)
        assert mine == (key not in self.fetching)
        if mine:
            self.fetching[key] = asker
        else:
            self.waiting[key].append(asker)

    @invariant()
    def each_peer_is_charged_for_its_questions(self) -> None:
        asked = [*self.fetching.values(), *(asker for waiting in self.waiting.values() for asker in waiting)]
        for peer in "xyz":
            assert self.claims.asked_by(peer) == sum(asker.peer == peer for asker in asked)

    @rule(key=keys)
    def insert(self, key: bytes) -> None:
        assert self.claims.inserted(key) == self.waiting.pop(key, [])
        self.fetching.pop(key, None)

    @rule(key=keys, peer=peers)
    def release(self, key: bytes, peer: str) -> None:
        mine = key in self.fetching and self.fetching[key].peer == peer
        heir = self.claims.release(key, peer, self.now)
        if mine:
            del self.fetching[key]
        assert heir is None or mine
        self.told_to_fetch([] if heir is None else [heir])

    @rule(peer=peers)
    def leave(self, peer: str) -> None:
        for key in list(self.waiting):
            self.waiting[key] = [asker for asker in self.waiting[key] if asker.peer != peer]
        for key in [key for key, owner in self.fetching.items() if owner.peer == peer]:
            del self.fetching[key]
        self.told_to_fetch(self.claims.leave(peer, self.now))

    @rule(seconds=st.floats(0.0, 12.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        before = dict(self.fetching)
        heirs = self.claims.expire(self.now)
        for key in before:
            if not self.waiting[key] and self.claims_has_not(key):
                del self.fetching[key]
        self.told_to_fetch(heirs)

    def claims_has_not(self, key: bytes) -> bool:
        return key not in self.claims._claims

    @invariant()
    def nobody_waits_for_what_nobody_fetches(self) -> None:
        assert all(key in self.fetching for key, askers in self.waiting.items() if askers)
        assert len(self.claims) == len(self.fetching)


TestClaimsBesideAModel = ClaimsBesideAModel.TestCase
