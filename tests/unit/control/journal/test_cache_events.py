"""Points of which nothing is kept, and uses by jobs that are long over, are forgotten."""

from millrace.control.journal.cache_events import BlocksPublished, PointsForgotten, PointUsed
from millrace.control.journal.job_events import JobCreated, JobRemoved
from millrace.control.journal.replay import apply
from millrace.control.state.cache_state import USES
from millrace.control.state.settings import Settings
from millrace.control.state.state import State
from millrace.protocol.cache_messages import KeptBlock
from millrace.protocol.job_spec import JobSpec


def begin(state, name, *places):
    apply(state, JobCreated(JobSpec(name, b"", "b"), 0, "digest", anonymous=True, at=0.0))
    for place in places:
        apply(state, PointUsed(name, place, 0.0, 0.5, "map", 10 << 30, "default"))


def test_a_point_that_keeps_nothing_is_of_no_use_after_the_last_job_that_reads_it():
    state = State(Settings(cache="cache", cache_bytes=1 << 30))
    begin(state, "a", "empty", "kept")
    begin(state, "b", "empty")
    apply(state, BlocksPublished("kept", [KeptBlock("block", 100)]))
    apply(state, JobRemoved("a", "it is over", 1.0))
    assert state.caches.unused(state.jobs) == [], "b is about to write there"
    apply(state, JobRemoved("b", "it is over", 2.0))
    assert state.caches.unused(state.jobs) == ["empty"]
    apply(state, PointsForgotten(["empty"]))
    assert state.caches.points.keys() == {"kept"}


def test_of_uses_by_jobs_that_are_over_the_last_stay():
    state = State(Settings(cache="cache", cache_bytes=1 << 30))
    begin(state, "lives", "point")
    for number in range(USES + 50):
        begin(state, f"job-{number}", "point")
        apply(state, JobRemoved(f"job-{number}", "it is over", 1.0))
    uses = state.caches.points["point"].uses
    assert len(uses) == USES
    assert "lives" in uses
    assert f"job-{USES + 49}" in uses
    assert "job-0" not in uses
