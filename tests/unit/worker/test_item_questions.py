"""Questions to a cache server: each has one answer, and what comes after it."""

import pytest

from millrace.errors import ProtocolError
from millrace.protocol import source_cache_messages as msg
from millrace.worker.item_questions import FETCH, ItemQuestions, NextStep, next_step


def test_answers_come_in_any_order_and_once():
    questions = ItemQuestions[str](4.0, 10.0)
    assert [questions.ask(who, 0.0) for who in ("one", "two", "three")] == [1, 2, 3]
    assert questions.heard(msg.FoundItems([3, 1], [2, 3]), memoryview(b"abcde"), 1.0) == [
        ("three", b"ab"),
        ("one", b"cde"),
    ]
    assert questions.heard(msg.FetchItems([2, 1]), memoryview(b""), 1.0) == [("two", FETCH)]
    assert not questions.owed


def test_who_waits_no_more_gets_no_answer_and_bytes_stay_in_step():
    questions = ItemQuestions[str](4.0, 10.0)
    questions.ask("one", 0.0)
    questions.ask("two", 0.0)
    assert questions.forget(1)
    assert not questions.forget(1)
    assert questions.heard(msg.FoundItems([1, 2], [2, 3]), memoryview(b"abcde"), 1.0) == [("two", b"cde")]
    assert questions.end() == []


def test_a_server_is_silent_that_owes_an_answer_and_says_nothing():
    questions = ItemQuestions[str](4.0, 10.0)
    assert not questions.is_silent(100.0)
    questions.ask("one", 100.0)
    assert not questions.is_silent(104.0)
    assert questions.is_silent(104.1)
    assert questions.heard(msg.FoundItems([0], [0]), memoryview(b""), 104.1) == [], "it lives"
    questions.ask("two", 107.0)
    assert questions.is_silent(108.2), "another question is no word of the server"
    assert questions.end() == ["one", "two"]
    assert not questions.is_silent(200.0)


def test_a_server_is_not_silent_while_an_item_may_be_on_its_way():
    questions = ItemQuestions[str](4.0, 10.0)
    questions.ask("one", 100.0)
    questions.moves(50, 101.0)
    assert not questions.is_silent(110.0)
    assert questions.is_silent(110.1)
    assert questions.heard(msg.FoundItems([1], [2]), memoryview(b"ab"), 103.0) == [("one", b"ab")]
    questions.ask("two", 103.0)
    assert questions.is_silent(107.1), "the item came before it had to"


def test_a_server_is_silent_that_takes_in_nothing_of_an_item():
    questions = ItemQuestions[str](4.0, 10.0)
    questions.sends(20, 100.0)
    questions.ask("one", 105.0)
    assert not questions.is_silent(106.0)
    assert questions.is_silent(106.1)
    questions.sent()
    assert questions.end() == ["one"]
    questions.ask("two", 200.0)
    assert not questions.is_silent(204.0)


@pytest.mark.parametrize("sizes", [[3], [1, 1], [-1]])
def test_sizes_are_those_of_the_payload(sizes):
    questions = ItemQuestions[str](4.0, 10.0)
    questions.ask("one", 0.0)
    with pytest.raises(ProtocolError, match="1 items came with 2 bytes"):
        questions.heard(msg.FoundItems([1], sizes), memoryview(b"ab"), 0.0)


def test_what_comes_after_an_answer():
    assert next_step(b"abc", 3) is NextStep.USE
    assert next_step(b"abc", 4) is NextStep.FETCH
    assert next_step(None, 3) is NextStep.FETCH
    assert next_step(FETCH, 3) is NextStep.FETCH_FOR_ALL
