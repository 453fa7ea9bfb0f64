"""Events and their reducers: each has one, and nothing else is needed for a journal to know it."""

from __future__ import annotations

from millrace.control.journal.event import REDUCERS, Event
from millrace.control.journal.replay import ENTITIES, AnyEvent


def test_each_event_has_a_reducer_in_its_own_module():
    assert set(REDUCERS) == set(Event.__subclasses__())
    assert {kind.__module__ for kind in REDUCERS} == {module.__name__ for module in ENTITIES}
    assert all(reducer.apply.__module__ == kind.__module__ for kind, reducer in REDUCERS.items())


def test_what_is_journalled_is_read_as_it_was_written():
    assert set(AnyEvent.__args__) == set(REDUCERS)
    tags = [kind.__struct_config__.tag for kind in REDUCERS]
    assert len(set(tags)) == len(tags)
