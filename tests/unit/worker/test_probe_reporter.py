"""Where a run with care says that it is."""

from millrace.elements.chunk import Origin
from millrace.protocol.messages import LeaseTask, TaskRef
from millrace.worker.core.run_state import PROBED
from millrace.worker.probe_reporter import ProbeReporter


def run(*, waits):
    """Where a run says that it is: two steps within each of two outputs."""
    said: list[tuple[int, ...]] = []
    lease = LeaseTask(TaskRef("job", 0, 3), 1, 0, probe_level=PROBED)
    reporter = ProbeReporter(lease, lambda announce: said.append(announce.place))
    watch = reporter.begin()
    assert watch is not None
    for outputs in range(2):
        for position in range(2):
            with watch.at(1, Origin(0, 0, 0), 2 * outputs + position, lambda: "map(f) of an element"):
                pass
        reporter.outputs = outputs + 1
        if waits:
            said.append(reporter.between()[0])
    return said


def test_between_any_two_steps_is_a_place_of_its_own():
    said = run(waits=False)
    assert len(set(said)) == len(said)


def test_a_place_is_the_same_however_often_the_run_waited_for_its_consumer():
    said, waited = run(waits=False), run(waits=True)
    assert set(said) < set(waited)
    assert len(waited) == len(said) + 2
