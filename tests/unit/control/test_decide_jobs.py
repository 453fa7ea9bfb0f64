"""Joining, conflicts, versions, leaving, failing."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.control.control_driver import OTHER_STRUCTURE, FakePlan, Service

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.journal.replay import AnyEvent
from millrace.control.journal.snapshot import plain
from millrace.errors import PipelineError
from millrace.planning.split_table import TableSummary, positions_table
from millrace.protocol import messages as msg


def test_the_first_creates_a_job_and_others_join_it():
    service = Service()
    first = service.join("x", num_consumers=2, seed=3)
    second = service.join("y", num_consumers=2)
    assert (first.joined.consumer, second.joined.consumer) == (0, 1)
    assert first.joined.seed == second.joined.seed == 3
    assert list(service.state.jobs) == ["a"]


def test_a_job_without_name_or_seed_gets_those_that_the_shell_drew():
    service = Service()
    peer = service.join("x", "")
    assert (peer.joined.job, peer.joined.seed) == ("job-of-x", 11)
    assert service.state.jobs["job-of-x"].anonymous


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"structure": OTHER_STRUCTURE}, "JobConflictError", "the pipeline"),
        ({"sharding": "static"}, "JobConflictError", "sharding ('static' here, 'dynamic' there)"),
        ({"visitation": "at_most_once"}, "JobConflictError", "visitation"),
        ({"deterministic": True}, "JobConflictError", "deterministic (True here, False there)"),
        ({"tasks": 4}, "JobConflictError", "tasks (4 here, None there)"),
        ({"num_consumers": 4}, "JobConflictError", "num_consumers (4 here, 2 there)"),
        ({"num_consumers": 4}, "JobConflictError", "DataLoader is a consumer: if the main process has looked"),
        ({"seed": 4}, "JobConflictError", "seed (4 here, 11 there)"),
        ({"python": "3.12"}, "VersionMismatchError", "this process runs Python 3.12, the dispatcher Python 3.11"),
        ({"structure": b"\xc1"}, "ProtocolError", "not a dataset's graph"),
        ({"sharding": "off"}, "PipelineError", "name visitation=Visitation.ZERO_ONCE_OR_MORE"),
        (
            {"sharding": "off", "visitation": "zero_once_or_more", "deterministic": True},
            "PipelineError",
            "deterministic=True cannot be kept",
        ),
        (
            {"sharding": "odd"},
            "PipelineError",
            "sharding is one of dynamic, static, static_contiguous, off, custom, not 'odd'",
        ),
        ({"visitation": "odd"}, "PipelineError", "visitation is one of"),
        ({"num_consumers": 0}, "PipelineError", "num_consumers is at least 1, not 0"),
        ({"tasks": 0}, "PipelineError", "tasks is at least 1, not 0"),
        ({"consumer": 2}, "ConsumerConflictError", "consumer_index 2 does not exist: job 'a' has num_consumers=2"),
        ({"consumer": 0}, "ConsumerConflictError", "consumer 0 of job 'a' is being read already by process 7 on box"),
    ],
)
def test_who_does_not_fit_is_refused_with_a_sentence(fields, kind, text):
    service = Service()
    service.join("x", host="box", pid=7, num_consumers=2)
    peer = service.join("y", **{"num_consumers": 2, **fields})
    assert peer.joined is None
    assert peer.failure.kind == kind
    assert text in peer.failure.message
    assert act.CloseClient("y", peer.failure) in service.last
    assert set(service.state.clients) == {"x"}


def test_more_consumers_than_there_are_places():
    service = Service()
    service.join("x", num_consumers=1)
    assert "raise num_consumers" in service.join("y", num_consumers=1).failure.message
    service.join("x2", "b", deterministic=True)
    assert "give num_consumers=" in service.join("y2", "b", deterministic=True).failure.message


def test_a_broken_session_resumes_its_place_and_is_told_all_again():
    service = Service()
    worker = service.add_worker("w")
    peer = service.join("x")
    service.plan_tasks(worker)
    reads = dict(peer.reads)
    assert reads
    service.say(inp.ClientSessionLost("x"))
    peer.reads.clear()
    service.join("x", resume=True, begin=False)
    assert peer.joined.epoch == 0
    assert peer.reads == reads


def test_a_place_without_a_session_can_be_taken_over_after_a_heartbeat():
    service = Service()
    service.join("x")
    service.join("other")
    service.say(inp.ClientSessionLost("x"))
    assert service.join("y", begin=False).joined.consumer == 2
    service.now = 6.0
    late = service.join("z", begin=False)
    assert (late.joined.consumer, late.joined.epoch) == (0, -1)


def test_a_process_started_again_gets_its_place_at_once_if_nobody_is_left():
    service = Service()
    service.join("x")
    service.say(inp.ClientSessionLost("x"))
    late = service.join("y", begin=False)
    assert (late.joined.consumer, late.joined.epoch) == (0, -1)


def test_places_are_kept_for_a_while_and_jobs_without_readers_go():
    service = Service()
    worker = service.add_worker("w")
    service.join("x")
    service.join("anonymous", "")
    service.plan_tasks(worker)
    for client in ("x", "anonymous"):
        service.say(inp.ClientSessionLost(client))
    service.tick(9)
    assert set(service.state.jobs) == {"a", "job-of-anonymous"}
    for _ in range(2):
        service.tick(1)
    assert set(service.state.jobs) == {"a"}
    for _ in range(30):
        service.tick(10)
    assert not service.state.jobs
    assert not worker.open
    assert not service.held


def test_a_restarted_dispatcher_without_a_journal_says_so():
    peer = Service().join("x", resume=True)
    assert peer.failure.kind == "JobFailedError"
    assert "the dispatcher was restarted and has no journal" in peer.failure.message


def test_what_a_leaving_consumer_did_not_read_goes_to_the_others():
    service = Service(FakePlan(6))
    worker = service.add_worker("w")
    one, two = service.join("x"), service.join("y")
    service.plan_tasks(worker)
    for _ in range(8):
        service.work(read=False)
    assert service.state.jobs["a"].epochs[0].unread.keys() == {0, 1}
    service.say(inp.ConsumerSaid("x", msg.LeaveJob()))
    del service.consumers["x"]
    service.run()
    assert one.complete == []
    assert sorted(two.complete) == list(range(6))
    assert two.done


@pytest.mark.parametrize("order", [{}, {"deterministic": True}])
def test_a_consumer_that_comes_late_has_its_share_of_all_epochs(order):
    service = Service(FakePlan(9))
    service.add_worker("w")
    early = [service.join(client, num_consumers=3, **order) for client in "xy"]
    first = []
    for _ in range(3):
        service.run(room=1)
        assert all(peer.done for peer in early)
        first.append([task for peer in early for task in peer.complete])
        for peer in early:
            service.begin(peer)
    late = service.join("z", num_consumers=3, **order)
    assert late.epoch.epoch == 0
    service.run(room=1)
    assert late.done
    assert late.complete
    assert sorted(first[0] + late.complete) == list(range(9))


@pytest.mark.parametrize("sharding", ["dynamic", "static"])
def test_in_a_fixed_order_nobody_waits_for_who_does_not_read(sharding):
    service = Service(FakePlan(40))
    service.add_worker("w")
    reading = service.join("x", num_consumers=2, deterministic=True, sharding=sharding)
    paused = service.join("y", num_consumers=2, deterministic=True, sharding=sharding)
    service.plan_tasks(service.workers["w"])
    for _ in range(2):
        for _ in range(200):
            service.work(read=False, room=3)
            for task in service.readable(reading)[:1]:
                if task == 2 * len(reading.complete):
                    service.read(reading, task)
        assert reading.complete == list(range(0, 40, 2))
        assert reading.done
        service.begin(reading)
    assert not paused.done


def test_listing_fails_or_the_plan_does_and_only_that_job():
    service = Service()
    worker = service.add_worker("w")
    bad, good = service.join("x", "bad"), service.join("y", "good")
    asked = worker.planning.popleft()
    failure = msg.Failure("SourceNotFoundError", "no file matches train/*.jpg")
    service.say(inp.WorkerSaid("w", msg.SourcesFailed(asked.job, failure)))
    assert bad.failure == failure
    service.run()
    assert good.done

    def refuse(graph, tables, *, tasks, seed, ranks, pieces, chunks):
        raise PipelineError("take after filter")

    service.state._planner = refuse
    third = service.join("z", "third")
    service.plan_tasks(worker)
    assert (third.failure.kind, third.failure.message) == ("PipelineError", "take after filter")


def test_a_task_that_fails_ends_its_job_and_a_new_start_begins_anew():
    service = Service()
    worker = service.add_worker("w")
    peer, other = service.join("x"), service.join("o", "other")
    service.plan_tasks(worker)
    lease = next(iter(worker.leases.values()))
    failure = msg.Failure("ElementError", "map(decode) failed", "map(decode)", "7.jpg")
    service.say(inp.WorkerSaid("w", msg.TaskFailed(lease.ref, lease.lease + 1, failure)))
    assert peer.failure is None
    failed = service.consumers["x" if lease.ref.job == "a" else "o"]
    service.say(inp.WorkerSaid("w", msg.TaskFailed(lease.ref, lease.lease, failure)))
    assert failed.failure == failure
    assert lease.ref.job not in worker.open
    assert service.join("late", lease.ref.job).failure == failure
    service.say(inp.ClientSessionLost(failed.client))
    again = service.join("again", lease.ref.job)
    service.run()
    assert again.done
    survivor = other if failed is peer else peer
    assert survivor.done


def test_warnings_of_the_plan_reach_consumers():
    service = Service()
    service.plan.warnings = ("runs as one task",)
    worker = service.add_worker("w")
    peer = service.join("x")
    service.plan_tasks(worker)
    assert peer.notices == ["runs as one task"]


def test_a_sharding_function_that_raises_ends_the_job():
    service = Service(FakePlan(4))
    worker = service.add_worker("w")
    peer = service.join("x", sharding="custom")
    service.say(inp.WorkerSaid("w", msg.SourcesListed("a", {0: positions_table(4).summary()}, digest="tables")))
    assert isinstance(worker.planning[-1], msg.ChooseSharding)
    service.say(inp.WorkerSaid("other", msg.SourcesFailed("a", msg.Failure("MillraceError", "not asked"))))
    assert peer.failure is None
    failure = msg.Failure("MillraceError", "it raised")
    service.say(inp.WorkerSaid("w", msg.SourcesFailed("a", failure)))
    assert peer.failure == failure


@pytest.mark.parametrize("whose", ["worker", "dispatcher"])
def test_what_cannot_be_said_ends_the_job_it_is_about_and_no_other(whose):
    service = Service(FakePlan(4))
    service.add_worker("w")
    peer, other = service.join("x"), service.join("y", "b")
    failure = msg.Failure("ProtocolError", "the message TaskFailed takes 17,000,000 bytes")
    service.say(
        inp.WorkerSaid("w", msg.JobUnsendable("a", failure)) if whose == "worker" else inp.Unsendable("a", failure)
    )
    assert peer.failure == failure
    assert other.failure is None
    service.say(inp.Unsendable("nobody's", failure))
    assert plain(service.replayed()) == plain(service.state)


def test_what_was_listed_of_a_job_is_not_taken_for_another_that_got_its_name():
    service = Service(FakePlan(4))
    worker = service.add_worker("w")
    service.join("x")
    first = service.state.jobs["a"].generation
    assert isinstance(worker.planning.popleft(), msg.ListSources)
    service.say(inp.ConsumerSaid("x", msg.LeaveJob()))
    service.join("y")
    tables = {0: positions_table(4).summary()}
    service.say(inp.WorkerSaid("w", msg.SourcesListed("a", tables, digest="tables", generation=first)))
    gone = msg.Failure("ServiceError", "the dispatcher has no blob")
    service.say(inp.WorkerSaid("w", msg.SourcesFailed("a", gone, first)))
    assert service.state.jobs["a"].failure is None, "those functions were another life's"
    assert service.state.jobs["a"].tables is None
    now = service.state.jobs["a"].generation
    service.say(inp.WorkerSaid("w", msg.SourcesListed("a", tables, digest="tables", generation=now)))
    assert service.state.jobs["a"].tables == tables


def test_a_journal_with_whole_split_tables_gives_what_plans_are_made_of():
    old = {
        "type": "TableRecorded",
        "job": "a",
        "tables": {
            0: {"cheap": True, "count": 2, "locations": ["x", "y"], "sizes": [3, 4], "splits": [], "stamps": [1, 2]},
            1: {"cheap": False, "count": -1, "splits": [["s", 0, 5, 0, 7, 50, "v"], ["s", 5, -1, 7, -1, 60, "v"]]},
        },
        "digest": "tables",
        "length": 3,
    }
    event = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=AnyEvent)
    assert event.tables == {0: TableSummary(True, 2, bytes=7), 1: TableSummary(False, -1, pieces=2, bytes=110)}
    assert len(msgspec.msgpack.encode(event)) < 120


@pytest.mark.parametrize(
    ("owners", "text"),
    [([0] * 3, "3 answers for 4 tasks"), ([0, 1, 2, 0], "worker 2 for task 2, and there are 2 workers, 0 to 1")],
)
def test_a_wrong_sharding_function_ends_the_job(owners, text):
    service = Service(FakePlan(4))
    for name in ("v", "w"):
        service.add_worker(name)
    peer = service.join("x", sharding="custom")
    for worker in service.workers.values():
        while worker.planning and isinstance(worker.planning[0], msg.ListSources):
            asked = worker.planning.popleft()
            service.say(inp.WorkerSaid(worker.name, msg.SourcesListed(asked.job, {0: positions_table(4).summary()})))
    chooser = next(worker for worker in service.workers.values() if worker.planning)
    assert chooser.planning[0].workers == ["v", "w"]
    service.say(inp.WorkerSaid(chooser.name, msg.ShardingChosen("a", 0, owners)))
    assert peer.failure.kind == "PipelineError"
    assert text in peer.failure.message


def test_endless_data_cannot_be_sharded_by_a_function():
    service = Service(FakePlan(None))
    worker = service.add_worker("w")
    peer = service.join("x", sharding="custom")
    service.plan_tasks(worker)
    assert "has no end" in peer.failure.message
