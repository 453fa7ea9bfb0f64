"""Numbers that a user or a peer chooses: what is out of bounds is refused, and what is in them is not listed."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from msgspec import inspect
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control.journal.consumer_events import EpochBegan
from millrace.control.journal.transaction import Transaction
from millrace.control.state.observed import Observed
from millrace.control.tasks.slots import active, missing
from millrace.control.tasks.task_queue import off_task
from millrace.errors import ProtocolError
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.plan import Plan
from millrace.protocol import messages as msg
from millrace.protocol.bounds import MOST, UNBOUNDED, UNCHECKED, checker
from millrace.protocol.cache_messages import StoreMeasured
from millrace.protocol.job_spec import MOST_CONSUMERS, JobSpec

PEERS = msg.FromWorker | msg.FromConsumer
check = checker(PEERS)


def example(kind: inspect.Type, number: float) -> Any:
    """A value of a type with this number wherever one is wanted."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            return number
        case inspect.StructType(cls=struct):
            return filled(struct, number)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [example(item, number)]
        case inspect.TupleType(item_types=items):
            return [example(item, number) for item in items]
        case inspect.DictType(key_type=key, value_type=item):
            return {example(key, number): example(item, number)}
        case inspect.UnionType(types=types):
            return example(next(each for each in types if not isinstance(each, inspect.NoneType)), number)
    return ""  # of the wrong type, perhaps: numbers alone are looked at


def filled(struct: type, number: float, only: str = "") -> Any:
    """A struct with this number in one field, or in all; not where any is allowed."""
    values = {}
    for field in fields_of(struct):
        allowed = struct in UNCHECKED or (struct, field.name) in UNBOUNDED or only not in {"", field.name}
        values[field.name] = example(field.type, 0 if allowed else number)
    return struct(**values)


def fields_of(struct: type) -> Any:
    info: Any = inspect.type_info(struct)
    return info.fields


KINDS = [kind for kind in get_args(PEERS) if kind is not StoreMeasured]  # its curves are checked as they are made
FIELDS = [
    (kind, field.name)
    for kind in KINDS
    for field in fields_of(kind)
    if repr(filled(kind, 7, field.name)) != repr(filled(kind, 0, field.name))
]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=[f"{kind.__name__}.{field}" for kind, field in FIELDS])
@pytest.mark.parametrize("number", [MOST + 1, -MOST - 1])
def test_every_number_of_every_message_is_bounded(kind, field, number):
    check(filled(kind, MOST, field))
    with pytest.raises(ProtocolError, match=rf"{kind.__name__}\.{field}.* is {number}; numbers in messages are within"):
        check(filled(kind, number, field))


def test_the_fields_are_found():
    assert (msg.BeginEpoch, "epoch") in FIELDS
    assert (msg.ConsumerReport, "tasks") in FIELDS
    assert len(FIELDS) > 40


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_times_are_numbers(number):
    with pytest.raises(ProtocolError, match=r"ConsumerReport\.batch_time_s"):
        check(msg.ConsumerReport(0, batch_time_s=number))


def test_a_seed_may_have_all_of_its_bits():
    for seed in (-(1 << 63), (1 << 64) - 1):
        spec = JobSpec("a", b"", "", seed=seed)
        check(msg.JoinJob(spec, "c", states=[Checkpoint(seed=seed)]))


def test_what_cannot_be_journalled_does_not_become_so():
    service = Service()
    service.join("c", "a")
    tx = Transaction(service.state, Observed(), 0.0)
    with pytest.raises(ProtocolError, match="EpochBegan cannot be journalled"):
        tx.emit(EpochBegan("a", 0, 1 << 64))
    assert service.state.jobs["a"].consumers[0].epoch == 0
    assert not tx.events
    assert not tx.encoded


@pytest.mark.parametrize(
    ("sentence", "fields"),
    [
        ("num_consumers is at most 16,384, not 20,000,000", {"num_consumers": 20_000_000}),
        ("tasks is at most 1,000,000, not 100,000,000", {"tasks": 100_000_000}),
        ("workers is at most 100,000, not 1,000,000,000", {"workers": (1, 10**9)}),
        ("accelerators is at least 1, not 0", {"accelerators": 0}),
        ("consumer_index is below 16,384, not 1,000,000,000", {"consumer": 10**9}),
    ],
)
def test_a_job_of_absurd_numbers_is_refused(sentence, fields):
    service = Service()
    assert service.join("c", begin=False, **fields).failure == msg.Failure("PipelineError", sentence)
    assert not service.state.jobs


@pytest.mark.parametrize(
    "fields",
    [
        {"ranks": 1 << 40},
        {"done": 1 << 40},
        {"begun": [(1 << 40, 1)]},
        {"tasks": 8, "done": 9},
        {"alone": (1 << 40, "")},
    ],
)
def test_a_state_of_absurd_numbers_is_refused(fields):
    """A dispatcher does not trust a client to have looked."""
    service = Service()
    peer = service.join("c", states=[Checkpoint(**fields)], num_consumers=fields.get("ranks"), begin=False)
    assert peer.failure.kind in {"StateError", "PipelineError"}
    assert not service.state.jobs


def test_consumers_that_never_came_are_not_listed_for_each_task():
    """Of those that nothing was leased for one is as good as another."""
    service = Service(FakePlan(2000))
    worker = service.add_worker("w")
    service.join("c", num_consumers=MOST_CONSUMERS)
    service.plan_tasks(worker)
    job = service.state.jobs["a"]
    assert len(missing(job)) == MOST_CONSUMERS - 1
    assert len(active(job)) < 100
    for _ in range(200):
        service.finish(worker, min(worker.leases))
    served = {live.slot for live in job.epochs[0].live.values()}
    assert len(served) > 100  # one after the other they all get something


def test_a_walk_without_sharding_lists_no_plan():
    plan = Plan(10**12, 7, tails=True)
    tasks = [off_task(plan, 3, 0, 0, step) for step in range(10)]
    assert len(set(tasks)) == 10
    assert not any(plan.task(task).inputs for task in tasks)


def test_a_walk_without_sharding_comes_to_every_part_once():
    plan = Plan(1000, 7, period=100, tails=True)
    assert plan.mains is not None
    walks = [[off_task(plan, 3, 0, ordinal, step) for step in range(plan.mains)] for ordinal in range(2)]
    mains = [index for index in range(plan.length or 0) if not plan.task(index).inputs]
    assert sorted(walks[0]) == sorted(walks[1]) == mains
    assert walks[0] != walks[1]
