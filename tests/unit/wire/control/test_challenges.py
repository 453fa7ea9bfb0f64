"""Proofs that both ends know a token, and what does not pass for one."""

from __future__ import annotations

import msgspec
import pytest

from millrace.errors import AuthenticationError, ProtocolError, ServiceUnreachableError
from millrace.protocol.caller import ADMINISTRATOR
from millrace.wire.auth import OWN, Identity
from millrace.wire.control import challenges
from millrace.wire.control.challenges import (
    PROOF,
    WINDOW,
    Challenge,
    Challenged,
    Challenges,
    Proof,
    Prover,
    StaleChallengeError,
    read_proof,
)
from millrace.wire.token_keys import TokenHolder, keys_of
from millrace.wire.token_registry import TokenEntry

TOKEN = "mr_token"
ENTRY = TokenEntry(keys_of(TOKEN), ADMINISTRATOR)


def service() -> Challenges:
    return Challenges({ENTRY.keys.name: ENTRY}.get)


def let_in(there: Challenges, token: str = TOKEN) -> Prover:
    prover = Prover(token)
    asked = prover.ask()
    prover.accept(asked, there.answer(asked))
    return prover


def proof(prover: Prover, method: str = "a") -> Proof:
    return read_proof(dict(prover.headers(method)))


def test_both_ends_know_the_token_and_neither_says_it():
    there, prover = service(), Prover(TOKEN)
    asked = prover.ask()
    assert prover.headers("a") == ()
    answer = there.answer(asked)
    prover.accept(asked, answer)
    assert prover.challenged
    for method in ("a", "b"):
        headers = prover.headers(method)
        entry, answered = there.check(method, OWN, read_proof(dict(headers)))
        assert entry is ENTRY
        prover.check(headers, answered)
        said = msgspec.msgpack.encode((asked, answer, headers, answered))
        for secret in (TOKEN.encode(), *ENTRY.keys):
            assert secret not in said


def test_a_proof_is_taken_once_and_for_its_call_alone():
    there = service()
    prover = let_in(there)
    shown = [proof(prover) for _ in range(4)]
    for late in (3, 0, 2, 1):  # threads send as they come to it
        there.check("a", OWN, shown[late])
        with pytest.raises(StaleChallengeError, match="came twice") as caught:
            there.check("a", OWN, shown[late])
        assert caught.value.repeated
    for method, identity in (("b", OWN), ("a", Identity(99))):
        with pytest.raises(AuthenticationError, match="refused the token"):
            there.check(method, identity, proof(prover))


def test_calls_that_never_come_hold_no_memory():
    counts = challenges._Counts()
    assert all(counts.take(count) for count in range(1, 10 * WINDOW, 2))
    assert len(counts._above) <= WINDOW
    assert not counts.take(0)  # too late to know
    assert counts.take(10 * WINDOW)


def test_who_has_another_token_or_none():
    there = service()
    with pytest.raises(AuthenticationError, match="refused the token: MILLRACE_TOKEN or token="):
        let_in(there, "another")
    assert Prover(None).challenged
    with pytest.raises(AuthenticationError, match="demands a token and got none: set MILLRACE_TOKEN or pass token="):
        read_proof(dict(Prover(None).headers("a")))
    with pytest.raises(ProtocolError, match="has no nonce"):
        there.answer(Challenge(ENTRY.keys.name, b""))
    with pytest.raises(ProtocolError, match="the proof of a call is malformed"):
        read_proof({PROOF: b"\xc1"})


def test_who_has_read_the_file_of_tokens_proves_nothing():
    there = service()
    thief = let_in(there)
    holder = TokenHolder("whatever")
    holder.keys = ENTRY.keys
    thief._holder = holder
    with pytest.raises(AuthenticationError, match="refused the token"):
        there.check("a", OWN, proof(thief))


def test_an_impostor_proves_nothing():
    prover = Prover(TOKEN)
    asked = prover.ask()
    before = service().answer(prover.ask())  # heard when somebody else asked
    for answer in (before, Challenged(bytes(40), bytes(32)), Challenged(before.nonce, b"")):
        with pytest.raises(ServiceUnreachableError, match="does not know the token, and was not told it"):
            prover.accept(asked, answer)
    assert not prover.challenged


def test_who_takes_the_port_of_a_service_answers_no_call_for_it():
    there = service()
    prover = let_in(there)
    first, second = prover.headers("a"), prover.headers("a")
    _, heard = there.check("a", OWN, read_proof(dict(first)))
    for answered in (heard, (), ((PROOF, "text"),), second):
        with pytest.raises(ServiceUnreachableError, match="does not know the token"):
            prover.check(second, answered)
    with pytest.raises(AuthenticationError, match="demands a token and got none"):
        Prover(None).check((), heard)


def test_a_service_that_was_started_again_has_callers_ask_again():
    prover = let_in(service())
    with pytest.raises(StaleChallengeError, match="was started again"):
        service().check("a", OWN, proof(prover))
    there = service()
    shown = proof(let_in(there))
    made_up = msgspec.structs.replace(shown, nonce=bytes(len(shown.nonce)))
    with pytest.raises(StaleChallengeError):
        there.check("a", OWN, made_up)


def test_of_very_many_callers_the_one_that_was_silent_longest_asks_again(monkeypatch):
    monkeypatch.setattr(challenges, "MOST", 2)
    there = service()
    provers = [let_in(there) for _ in range(3)]
    first = proof(provers[0])
    there.check("a", OWN, first)
    for prover in provers[1:]:
        there.check("a", OWN, proof(prover))
    for shown in (first, proof(provers[0])):  # what it has said cannot be said again, either
        with pytest.raises(StaleChallengeError, match="forgotten this process"):
            there.check("a", OWN, shown)
    for prover in provers[1:]:
        assert there.check("a", OWN, proof(prover))[0] is ENTRY
