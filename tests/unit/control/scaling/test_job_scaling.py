"""How many workers jobs and the service are to have, as reports come in."""

from collections import defaultdict
from typing import Any

import pytest
from tests.unit.control.control_driver import GIVEN, FakePlan, Service

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.journal.snapshot import plain
from millrace.control.scaling.job_scaling import counted
from millrace.control.state.observed import Reading
from millrace.protocol import messages as msg
from millrace.protocol.reports import Pace

BEAT_S = 5.0


class Trainer:
    """A consumer that takes an element each ``own_s``, and workers that take ``cost_s`` for one, with what they report.

    Reports are a heartbeat apart; workers come as soon as they are planned, and go when they are told to. They keep
    cores busy for a part of the time in which they compute.

    Attributes:
        ready: elements that lie ready; None: workers don't compute ahead.
        idle: of the workers that came last, so many have not begun yet; ``loading``: they are busy all the same.
        lingers: heartbeats for which a worker that is to leave goes on with what it has begun.
        room: workers that the cluster can hold.
        host: what workers report of their host.
    """

    burns = 1.0
    room = 1 << 30
    queue = 0.0

    def __init__(
        self, own_s: float, cost_s: float, job: str = "a", service: Service | None = None, **spec: Any
    ) -> None:
        self.service = service or begun()
        self.own_s, self.cost_s, self.job = own_s, cost_s, job
        self.ready: float | None = None
        self.idle, self.lingers, self.loading = 0, 0, False
        self.beats, self.told = 0, dict[str, int]()
        self.host: dict[str, Any] = {}
        self.pace = Pace()
        self.busy_s: dict[str, float] = defaultdict(float)
        self.client = f"{job}-reader"
        self.peer = self.service.join(self.client, job, **spec)
        self.job = self.peer.joined.job  # which is another where jobs share
        self.settle()

    @property
    def scaling(self) -> Any:
        return self.service.state.jobs[self.job].scaling

    @property
    def serving(self) -> list[Any]:
        return self.service.state.index.serving.by_job.get(self.job, [])

    def settle(self) -> None:
        """Workers come and go as is planned."""
        self.service.say(inp.Tick())
        for _ in range(100):
            there = self.service.state.index.serving.workers
            if len(there) >= min(self.service.state.fleet.workers, self.room):
                break
            self.service.add_worker(f"w{len(self.service.workers) + 1:03d}x{len(self.service.events)}")
        for worker in list(self.service.workers.values()):
            self.service.plan_tasks(worker)
        for retiring in list(self.service.state.index.serving.draining):  # what it has in hand is done, and read
            if self.beats < self.told.setdefault(retiring.id, self.beats) + self.lingers:
                continue
            worker = self.service.workers[retiring.id]
            for lease in list(worker.leases):
                self.service.finish(worker, lease)
            for _, _, task in list(worker.unread):
                self.service.read(self.peer, task)
        for name in [name for name, worker in self.service.state.workers.items() if worker.released]:
            self.service.kill(name)

    def beat(self, seconds: float = BEAT_S) -> None:
        """A heartbeat's worth of reading, of which these seconds have not passed yet."""
        there = [*self.serving, *(worker for worker in self.service.state.index.serving.draining if worker.unfinished)]
        at_work = there[: len(there) - self.idle]
        coming = BEAT_S * len(at_work) / self.cost_s
        elements = round(min(BEAT_S / self.own_s, coming + (self.ready or 0.0)))
        busy = 1.0
        if self.ready is None:
            busy = min(1.0, BEAT_S / self.own_s / coming)
        else:
            self.ready += coming - elements
        self.beats += 1
        self.service.now += seconds
        read_s = max(BEAT_S, elements * self.own_s)
        pace = self.pace
        self.pace = Pace(pace.elements + elements, pace.read_s + read_s, pace.waited_s + read_s - elements * self.own_s)
        for worker in there:
            works = worker in at_work
            self.busy_s[worker.id] += BEAT_S * busy if works or self.loading else 0.0
            busy_s = self.busy_s[worker.id]
            nodes = [GIVEN] if works else []
            self.service.report(worker.id, busy_s=busy_s, cpu_s=self.burns * busy_s, nodes=nodes, **self.host)
        arrived = self.pace.elements + round(self.ready or 0.0)
        report = msg.ConsumerReport(0, pace=self.pace, arrived=arrived, queue_elements=self.queue)
        self.service.say(inp.ConsumerSaid(self.client, report))
        self.settle()

    def run(self, beats: int = 60) -> list[int]:
        """Numbers of workers, one after the other."""
        found = [len(self.serving)]
        for _ in range(beats):
            self.beat()
            if len(self.serving) != found[-1]:
                found.append(len(self.serving))
        return found


def begun(**settings: Any) -> Service:
    service = Service(FakePlan(None), **{"least_workers": 1, "most_workers": 64, **settings})
    service.say(inp.Started("here:1"))
    return service


def resized(service: Service) -> list[int]:
    return [action.workers for action in service.last if isinstance(action, act.ResizeFleet)]


def test_a_service_begins_with_the_workers_of_a_first_job_and_says_so_to_its_cluster():
    assert resized(begun()) == [1]
    assert resized(begun(first_workers=8)) == [8]
    assert resized(begun(first_workers=8, most_workers=4)) == [4]
    assert resized(begun(first_workers=8, least_workers=4, most_workers=4)) == []  # their number is not its affair


@pytest.mark.parametrize(("own_s", "cost_s", "enough"), [(0.1, 1.0, 10), (0.1, 0.05, 1), (0.05, 1.5, 30)])
def test_a_job_gets_as_many_workers_as_feed_its_consumer(own_s, cost_s, enough):
    trainer = Trainer(own_s, cost_s)
    numbers = trainer.run()
    assert abs(numbers[-1] - enough) <= 1, (numbers, trainer.scaling)
    assert len(numbers) <= 5
    assert trainer.scaling.scale.phase == "settled"
    assert trainer.service.state.fleet.workers == numbers[-1]
    assert "enough" in trainer.scaling.reason


def test_workers_that_are_too_many_leave_in_good_order():
    trainer = Trainer(0.1, 1.0, service=begun(first_workers=40))
    assert len(trainer.serving) == 40
    numbers = trainer.run()
    assert abs(numbers[-1] - 10) <= 1
    assert not trainer.service.state.index.serving.draining
    assert len(trainer.service.state.workers) == numbers[-1]
    assert not [event for event in trainer.service.events if type(event).__name__ in {"TaskLost", "TaskDied"}]


def test_a_job_has_as_many_as_its_user_allows():
    assert Trainer(0.1, 1.0, workers=(1, 4)).run()[-1] == 4
    assert Trainer(0.1, 0.01, workers=(3, 8)).run()[-1] == 3
    assert Trainer(0.1, 1.0, workers=(5, 5)).run()[-1] == 5


def test_a_consumer_that_becomes_faster_gets_more_workers_and_one_that_becomes_slower_fewer():
    trainer = Trainer(0.1, 1.0)
    trainer.run()
    trainer.own_s = 0.05
    assert abs(trainer.run()[-1] - 20) <= 1
    trainer.own_s = 0.2
    assert abs(trainer.run()[-1] - 5) <= 1


def test_the_next_job_of_its_kind_begins_with_what_the_last_one_had():
    trainer = Trainer(0.1, 1.0)
    trainer.run()
    had = trainer.scaling.scale.workers
    service = trainer.service
    service.say(inp.ConsumerSaid(trainer.client, msg.LeaveJob()))
    assert not service.state.jobs
    again = Trainer(0.1, 1.0, service=service)
    assert again.scaling.scale.workers == had
    assert "as it had before" in again.scaling.reason
    other = Trainer(0.1, 1.0, "b", service=service)
    assert other.scaling.scale.workers == 1


def test_jobs_add_up_to_what_the_service_may_have():
    service = begun(most_workers=12)
    one = Trainer(0.1, 1.0, "one", service=service)
    two = Trainer(0.1, 0.4, "two", service=service)
    for _ in range(60):
        one.beat()
        two.beat(0.0)
    assert service.state.fleet.workers == 12
    assert "one" in service.state.fleet.reason
    assert "two" in service.state.fleet.reason
    assert len(service.state.index.serving.workers) == 12


def test_without_a_job_the_fewest_stay_after_a_while():
    trainer = Trainer(0.1, 1.0, service=begun(shrink_s=30.0, least_workers=2))
    trainer.run()
    service = trainer.service
    service.say(inp.ConsumerSaid(trainer.client, msg.LeaveJob()))
    for seconds in (1.0, 29.0):
        service.tick(seconds)
        assert service.state.fleet.workers > 2
    service.tick(2.0)
    assert service.state.fleet.workers == 2
    assert service.state.fleet.reason == "there is no job"


def test_a_dispatcher_that_comes_back_goes_on_with_what_was_found():
    trainer = Trainer(0.1, 1.0)
    trainer.run()
    service, before = trainer.service, trainer.scaling
    service.restart()
    assert resized(service) == [before.scale.workers]
    assert service.state.jobs["a"].scaling == before
    assert plain(service.replayed()) == plain(service.state)


def test_what_is_computed_for_later_does_not_count():
    """Elements may be small, and buffers large: workers find something to do though nobody waits."""
    trainer = Trainer(0.1, 0.8, service=begun(first_workers=16))
    trainer.ready = 0.0
    assert abs(trainer.run()[-1] - 8) <= 1


def test_a_consumer_that_lives_on_what_lies_ready_says_nothing_about_the_workers_it_has():
    """With eight workers of the fifteen it needs it does not wait until what came as they began is read."""
    trainer = Trainer(0.1, 1.5, service=begun(first_workers=8))
    trainer.ready = 200.0
    while len(trainer.serving) == 8:
        assert trainer.scaling.scale.phase == "search"
        trainer.beat()
    assert abs(trainer.run()[-1] - 15) <= 1


def test_those_that_are_to_leave_give_elements_until_they_have_left():
    """What they add would look as if those that stay were too many, too."""
    trainer = Trainer(0.1, 0.8, service=begun(first_workers=32))
    trainer.ready, trainer.lingers = 0.0, 10
    assert trainer.run(30)[-1] == 8


def test_workers_that_have_not_begun_yet_do_not_say_that_there_is_nothing_to_do():
    trainer = Trainer(0.1, 1.6)
    while len(trainer.serving) == 1:
        trainer.beat()
    assert len(trainer.serving) == 8
    trainer.idle = 6
    for _ in range(16):
        trainer.beat()
        assert len(trainer.serving) == 8
    trainer.idle = 0
    assert abs(trainer.run()[-1] - 16) <= 1


def test_workers_that_load_what_functions_need_do_not_say_that_more_bring_nothing():
    """The one that was there before gives a hundred elements in no time."""
    trainer = Trainer(0.00004, 0.002)
    while len(trainer.serving) == 1:
        trainer.beat()
    assert len(trainer.serving) == 8
    trainer.loading, trainer.idle = True, 7
    for _ in range(5):
        trainer.beat(2.0)
        assert trainer.scaling.scale.phase == "search"
    trainer.loading, trainer.idle = False, 0
    assert trainer.run()[-1] > 40


@pytest.mark.parametrize(("sharing", "elements"), [("", [5, 7]), ("lockstep", [7])])
def test_a_group_wants_what_its_fastest_member_reads_and_a_job_what_all_its_consumers_do(sharing, elements):
    service = Service()
    service.join("c0", "a", sharing=sharing)
    (job,) = service.state.jobs.values()
    readings = [Reading(0, Pace(), [Pace(count, 1.0, 0.5)]) for count in (5, 7)]
    assert [reading.elements for reading in counted(job, readings, 2)] == elements
    assert counted(job, [], 0) == []


def test_a_group_does_not_wait_for_a_member_that_has_read_nothing_to_know_how_many_workers_it_wants():
    service = Service()
    service.join("c0", "a", sharing="lockstep")
    service.join("c1", "b")
    readings = [Reading(0, Pace(), [Pace(5, 1.0, 0.5)])]
    group, alone = sorted(service.state.jobs.values(), key=lambda job: not job.spec.sharing)
    assert counted(group, readings, 2) == readings
    assert counted(alone, readings, 2) == []


class Beside(Trainer):
    """A trainer in a group, beside a member that is a hundred times slower and never waits."""

    def beat(self, seconds: float = BEAT_S) -> None:
        count = self.beats + 1
        if count == 1:
            self.service.join("slow", "slow", sharing="lockstep")
        pace = Pace(count, count * BEAT_S, 0.0)
        report = msg.ConsumerReport(0, pace=pace, arrived=count + 100, queue_elements=100.0)
        self.service.say(inp.ConsumerSaid("slow", report))
        super().beat(seconds)


def test_a_group_gets_as_many_workers_as_its_fastest_member_would_alone():
    alone = Trainer(0.05, 0.4, sharing="lockstep").run()
    assert alone[-1] >= 7
    assert Beside(0.05, 0.4, sharing="lockstep").run() == alone


def test_who_may_use_a_part_of_a_core_is_busy_as_far_as_it_uses_that():
    """Half a core, all of it used by who computes for half of the time: it doesn't find something to do for half."""
    trainer = Trainer(0.1, 0.4, service=begun(first_workers=10))
    trainer.burns, trainer.host = 1.0, {"cores": 1, "cpu_quota": 0.5}
    assert trainer.run(60) == [10, 8]
    trainer = Trainer(0.1, 0.4, service=begun(first_workers=10))
    trainer.burns, trainer.host = 1.0, {"cores": 1, "cpu_quota": 1.0}
    assert trainer.run(60)[-1] == 4
