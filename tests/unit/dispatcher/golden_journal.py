"""Writes a journal in which everything happens that can, and the state that it leads to, to be kept for ever.

``python -m tests.unit.dispatcher.golden_journal NUMBER`` writes ``golden/NUMBER.db`` and ``golden/NUMBER.json``. Files
that are there stay as they are: a journal of any earlier version must be understood. Another one is due when there is
an event that none of them has.
"""

import random
import sqlite3
import sys
from pathlib import Path
from typing import Any, cast

import msgspec
from tests.unit.control.control_driver import MIXED_STRUCTURE, FakePlan, Service
from tests.unit.control.membership.test_resume import states_of
from tests.unit.control.test_random_schedules import KINDS, calm, disturb

import millrace as mr
from millrace.control import inputs as inp
from millrace.control.journal import snapshot
from millrace.control.journal.epoch_events import EpochResumed
from millrace.control.journal.replay import apply
from millrace.control.journal.snapshot import dump
from millrace.control.journal.task_events import EndToldLate, TaskLeased, TaskSpared
from millrace.control.state.cache_state import place_of
from millrace.dispatcher.journal_file import SqliteJournal
from millrace.graph.notation import graph_of
from millrace.graph.serialize import pack
from millrace.planning.cache_point import CachePoint
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.plan import ChunkedPlan
from millrace.planning.split_table import TableSummary
from millrace.policies.caching.io_cost import TransferCost
from millrace.policies.scaling import hpa
from millrace.policies.scaling.scaling_policies import kind_of
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import CacheUsed, StoreCost, StoreMeasured
from millrace.protocol.cache_server_messages import CacheServerHello
from millrace.protocol.reports import Flow, LaneReport, Pace
from millrace.protocol.sampler_messages import SamplersDrew

GOLDEN = Path(__file__).parent / "golden"


def live() -> Service:
    """A service in whose life, from start to restart, all kinds of events happened."""
    service = Service(FakePlan(13, 4), cache="/cache", cache_bytes=1250, trust={"red": ["default"]})
    service.say(inp.Started("here:1"))
    rng = random.Random(1)
    names = ["w0", "w1"]
    for name in names:
        service.add_worker(name)
    _read_on(service)
    _prepare_in_vain(service)
    _be_slow(service)
    names += _be_poisoned(service)
    _be_oversized(service)
    _be_told_late(service)
    _lose(service)
    _follow(service)
    _go_on(service)
    _cache(service)
    _scale(service)
    _go_home(service)
    _come_late(service)
    _end_equally(service)
    _repeat_nothing(service)
    _coordinate(service)
    _read_in_chunks(service)
    _draw(service)
    _reweight(service)
    for kind in sorted(KINDS):
        for consumer in range(2):
            service.join(f"{kind} {consumer}", kind, num_consumers=2, host="rank", pid=consumer + 1, **KINDS[kind])
    for _ in range(120):
        if rng.random() < 0.3:
            disturb(service, rng, names)
        service.work(room=3)
    service.say(inp.ConsumerSaid("dynamic 0", msg.LeaveJob()))
    calm(service, names)
    for name in ("w0", names[-1]):
        service.say(inp.WorkerSaid(name, msg.WorkerLeaving()))
    service.say(inp.ClientSessionLost("static 0"))
    for _ in range(3):
        service.work(room=3)
        service.tick(3.0)
    service.restart()
    return service


def _prepare_in_vain(service: Service) -> None:
    """A job whose second epoch fails as it is prepared, and again as it is read."""
    peer = service.join("vain", "vain")
    failure = msg.Failure("ElementError", "it cannot be decoded", "map(decode)", "a.jpg", "Traceback ...")
    for _ in range(200):
        service.work()
        for worker in service.workers.values():
            for number, lease in list(worker.leases.items()):
                if lease.ref.epoch == 1 and number in worker.leases:
                    del worker.leases[number]
                    service.say(inp.WorkerSaid(worker.name, msg.TaskFailed(lease.ref, number, failure)))
        if peer.done and peer.epoch.epoch == 0:
            service.begin(peer)
    assert service.state.jobs["vain"].failure == failure


def _draw(service: Service) -> None:
    """A job whose elements a sampler draws."""
    peer = service.join("drawn", "drawn")
    for worker in service.workers.values():
        service.plan_tasks(worker)
    (name,) = [name for name, worker in service.state.workers.items() if "drawn" in worker.open][:1]
    service.say(inp.WorkerSaid(name, SamplersDrew("drawn", 0, {"0123456789abcdef": "fedcba9876543210"})))
    assert service.state.jobs["drawn"].epochs[0].drawn
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))


def _reweight(service: Service) -> None:
    """A job whose training sets the weights of its mixture, and then leaves."""
    peer = service.join("weighed", "weighed", structure=MIXED_STRUCTURE)
    for worker in service.workers.values():
        service.plan_tasks(worker)
    service.set_weights(peer, 3, 1, number=1)
    assert service.state.jobs["weighed"].epochs[0].reweighted
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))


def _be_slow(service: Service) -> None:
    """A job whose tasks take longer than a turn."""
    peers = [service.join(name, name, tasks=2) for name in ("slow", "slower", "waiting")]
    for worker in service.workers.values():
        service.plan_tasks(worker)
    for _ in range(20):
        service.tick(3.0)
    assert any(job.cuts for job in service.state.jobs.values())
    for peer in peers:
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))


def _be_poisoned(service: Service) -> list[str]:
    """A job whose listing and then one of whose elements ends workers; returns who came for them."""
    peer = service.join("poisoned", "poisoned")
    came = []
    for number in range(6):
        for worker in list(service.workers.values()):
            if any(isinstance(asked, msg.ListSources) for asked in worker.planning) and not number:
                service.kill(worker.name)
                continue
            service.plan_tasks(worker)
            for lease in list(worker.leases.values()):
                if (lease.ref.job, lease.ref.epoch, lease.ref.task) == ("poisoned", 0, 0):
                    at = msg.ProbeReport(lease.ref, lease.lease, 1, (1, 0, 0, 0, 5, 0), "map(decode) of a.jpg")
                    service.say(inp.WorkerSaid(worker.name, at))
                    service.kill(worker.name)
        came.append(f"p{number}")
        service.add_worker(came[-1])
    assert service.state.jobs["poisoned"].poison
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    return came


def _be_oversized(service: Service) -> None:
    """A job with an output that is too large for all workers but one."""
    service.add_worker("large", buffer_bytes=1 << 30)
    peer = service.join("oversized", "oversized")
    failure = msg.Failure("ElementTooLargeError", "output 0 of task 0 has 1,048,576 bytes", needs=1 << 20)
    while not service.state.jobs["oversized"].needs:
        service.work(read=False)
        for worker in list(service.workers.values()):
            for number, lease in list(worker.leases.items()):
                if lease.ref.job == "oversized" and worker.name != "large" and number in worker.leases:
                    del worker.leases[number]
                    service.say(inp.WorkerSaid(worker.name, msg.TaskFailed(lease.ref, number, failure)))
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    service.kill("large")


def _go_on(service: Service) -> None:
    """A job that two consumers go on with, each from its own state, and read to the end of the epoch."""
    left = [service.join(f"saved {rank}", "saved", num_consumers=2, consumer=rank) for rank in range(2)]
    for _ in range(4):
        service.work()
    for peer, state in zip(left, states_of(service, left), strict=True):
        service.say(inp.ClientSessionLost(peer.client))
        service.join(f"loaded {state.rank}", "saved", num_consumers=2, states=[state], begin=False)
    for rank in range(2):
        service.begin(service.consumers[f"loaded {rank}"], 0)
    for _ in range(30):
        service.work()


def _follow(service: Service) -> None:
    """A job of which one consumer leaves and another comes when tails have begun without it; both go on from states."""
    kind: dict[str, Any] = {"num_consumers": 2, "deterministic": True}
    leaves, stays = (service.join(name, "followed", consumer=rank, **kind) for rank, name in enumerate(("lv", "st")))
    service.plan_tasks(service.add_worker("f0"))
    service.say(inp.ConsumerSaid(leaves.client, msg.LeaveJob()))
    while 9 not in stays.complete:
        assert service.work(room=1)
    comes = service.join("cm", "followed", consumer=0, **kind)
    while not comes.complete:
        assert service.work(room=1)
    states = states_of(service, [comes, stays])
    for rank in range(2):
        service.join(f"follows {rank}", "followed", consumer=rank, states=states, begin=False, **kind)
    for rank in range(2):
        service.begin(service.consumers[f"follows {rank}"], 0)
    for _ in range(30):
        service.work()
    resumed = [event for event in service.events if isinstance(event, EpochResumed) and event.job == "followed"]
    assert resumed[0].alone


def _read_on(service: Service) -> None:
    """A job of which one consumer goes on to the next epoch while a tail needs what it has not read."""
    reads, hastens = (service.join(f"hasty {rank}", "hasty", num_consumers=2, deterministic=True) for rank in range(2))
    for _ in range(20):
        service.work(read=False)
        for task in service.readable(reads):
            if task < 4:
                service.read(reads, task)
        if any(isinstance(event, TaskLeased) and (event.job, event.task) == ("hasty", 4) for event in service.events):
            break
    service.begin(hastens)
    assert any(isinstance(event, TaskSpared) for event in service.events)
    for peer in (reads, hastens):
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))


def _cache(service: Service) -> None:
    """A job that keeps what it makes, as far as there is room, of which some is lost; with it a store is measured."""
    service.points = [CachePoint(0, "range(100)", "cache", "ab" * 16, items=13)]
    service.add_worker("c0")
    service.add_worker("c1")
    peer = service.join("caching", "caching")
    for _ in range(10):
        service.work()
    place = place_of("ab" * 16, "", "default")
    names = list(service.store[place])
    assert 4 < len(names) <= 12
    service.say(inp.WorkerSaid("c0", CacheUsed("caching", 0, place, lost=names[:4])))
    line = TransferCost((1000, 2000), (0.001, 0.002))
    service.say(inp.WorkerSaid("c0", StoreMeasured("", StoreCost(line, line, line, 1e-9, 2, 1 << 30))))
    for _ in range(3):
        service.work()
        service.tick(2.0)
        service.answer_for_store()
    service.begin(peer)
    service.kill("c1")
    service.tick(1.0)
    service.answer_for_store()
    trusting = service.join("trusting", "trusting", tenant="red")
    for _ in range(3):
        service.work()
    assert any(isinstance(event, TaskLeased) and event.also == [place] for event in service.events)
    service.points = []
    for each in (peer, trusting):
        service.say(inp.ConsumerSaid(each.client, msg.LeaveJob()))


def _scale(service: Service) -> None:
    """Jobs whose consumers wait, and get more workers for it by one policy or another."""
    usual = service.settings
    for policy in ("cheapest", "cachew", "cachew-released", "hpa", "millrace"):
        service.settings = msgspec.structs.replace(usual, least_workers=1, most_workers=1000)
        if policy != "cheapest":
            service.settings = msgspec.structs.replace(service.settings, scaling_policy=policy)
        service.restart()
        for name in service.workers:
            service.hello(name)
        peer = service.join(f"scaled by {policy}", f"scaled by {policy}", cheapest=policy == "cheapest")
        for worker in list(service.workers.values()):
            service.plan_tasks(worker)
        for count in range(1, 5):
            service.now += hpa.PERIOD_S
            for name in service.workers:
                service.report(name, busy_s=count * hpa.PERIOD_S, cpu_s=count * hpa.PERIOD_S)
            pace = Pace(1000 * count, 10.0 * count, 5.0 * count)
            report = msg.ConsumerReport(peer.epoch.epoch, pace=pace, arrived=1000 * count)
            service.say(inp.ConsumerSaid(peer.client, report))
        scaling = service.state.jobs[f"scaled by {policy}"].scaling
        assert scaling is not None
        assert kind_of(scaling.search) == policy
        assert service.state.fleet.workers
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    service.settings = usual
    service.restart()
    for name in service.workers:
        service.hello(name)


def _go_home(service: Service) -> None:
    """A job with a local worker, to which the link brings next to nothing from the others."""
    service.add_worker("local", only="homely")
    peer = service.join("homely", "homely")
    for worker in list(service.workers.values()):
        service.plan_tasks(worker)
    for count in range(1, 9):
        service.now += 2.0
        for name in service.workers:
            service.report(name, busy_s=2.0 * count, lanes=[LaneReport(0, True, 0.0, 1 << 30)])
        pace = Pace(200 * count, 2.0 * count, 1.9 * count)
        came = Flow(199 * count, 1 << 20), Flow(count, 1 << 20)
        service.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(0, pace=pace, arrived=200 * count, came=came)))
    assert service.state.jobs["homely"].home is not None
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))


def _come_late(service: Service) -> None:
    """A job that is kept for a consumer which comes when the other has left, and one that is over without it."""
    for name in ("late", "never"):
        early = service.join(f"early {name}", name, num_consumers=2)
        for _ in range(20):
            service.work()
        service.say(inp.ConsumerSaid(early.client, msg.LeaveJob()))
        assert service.state.jobs[name].kept_at is not None
    late = service.join("comes late", "late", num_consumers=2)
    for _ in range(20):
        service.work()
    service.say(inp.ConsumerSaid(late.client, msg.LeaveJob()))
    lost = service.join("lost", "late", num_consumers=2)
    other = service.join("stays", "late", num_consumers=2)
    for _ in range(20):
        service.work()
    service.say(inp.ConsumerSaid(lost.client, msg.LeaveJob(3)))
    service.say(inp.ConsumerSaid(other.client, msg.LeaveJob()))
    again = service.join("comes again", "never", consumer=0, num_consumers=2)
    assert "begins anew" in again.notices[0]
    service.say(inp.ConsumerSaid(again.client, msg.LeaveJob()))


def _end_equally(service: Service) -> None:
    """A job whose ranks get equally many elements, of which one has fewer."""
    ranks = [service.join(f"equal {rank}", "in step", num_consumers=2, equal_steps=True) for rank in range(2)]
    service.work(read=False)
    for peer, arrived in zip(ranks, (3, 5), strict=True):
        report = msg.ConsumerReport(0, arrived=arrived, all_here=arrived == 3)
        service.say(inp.ConsumerSaid(peer.client, report))
    assert service.state.jobs["in step"].epochs[0].steps == 3
    for peer in ranks:
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))


def _repeat_nothing(service: Service) -> None:
    """A job that repeats without end what gives nothing."""
    peer = service.join("nothing", "nothing", begin=False)
    usual, service.plan = service.plan, FakePlan(None, cycle=3)
    service.begin(peer)
    while peer.ends is None:
        for worker in list(service.workers.values()):
            service.plan_tasks(worker)
            for lease in [lease for lease, task in worker.leases.items() if task.ref.job == "nothing"]:
                service.finish(worker, lease)
    service.plan = usual
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))


def _read_in_chunks(service: Service) -> None:
    """A job whose data are larger than the source cache."""
    hello = CacheServerHello("cache", "cache:1", most_bytes=250_000)
    service.say(inp.CacheServerSaid("cache", hello))
    files = graph_of(mr.Dataset.from_files("s3://bucket/*.jpg").shuffle(10))
    assert files is not None
    usual, service.plan = service.plan, cast("FakePlan", ChunkedPlan(range(0, 110, 10), 5))
    peer = service.join("in chunks", "in chunks", structure=pack(files)[0])
    for worker in service.workers.values():
        for asked in [each for each in worker.planning if each.job == "in chunks"]:
            worker.planning.remove(asked)
            tables = {0: TableSummary(cheap=True, count=100, bytes=1_000_000)}
            listed = msg.SourcesListed("in chunks", tables, service.prints, [], "tables")
            service.say(inp.WorkerSaid(worker.name, listed))
    assert service.state.caches.source_chunks
    service.plan = usual
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    service.say(inp.CacheServerSessionLost("cache"))


def _coordinate(service: Service) -> None:
    """A job whose ranks read every round together, from states of unequal steps; one of them leaves."""
    rounds: dict[str, Any] = {"coordinated": "drop", "cycle_length": 3, "deterministic": True, "num_consumers": 2}
    tasks = service.plan.length
    states = [
        Checkpoint(
            seed=11, sources=service.prints, tasks=tasks, done=1, begun=[(2, 1)], ranks=2, turn=2, cycle_length=3
        ),
        Checkpoint(seed=11, sources=service.prints, tasks=tasks, done=2, rank=1, ranks=2, turn=2, cycle_length=3),
    ]
    peers = [service.join(f"rank {rank}", "rounds", consumer=rank, states=states, **rounds) for rank in (0, 1)]
    for _ in range(3):
        service.work(read=False)
        service.read(peers[0], min(service.readable(peers[0])))
    service.say(inp.ConsumerSaid(peers[1].client, msg.LeaveJob()))
    worker, key = next((each, key) for each in service.workers.values() for key in each.leases if key)
    lease = worker.leases[key]
    service.say(inp.WorkerSaid(worker.name, msg.TaskFinished(lease.ref, key, 1, left_out=2)))


def _be_told_late(service: Service) -> None:
    """A task that was read before its worker says that it has ended, and what it left out."""
    usual, service.plan = service.plan, FakePlan(3)
    peer = service.join("early", "early")
    for worker in service.workers.values():
        service.plan_tasks(worker)
    holders = [(worker, key, lease) for worker in service.workers.values() for key, lease in worker.leases.items()]
    worker, number, lease = next(held for held in holders if held[2].ref.job == "early" and held[2].run < 0)
    key = (lease.ref.job, lease.ref.epoch, lease.ref.task)
    worker.finished[key], worker.outputs[key] = number, ["x"]
    service.read(peer, lease.ref.task)
    service.say(inp.WorkerSaid(worker.name, msg.TaskFinished(lease.ref, number, 1, skipped=2)))
    assert any(isinstance(event, EndToldLate) for event in service.events)
    service.plan = usual
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))


def _lose(service: Service) -> None:
    """A job that does without what goes with a worker."""
    peer = service.join("lossy", "lossy", visitation="at_most_once")
    for _ in range(3):
        service.work(read=False)
    owner = next(worker for worker in service.state.workers.values() if worker.unfinished or worker.kept)
    service.kill(owner.id)
    assert service.state.jobs["lossy"].lost
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))


def write(path: Path, service: Service) -> None:
    """The life of a service as a journal, with a snapshot of its first half."""
    journal = SqliteJournal(str(path))
    state = service.fresh_state()
    for first in range(0, len(service.events), 50):
        events = service.events[first : first + 50]
        for event in events:
            apply(state, event)
        snapshot = dump(state) if first == len(service.events) // 100 * 50 else None
        journal.write(len(events), float(first), msgspec.msgpack.encode(events), snapshot)
    journal.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    db.close()


def plain(state: Any) -> Any:
    """What can be compared with what JSON gives."""
    return msgspec.json.decode(msgspec.json.encode(snapshot.plain(state)))


if __name__ == "__main__":
    lived = live()
    target = GOLDEN / f"{sys.argv[1]}.db"
    assert not target.exists()
    write(target, lived)
    target.with_suffix(".json").write_bytes(msgspec.json.encode(plain(lived.state)))
