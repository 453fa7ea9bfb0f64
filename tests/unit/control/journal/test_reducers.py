"""Events: each says how it changes the state, and nothing else is needed for a journal to know it."""

from __future__ import annotations

from millrace.control.journal.event import EpochEvent, Event, JobEvent, TaskEvent
from millrace.control.journal.replay import ENTITIES, AnyEvent

BASES = {EpochEvent, Event, JobEvent, TaskEvent}


def test_each_event_changes_the_state_in_a_way_of_its_own():
    kinds = {kind for base in BASES for kind in base.__subclasses__()} - BASES
    assert set(AnyEvent.__args__) == kinds
    assert {kind.__module__ for kind in kinds} == {module.__name__ for module in ENTITIES}
    assert all("apply" in vars(kind) for kind in kinds)


def test_what_is_journalled_is_read_as_it_was_written():
    tags = [kind.__struct_config__.tag for kind in AnyEvent.__args__]
    assert len(set(tags)) == len(tags)
