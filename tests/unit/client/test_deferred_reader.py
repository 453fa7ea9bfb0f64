"""An iterator whose epoch begins late, or which waits for the state of its rank, can be asked what any other can."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from millrace.client.deferred_reader import DeferredReader
from millrace.client.epoch_iterator import EpochIterator
from millrace.errors import StateError
from millrace.planning.checkpoint import Checkpoint

FRESH = Checkpoint(seed=3, epoch=2, graph="")


def nobody_loads(state: Any) -> NoReturn:
    pytest.fail("nobody loads")


def refuse() -> NoReturn:
    raise StateError("load the state")


def reader_of(*, untouched: bool = True, over: bool = False) -> Any:
    progress = SimpleNamespace(untouched=untouched, current=iter(()))
    return SimpleNamespace(number=1, progress=progress, checkpoint=lambda: FRESH, over=over, close=lambda: None)


def test_one_that_waits_for_its_state_has_all_that_iterators_have() -> None:
    iterator = EpochIterator(DeferredReader(nobody_loads, awaits=StateError("load the state"), fresh=FRESH))
    assert (iterator.state_dict()["epoch"], iterator.skipped) == (2, 0)
    for _ in range(2):
        with pytest.raises(StateError, match="load the state"):
            next(iterator)
    iterator.close()
    assert list(iterator) == []


def test_one_that_was_not_asked_yet_hands_its_epoch_over_and_begins_another_one_later() -> None:
    reader = reader_of()
    first = DeferredReader(nobody_loads, reader=reader)
    assert first.hand_over(refuse, FRESH) is reader
    assert first.number == 2
    with pytest.raises(StateError, match="load the state"):
        first.advance()
    assert first.hand_over(refuse, FRESH) is None


@pytest.mark.parametrize("reader", [reader_of(untouched=False), reader_of(over=True)], ids=["asked", "closed"])
def test_one_that_was_asked_or_closed_keeps_its_epoch(reader: Any) -> None:
    first = DeferredReader(nobody_loads, reader=reader)
    assert first.hand_over(refuse, FRESH) is None
    assert first.number == 1
