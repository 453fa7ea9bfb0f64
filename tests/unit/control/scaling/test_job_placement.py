"""Local workers, which belong to one job, beside those of the service."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.control.control_driver import GIVEN, FakePlan, Service
from tests.unit.control.scaling.test_job_scaling import BEAT_S, begun
from tests.unit.control.test_random_schedules import KINDS, PLANS, calm, check_epoch, disturb, settle

from millrace.control import inputs as inp
from millrace.control.journal.snapshot import plain
from millrace.control.journal.task_events import TaskLeased
from millrace.control.journal.worker_events import WorkerAssigned
from millrace.policies.scaling.placement import AGAIN_S
from millrace.protocol import messages as msg
from millrace.protocol.reports import Flow, LaneReport, Pace


def jobs_of(service):
    return {name: worker.job for name, worker in service.state.workers.items()}


def test_local_workers_serve_their_job_and_no_other():
    service = Service()
    service.add_worker("ours", only="a")
    other = service.join("two", "b")
    assert jobs_of(service) == {"ours": ""}
    assert not service.workers["ours"].planning
    peer = service.join("one", "a")
    assert jobs_of(service) == {"ours": "a"}
    service.run()
    assert peer.done
    assert not other.reads
    service.say(inp.ConsumerSaid("one", msg.LeaveJob()))
    assert jobs_of(service) == {"ours": ""}
    again = service.join("three", "a")  # its process has loaded a state, or begins anew
    service.run()
    assert again.done


def test_a_local_job_has_no_worker_of_the_service():
    service = Service()
    service.add_worker("theirs")
    peer = service.join("one", "a", target_workers="local")
    service.run()
    service.tick(1.0)
    assert not peer.reads
    assert jobs_of(service) == {"theirs": ""}
    service.add_worker("ours", only="a")
    service.run()
    assert peer.done
    assert {read.worker for read in peer.reads.values()} == {"ours"}
    assert jobs_of(service) == {"theirs": "", "ours": "a"}


def test_a_local_job_does_not_keep_the_service_from_others():
    service = Service()
    service.add_worker("theirs")
    service.join("one", "a", target_workers="local")
    peer = service.join("two", "b")
    service.run()
    assert peer.done


def test_consumers_are_told_which_workers_are_local():
    service = Service()
    service.add_worker("ours", only="a")
    service.add_worker("theirs")
    peer = service.join("one", "a", target_workers="any")
    service.work(read=False)
    service.work(read=False)
    assert {read.local for read in peer.reads.values() if read.worker == "ours"} == {True}
    assert {read.local for read in peer.reads.values() if read.worker == "theirs"} == {False}


@pytest.mark.parametrize(("target", "first"), [("auto", "z-ours"), ("any", "a-theirs")])
def test_local_workers_get_tasks_first_unless_any_will_do(target, first):
    service = Service(FakePlan(1))
    service.add_worker("a-theirs")
    service.add_worker("z-ours", only="a")
    peer = service.join("one", "a", target_workers=target, workers=(2, 2))
    for worker in service.workers.values():
        service.plan_tasks(worker)
    assert jobs_of(service) == {"a-theirs": "a", "z-ours": "a"}
    assert [read.worker for read in peer.reads.values()] == [first]


def test_what_lies_unread_behind_a_link_does_not_keep_local_workers_from_computing():
    service = Service(FakePlan(None))
    service.add_worker("theirs")
    peer = service.join("one", "a")
    for _ in range(20):
        service.work(read=False)
    before = len(peer.reads)
    service.work(read=False)
    assert len(peer.reads) == before, "no more may lie unread"
    service.add_worker("ours", only="a")
    for _ in range(20):
        service.work(read=False)
    ours = [task for task, read in peer.reads.items() if read.worker == "ours"]
    assert len(peer.reads) == before + len(ours)
    assert ours
    for task in ours:
        service.read(peer, task)
    for _ in range(20):
        service.work(read=False)
    assert len(peer.reads) > before + len(ours)
    assert {peer.reads[task].worker for task in peer.reads if task not in peer.complete} == {"ours", "theirs"}


def test_a_local_worker_serves_the_consumers_of_its_host():
    service = Service(FakePlan(12))
    for host in ("h0", "h1"):
        service.add_worker(f"on {host}", only="a", host=host)
    peers = [service.join(host, "a", num_consumers=2, host=host, target_workers="local") for host in ("h0", "h1")]
    service.run()
    for peer in peers:
        assert peer.done
        assert {read.worker for read in peer.reads.values()} == {f"on {peer.client}"}
    assert sorted(task for peer in peers for task in peer.complete) == list(range(12))


def test_what_local_workers_left_over_is_fetched_by_local_ones():
    """Nobody promises that a worker of the service can connect to the training host."""
    service = Service(FakePlan(6, 3))
    service.add_worker("ours", only="a")
    service.add_worker("theirs")
    peer = service.join("one", "a", target_workers="any")
    service.run()
    assert peer.done
    assert service.lost_leftovers == 0
    leases = [event for event in service.events if isinstance(event, TaskLeased)]
    by_task = {lease.task: lease.worker for lease in leases if lease.epoch == 0}
    assert {by_task[task] for task in range(8)} == {"ours", "theirs"}
    for tail in [task for task in range(9) if service.plan.task(task).inputs]:
        inputs = service.plan.task(tail).inputs
        if any(by_task[task] == "ours" for task in inputs):
            assert by_task[tail] == "ours"


def test_the_share_of_a_worker_that_went_goes_to_one_that_may_have_it():
    service = Service()
    service.add_worker("ours", only="a")
    service.join("one", "a", sharding="static", target_workers="local")
    service.run()
    service.add_worker("theirs")
    service.kill("ours")
    service.say(inp.Tick())
    assert service.state.jobs["a"].epochs[0].owners == ["ours"]
    service.add_worker("ours again", only="a")
    assert service.state.jobs["a"].epochs[0].owners == ["ours again"]


# -- how many of the service's -----------------------------------------------------------------------------------------


class Host:
    """A consumer with local workers, on a service that starts its own as planned; reports are a heartbeat apart.

    Each worker takes ``cost_s`` for an element of ``size`` bytes; what comes from the service's passes a link.
    """

    def __init__(self, own_s, cost_s, *, local=0, size=1000, link=1e12, service=None, **spec):
        self.service = service or begun()
        self.own_s, self.cost_s, self.size, self.link = own_s, cost_s, size, link
        self.pace, self.came = Pace(), (Flow(), Flow())
        self.busy_s = {}
        self.peer = self.service.join("reader", "a", **spec)
        for number in range(local):
            self.service.add_worker(f"ours{number}", only="a")
        self.settle()

    @property
    def job(self):
        return self.service.state.jobs["a"]

    @property
    def remote(self):
        return [worker.id for worker in self.service.state.index.serving.by_job.get("a", [])]

    @property
    def local(self):
        return [worker.id for worker in self.service.state.index.serving.local.get("a", [])]

    def settle(self):
        service = self.service
        service.say(inp.Tick())
        while len(service.state.index.serving.workers) < service.state.fleet.workers:
            service.add_worker(f"w{len(service.events):06d}")
        for worker in list(service.workers.values()):
            service.plan_tasks(worker)
        for worker in list(service.state.index.serving.draining):
            for lease in list(service.workers[worker.id].leases):
                service.finish(service.workers[worker.id], lease)
            for _, _, task in list(service.workers[worker.id].unread):
                service.read(self.peer, task)
        for name in [name for name, worker in service.state.workers.items() if worker.released]:
            service.kill(name)

    def beat(self, seconds=BEAT_S):
        local, remote = self.local, self.remote
        home = len(local) / self.cost_s
        away = min(len(remote) / self.cost_s, self.link / self.size)
        rate = min(1 / self.own_s, home + away)
        elements = round(BEAT_S * rate)
        self.service.now += seconds
        waited = max(0.0, BEAT_S - elements * self.own_s)
        self.pace = Pace(self.pace.elements + elements, self.pace.read_s + BEAT_S, self.pace.waited_s + waited)
        parts = [elements * home / (home + away), elements * away / (home + away)]
        near, far = (
            Flow(flow.elements + round(part), flow.bytes + round(part * self.size))
            for flow, part in zip(self.came, parts, strict=True)
        )
        self.came = near, far
        held_up = away < len(remote) / self.cost_s
        for name in [*local, *remote]:
            busy = BEAT_S * (rate / (home + away) if name in local else away * self.cost_s / len(remote))
            self.busy_s[name] = self.busy_s.get(name, 0.0) + busy
            lanes = [LaneReport(0, True, 0.0, 10**9 if held_up and name in remote else 0)]
            self.service.report(name, busy_s=self.busy_s[name], lanes=lanes)
        for worker in self.service.state.index.serving.by_job.get("", []):
            self.service.report(worker.id)
        report = msg.ConsumerReport(0, pace=self.pace, arrived=self.pace.elements, came=self.came)
        self.service.say(inp.ConsumerSaid("reader", report))
        self.settle()

    def run(self, beats=60):
        for _ in range(beats):
            self.beat()


def test_the_service_is_asked_for_the_rest():
    host = Host(0.1, 1.0, local=4)
    host.run()
    assert len(host.local) == 4
    assert abs(len(host.remote) - 6) <= 1, host.job.scaling
    assert host.service.state.fleet.workers == len(host.remote)
    assert host.job.home is None


def test_where_local_workers_are_enough_the_service_is_asked_for_none():
    host = Host(0.1, 0.2, local=4)
    host.run()
    assert not host.remote
    assert len(host.local) == 4
    assert host.service.state.fleet.workers == 1  # the fewest that it may have, and they serve nobody
    assert [job for name, job in jobs_of(host.service).items() if name not in host.local] == [""]


def test_with_any_there_is_one_of_the_service_even_so():
    host = Host(0.1, 0.2, local=4, target_workers="any")
    host.run()
    assert len(host.remote) == 1


def test_local_alone_is_local_alone():
    host = Host(0.1, 1.0, local=2, target_workers="local")
    host.run()
    assert not host.remote
    assert host.job.scaling.scale.workers == 2


def test_workers_that_were_started_by_hand_are_used_for_the_rest_too():
    service = Service(FakePlan(None))
    for number in range(20):
        service.add_worker(f"hand{number}")
    host = Host(0.1, 1.0, local=4, service=service)
    host.run()
    assert abs(len(host.remote) - 6) <= 1, host.job.scaling
    assert len(service.state.index.serving.workers) == 20


def test_without_local_workers_all_is_as_ever():
    service = Service(FakePlan(None))
    for number in range(5):
        service.add_worker(f"hand{number}")
    host = Host(0.1, 1.0, service=service)
    host.run(5)
    assert len(host.remote) == 5
    assert host.job.scaling is None


def test_a_local_worker_that_dies_is_made_up_for_until_another_comes():
    host = Host(0.1, 1.0, local=4)
    host.run()
    before = len(host.remote)
    host.service.kill("ours0")
    host.settle()
    assert len(host.remote) == before + 1
    host.service.add_worker("ours4", only="a")
    host.settle()
    host.settle()
    assert len(host.remote) == before


def test_the_service_ends_none_that_is_local():
    host = Host(0.1, 1.0, local=4, service=begun(first_workers=30))
    host.run()
    assert len(host.local) == 4
    assert not any(name.startswith("ours") for name in host.service.refused)


# -- the link ----------------------------------------------------------------------------------------------------------


def slow(**spec):
    return Host(0.01, 0.1, local=2, size=4_000_000, link=5e6, **spec)


def test_where_the_link_brings_next_to_nothing_the_job_stays_at_home_and_says_so():
    host = slow()
    host.run()
    assert host.job.home is not None
    assert "1.2 elements a second (5.0 MB/s)" in host.job.home.reason
    assert not host.remote
    assert len(host.local) == 2
    assert host.service.state.fleet.workers == 1
    (notice,) = host.peer.notices
    assert host.job.home.reason in notice
    assert plain(host.service.replayed()) == plain(host.service.state)


def test_what_lies_at_the_other_end_is_computed_here():
    host, held = slow(), set()
    while host.job.home is None:
        held = {key for worker in host.remote for key in host.service.state.workers[worker].unfinished.values()}
        host.beat()
    assert held
    for _, number, task in held:
        worker = host.job.epochs[number].live[task].worker
        assert not worker or worker in host.local
    for _ in range(5):
        host.service.work()
    assert host.peer.complete
    assert {host.peer.reads[task].worker for task in host.peer.complete} <= set(host.local)


def test_what_those_have_that_serve_it_no_more_lies_behind_the_link_as_well():
    service = Service(FakePlan(None))
    service.add_worker("theirs")
    peer = service.join("one", "a")
    for _ in range(5):
        service.work(read=False)
    service.add_worker("ours", only="a")
    service.say(inp.ConsumerSaid("one", msg.ConsumerReport(0)))
    assert jobs_of(service) == {"theirs": "", "ours": "a"}
    assert service.state.workers["theirs"].kept
    for count in range(1, 6):
        service.now += 2.0
        for name in ("ours", "theirs"):
            lanes = [LaneReport(0, True, 0.0, 1 << 30)]
            report = msg.WorkerReport(job="a", busy_s=2.0 * count, lanes=lanes, nodes=[GIVEN])
            service.say(inp.WorkerSaid(name, report))
        pace = Pace(200 * count, 2.0 * count, 1.9 * count)
        came = Flow(199 * count, 1 << 20), Flow(count, 1 << 20)
        service.say(inp.ConsumerSaid("one", msg.ConsumerReport(0, pace=pace, arrived=200 * count, came=came)))
    assert service.state.jobs["a"].home is not None
    assert not service.state.workers["theirs"].kept
    assert peer.notices
    given = [event.job for event in service.events if isinstance(event, WorkerAssigned) and event.worker == "theirs"]
    assert given == ["a", ""], "it is not asked for more before that is known"


def test_it_looks_again_after_a_while():
    host = slow()
    host.run()
    assert host.job.home is not None
    since = host.job.home.at
    host.beat(AGAIN_S)
    host.run(30)
    assert host.job.home.at > since  # it has tried, and it was no better
    host.link = 1e12
    host.beat(AGAIN_S)
    host.run(60)
    assert host.job.home is None
    assert abs(len(host.remote) - 8) <= 1


def test_who_asks_for_both_has_both():
    host = slow(target_workers="any")
    host.run(30)
    assert host.job.home is None
    assert host.remote


def test_a_consumer_without_local_workers_is_served_by_the_service():
    host = Host(0.1, 0.2, local=4)
    host.run()
    assert not host.remote
    elsewhere = host.service.join("elsewhere", "a", host="h9")
    host.settle()
    assert len(host.remote) == 1
    for _ in range(10):
        host.service.work()
    assert elsewhere.complete
    assert {elsewhere.reads[task].worker for task in elsewhere.complete} <= set(host.remote)


def test_without_its_local_workers_it_uses_the_others_after_all():
    host = slow()
    host.run()
    for name in host.local:
        host.service.kill(name)
    host.settle()
    assert host.remote


# -- whatever happens --------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    plan=st.sampled_from(PLANS),
    kind=st.sampled_from(sorted(KINDS)),
    target=st.sampled_from(["auto", "local", "any"]),
    consumers=st.integers(1, 3),
    room=st.integers(1, 3),
)
# A worker that is local to a job comes: what the job's other workers may do is to be looked at anew.
@example(seed=3, plan=(13, 4), kind="deterministic", target="local", consumers=2, room=2)
def test_with_local_workers_every_task_is_read_once_and_nobody_waits_for_ever(
    seed, plan, kind, target, consumers, room
):
    rng = random.Random(seed)
    service = Service(FakePlan(*plan))
    names = ["w0", "w1"]
    for name in names:
        service.add_worker(name)
    hosts = [f"h{number % 2}" for number in range(consumers)]
    options = {"num_consumers": consumers, "target_workers": target, **KINDS[kind]}
    peers = [service.join(f"c{i}", "a", host=host, **options) for i, host in enumerate(hosts)]

    def start_local(host):
        names.append(f"l{len(names)}")
        service.add_worker(names[-1], only="a", host=host)

    for _ in range(2):
        for _ in range(rng.randrange(30)):
            if rng.random() < 0.1:
                start_local(rng.choice(hosts))
            elif rng.random() < 0.4:
                disturb(service, rng, names)
            else:
                service.work(read=rng.random() < 0.7, room=room)
        calm(service, names)
        for host in sorted(set(hosts)):
            if target == "local" or rng.random() < 0.7:
                start_local(host)  # as each consumer's process does when one of its own has ended
        settle(service, peers, room)
        check_epoch(service, "a", peers)
        for peer in peers:
            service.begin(peer)
    assert plain(service.replayed()) == plain(service.state)
