"""Reweighting: a training sets the weights of its mixture while it reads an epoch.

Readers are told before anything behind the boundary is leased, on the session on which they hear of leases; and what a
worker sends of a task that a reader has not heard of is not taken. So nobody has an element that its state could not
explain, and nobody waits for anybody.
"""

from __future__ import annotations

import msgspec

from millrace.control.journal.epoch_events import EpochClosed, EpochReweighted
from millrace.control.journal.transaction import Transaction
from millrace.control.state.state import Epoch, Job, State
from millrace.control.tasks.epochs import tell_void
from millrace.control.tasks.slots import round_robin
from millrace.errors import PipelineError
from millrace.graph import serialize
from millrace.planning.units import UnitMap
from millrace.planning.weight_changes import checked_weights, mixture_of, set_weights, too_late
from millrace.protocol.weight_messages import SetWeights, WeightsSet


def reweight(tx: Transaction, job: Job, consumer: int, message: SetWeights) -> None:
    """Have weights hold from the first task on that was never leased, in the epoch that a consumer reads and later."""
    number, client = message.epoch, job.consumers[consumer].client
    epoch = job.epochs.get(number)
    answer = WeightsSet(number, number=message.number)
    if epoch is None or job.consumers[consumer].epoch != number:
        text = f"set_weights: epoch {number} is over: call it on the iterator that is being read"
        tx.to_consumer(job, consumer, msgspec.structs.replace(answer, refused=text))
        return
    asked, element = epoch.asked.get(client, (-1, 0))
    if asked != message.number:
        try:
            found = _changes(tx.state, job, client, message)
        except PipelineError as error:
            tx.to_consumer(job, consumer, msgspec.structs.replace(answer, refused=str(error)))
            return
        _forget_prepared(tx, job, number)
        for each in found:
            tx.emit(each)
        element = epoch.asked[client][1]
    _tell_others(tx, job, number, consumer)
    units = _units(job)
    late = too_late(units, mixture_of(units.graph), element)
    told = msgspec.structs.replace(answer, reweighted=epoch.reweighted, element=element, late=late)
    tx.to_consumer(job, consumer, told)


def _units(job: Job) -> UnitMap:
    assert job.tables is not None, "an epoch is open"
    return UnitMap(serialize.unpack(job.spec.structure), job.tables, job.seed)


def _tell_others(tx: Transaction, job: Job, number: int, consumer: int) -> None:
    """Tell all but one consumer that read an epoch, or a later one, which weights were set in it."""
    for reader, place in job.consumers.items():
        if reader != consumer and place.epoch >= number and place.epoch in job.epochs:
            tx.to_consumer(job, reader, WeightsSet(place.epoch, job.epochs[place.epoch].reweighted))


def _changes(state: State, job: Job, client: str, message: SetWeights) -> list[EpochReweighted]:
    """Events that set weights in an epoch and those that were begun after it.

    Raises:
        PipelineError: the job or its pipeline does not allow it.
    """
    if job.spec.sharing:
        raise PipelineError(
            "set_weights would set weights for all jobs that share the computation of the epoch: leave sharing= out"
        )
    if job.spec.sharding == "off":
        raise PipelineError(
            "set_weights needs an order of tasks, from one of which on the weights hold, and with ShardingPolicy.OFF"
            " each worker has its own"
        )
    weights = checked_weights(message.weights)
    units, found = _units(job), list[EpochReweighted]()
    for number, epoch in sorted(job.epochs.items()):
        if number < message.epoch or epoch.ahead:
            continue
        task = first_never_leased(job, epoch)
        plan = state.plan(job, number)
        change = set_weights(units, plan.task, task, number, epoch.reweighted, weights, epoch.pieces)
        who, asked = (client, message.number) if number == message.epoch else ("", -1)
        told = change.node, change.element, change.weights, task, who, asked, change.replaced
        found.append(EpochReweighted(job.name, number, *told))
    return found


def first_never_leased(job: Job, epoch: Epoch) -> int:
    """Find the first task of an epoch such that neither it nor any behind it was ever leased, or read before a resume.

    Where shares are walked in turns, some before it may be free, too.
    """
    every = job.stride if round_robin(job) else 1
    dealt = [at - every + 1 for key, at in epoch.cursors.items() if key[:1] != "o"]
    dealt += [at for key, at in epoch.cursors.items() if key[:1] == "o"]
    read = [1 + max(tasks) for tasks in (epoch.live.keys(), epoch.starts.keys(), *epoch.own.values()) if tasks]
    found = max([0, epoch.low + int.from_bytes(epoch.later, "little").bit_length(), *dealt, *read])
    length = job.tasks_of(epoch)
    return found if length is None else min(found, length)


def _forget_prepared(tx: Transaction, job: Job, number: int) -> None:
    """Forget epochs behind ``number`` that nobody has begun, though some of their tasks may have run.

    They are prepared anew, with the weights from their first task on: no state of before could tell otherwise. What
    was counted of their tasks is taken back, as these run again.
    """
    observed = tx.observed.progress.get(job.name)
    for ahead in [each for each, epoch in job.epochs.items() if each > number and epoch.ahead]:
        for task, live in job.epochs[ahead].live.items():
            tell_void(tx, job, ahead, task, live)
        tx.emit(EpochClosed(job.name, ahead, forgotten=True))
        tx.observed.steps.pop((job.name, ahead), None)
        if observed is not None:
            observed.epochs.pop(ahead, None)
