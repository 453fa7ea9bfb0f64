"""Where a run with care says that it is."""

from typing import Any, cast

from millrace.elements.chunk import Origin
from millrace.protocol.messages import FromWorker, LeaseTask, TaskAt, TaskRef
from millrace.worker.consumer_lane import Lane
from millrace.worker.job_lock import Gate
from millrace.worker.probe_reporter import ALONE, Steps

MAP = (1, 0, 0, 0, 17, 0)


class Listener:
    """Stands for a lane: the dispatcher answers at once."""

    def __init__(self) -> None:
        self.said: list[tuple[int, ...]] = []

    def announce(self, message: TaskAt, tell: Any) -> None:
        self.said.append(message.place)

    def tell(self, message: FromWorker) -> None:
        assert isinstance(message, TaskAt)
        self.said.append(message.place)

    def check(self) -> None:
        pass


def run(*, waits):
    """Where a run says that it is: two steps within each of two outputs."""
    listener = Listener()
    lease = LeaseTask(TaskRef("job", 0, 3), 1, 0, care=ALONE)
    steps = Steps(cast("Lane", listener), lease, listener.tell, Gate())
    with steps.running() as watch:
        assert watch is not None
        for outputs in range(2):
            for position in range(2):
                with watch.at(1, Origin(0, 0, 0), 2 * outputs + position, lambda: "map(f) of an element"):
                    pass
            steps.outputs = outputs + 1
            if waits:
                with steps.waiting():
                    pass
    return listener.said


def test_between_any_two_steps_is_a_place_of_its_own():
    said = run(waits=False)
    assert len(set(said)) == len(said)


def test_a_place_is_the_same_however_often_the_run_waited_for_its_consumer():
    said, waited = run(waits=False), run(waits=True)
    assert () in waited
    assert set(said) < set(waited)
    assert len([place for place in waited if place]) == len(said) + 2
