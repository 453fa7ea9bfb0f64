"""Scaling beside what goes on meanwhile: profiles and modes of a cache, and epochs of which little is left."""

from typing import Any, Literal

from tests.unit.control.caching.test_cache_mode import COST, FINGERPRINT
from tests.unit.control.control_driver import FakePlan, Service
from tests.unit.control.scaling.test_job_scaling import Trainer, begun

from millrace.control import inputs as inp
from millrace.control.journal.cache_events import ModeChosen
from millrace.control.journal.replay import apply
from millrace.planning.cache_point import CachePoint
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import StoreMeasured

FEW = 4
"""Tasks of an epoch."""


def cached_trainer(mode: str) -> Trainer:
    """A consumer that waits for ten times what one worker gives, whose pipeline has a point that may be cached."""
    service = begun(cache="/cache", cache_bytes=1 << 20)
    service.answer_for_store()
    service.points = [CachePoint(0, "map(f)", mode, FINGERPRINT, items=1_000)]
    return Trainer(0.1, 1.0, service=service)


def changes(trainer: Trainer, kind: Literal["profile", "compute", "get"], node: int) -> None:
    """The job's cache gets into another mode, and what was begun before is done a heartbeat later."""
    apply(trainer.service.state, ModeChosen(trainer.job, kind, node, "a test says so", 0, 1.0, {}, {}))
    trainer.beat()
    trainer.service.end_earlier(trainer.job)


def test_a_job_is_not_scaled_while_it_is_profiled():
    trainer = cached_trainer("auto")
    assert trainer.service.state.jobs["a"].caching.kind == "profile"
    assert trainer.run(20) == [1]
    changes(trainer, "compute", -1)
    assert abs(trainer.run(30)[-1] - 10) <= 1


def test_another_mode_of_the_cache_begins_the_search_anew_from_the_number_that_there_is():
    trainer = cached_trainer("compute")
    changes(trainer, "compute", -1)
    before = trainer.run(30)[-1]
    assert trainer.scaling.scale.phase == "settled"
    changes(trainer, "get", 0)
    trainer.cost_s = 0.2  # reading takes a fifth of computing
    trainer.beat()
    assert "looks anew, as the mode of its cache has changed" in trainer.scaling.reason
    assert trainer.scaling.scale.phase == "search"
    assert trainer.scaling.scale.workers == before
    assert trainer.run(30)[-1] == 2


def test_what_was_read_while_it_was_profiled_says_nothing_about_the_mode_after():
    trainer = cached_trainer("compute")
    trainer.cost_s = 0.5
    before = trainer.run(30)[-1]
    assert before in (5, 6)
    trainer.cost_s = 1.0
    changes(trainer, "profile", -1)
    assert trainer.run(10) == [before]
    trainer.cost_s = 0.1  # what is kept is read as fast as the consumer takes it
    changes(trainer, "get", 0)
    assert max(trainer.run(30)) == before
    assert len(trainer.serving) == 1


def test_a_job_does_not_scale_by_what_another_of_its_name_has_read():
    trainer = cached_trainer("compute")
    trainer.run(3)
    service = trainer.service
    assert service.observed.scaling.keys() == service.observed.regimes.keys() == {"a"}
    service.say(inp.ConsumerSaid(trainer.client, msg.LeaveJob()))
    assert not service.state.jobs
    assert not service.observed.scaling
    assert not service.observed.regimes


def few(**spec: Any) -> tuple[Service, list[tuple[int, int]]]:
    """A service with as many workers as an epoch has tasks, and two more that come; (epoch, task) of what these get."""
    service = Service(FakePlan(FEW))
    service.say(inp.Started("here:1"))
    workers = [service.add_worker(f"w{number}") for number in range(FEW // 2)]
    service.join("c", "a", **spec)
    for worker in workers:
        service.plan_tasks(worker)
    assert {(task.ref.epoch, task.ref.task) for worker in workers for task in worker.leases.values()} == {
        (0, task) for task in range(FEW)
    }
    late = [service.add_worker(f"late{number}") for number in range(2)]
    return service, [(task.ref.epoch, task.ref.task) for worker in late for task in worker.leases.values()]


def test_workers_that_come_when_an_epoch_is_dealt_out_begin_with_the_next_one():
    _, begins = few()
    assert sorted(begins) == [(1, task) for task in range(FEW)]


def test_no_epoch_is_begun_that_nobody_has_asked_for():
    assert few(epochs=1)[1] == []


def test_no_epoch_is_begun_while_a_cache_is_written():
    service = Service(FakePlan(FEW), cache="/cache", cache_bytes=1 << 20)
    service.say(inp.Started("here:1"))
    service.points = [CachePoint(0, "map(f)", "cache", FINGERPRINT, items=FEW)]
    first = service.add_worker("w0")
    service.say(inp.WorkerSaid("w0", StoreMeasured("", COST)))
    service.join("c", "a")
    service.plan_tasks(first)
    assert service.state.jobs["a"].caching.kind == "put"
    for number in range(3):
        service.add_worker(f"late{number}")
    assert {task.ref.epoch for worker in service.workers.values() for task in worker.leases.values()} == {0}
