"""Weights that a consumer's user sets: asked until they are answered, and in its states before they matter."""

from __future__ import annotations

import pytest
from tests.unit.client.test_consumer_core import ONE, Consumer

from millrace.client import consumer_io as io
from millrace.planning.epoch_shape import WeightChange
from millrace.protocol import messages as msg
from millrace.protocol.weight_messages import SetWeights, WeightsSet

CHANGE, NEXT = WeightChange(4, 20, (1.0, 3.0)), WeightChange(4, 30, (0.0, 1.0))


@pytest.fixture
def consumer() -> Consumer:
    consumer = Consumer()
    consumer.begin()
    return consumer


def saved(consumer: Consumer) -> tuple[WeightChange, ...]:
    assert consumer.core.reading is not None
    return consumer.core.reading.state(consumer.core.spec, 1, "").reweighted


def answer(consumer: Consumer) -> WeightsSet | None:
    return consumer.core.weights.answer


def test_what_was_asked_is_said_again_to_a_dispatcher_that_comes_back_until_it_is_answered(consumer: Consumer) -> None:
    asked = SetWeights(0, (1.0, 3.0), 1)
    assert consumer.said(io.WeightsWanted(0, (1.0, 3.0))) == [asked]
    consumer.handle(io.SessionLost())
    back = consumer.said(msg.JobJoined("job", 1, 7, 2.0, epoch=0, generation=3))
    assert back[-2:] == [msg.BeginEpoch(0), asked]
    consumer.handle(msg.EpochBegun(0, 4, reweighted=(CHANGE,)))
    assert saved(consumer) == (CHANGE,)
    assert answer(consumer) is None
    consumer.handle(WeightsSet(0, (CHANGE,), number=1, element=20))
    assert answer(consumer) == WeightsSet(0, (CHANGE,), number=1, element=20)
    consumer.handle(io.SessionLost())
    assert asked not in consumer.said(msg.JobJoined("job", 1, 7, 2.0, epoch=0, generation=3))


def test_what_others_set_is_in_its_states_before_it_has_anything_behind_it(consumer: Consumer) -> None:
    consumer.handle(WeightsSet(0, (CHANGE,)))
    assert saved(consumer) == (CHANGE,)
    assert answer(consumer) is None
    consumer.handle(WeightsSet(1, (CHANGE, NEXT)))  # of an epoch that it does not read
    assert saved(consumer) == (CHANGE,)
    consumer.handle(WeightsSet(0, (CHANGE, NEXT)))
    assert saved(consumer) == (CHANGE, NEXT)


def test_outputs_of_a_task_that_the_dispatcher_has_not_told_of_are_not_taken(consumer: Consumer) -> None:
    """On this rests that nobody waits until all know: the word about weights comes before the word about the task."""
    consumer.read(0)
    consumer.deliver(1, 0, [10], last=True)
    assert consumer.ask() is None
    consumer.handle(WeightsSet(0, (CHANGE,)))
    consumer.read(1, ONE)
    consumer.deliver(1, 0, [10], last=True)
    assert consumer.take() == [10]


def test_a_refusal_is_an_answer_and_one_to_an_earlier_question_is_none(consumer: Consumer) -> None:
    consumer.handle(io.WeightsWanted(0, (1.0,)))
    consumer.handle(io.WeightsWanted(0, (1.0, 3.0)))  # as Ctrl-C came while the user waited
    consumer.handle(WeightsSet(0, (CHANGE,), number=1, element=20))
    assert answer(consumer) is None
    consumer.handle(WeightsSet(0, number=2, refused="no"))
    assert answer(consumer) == WeightsSet(0, number=2, refused="no")
    assert saved(consumer) == (CHANGE,)
