"""Jobs that go on from saved states: a load makes the job begin anew, and voids whatever its earlier life left behind.

A rank's state says what that rank has read. So with several ranks nothing is leased before all have said theirs, as
what one has done another must not get; or each brings the list of them all, and there may be more or fewer ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millrace.control.journal.job_events import StatesLoaded
from millrace.control.journal.task_events import TailDealt
from millrace.control.journal.transaction import Transaction
from millrace.control.membership.admission import Refused
from millrace.control.membership.late_joins import named
from millrace.control.state.state import Job, State
from millrace.control.tasks.epochs import plan_of_state, send_resumed
from millrace.control.tasks.leases import drop
from millrace.control.tasks.slots import gone, missing, round_robin
from millrace.control.tasks.task_queue import cursor_of, owed_by
from millrace.errors import StateError
from millrace.graph import serialize
from millrace.planning.checkpoint import (
    Checkpoint,
    PipelineIdentity,
    alike,
    check,
    fit,
    fit_rounds,
    graph_digest,
    merge,
)
from millrace.planning.plan import Piece
from millrace.planning.units import UnitMap
from millrace.planning.weight_changes import check_changes
from millrace.protocol.messages import Failure, JoinJob


def check_states(message: JoinJob) -> JoinJob:
    """Complete the message with the consumer that its state is of.

    Refuses states that cannot be loaded into the job that it wants, whatever jobs there are.
    """
    if not message.states:
        return message
    spec, states = message.spec, message.states
    ranks = states[0].ranks
    wrong = ""
    if spec.sharding == "off":
        wrong = "with ShardingPolicy.OFF an epoch is not the data, so that there is no place in it to go on from"
    elif states[0].helpers:
        wrong = "the state is of a DataLoader's process without a service, which had tasks of its own"
    elif spec.seed != states[0].seed and None not in (spec.seed, states[0].seed):
        wrong = f"the state is of seed {states[0].seed}, the job is to have {spec.seed}"
    elif len(states) < ranks and (len(states) > 1 or spec.num_consumers != ranks):
        there = ", ".join(str(state.rank) for state in states)
        wrong = (
            f"this is the state of rank {there} of {ranks}: what is left of the epoch is known from all of them. "
            f"Load each rank's own with num_consumers={ranks}, or the list of all {ranks} with any number"
        )
    elif len(states) < ranks and message.consumer not in (None, states[0].rank):
        wrong = (
            f"consumer {message.consumer} loads the state of rank {states[0].rank}; load the list of all ranks' states"
        )
    try:
        for state in states:
            check(state)
            if spec.coordinated:
                fit_rounds(state, spec.num_consumers, spec.cycle_length)
        alike(states)
        if len(states) == ranks:
            merge(states)
        fit(states[0].identity, PipelineIdentity(graph_digest(serialize.unpack(spec.structure))))
    except StateError as error:
        wrong = wrong or str(error)
    if wrong:
        raise Refused.because("StateError", wrong)
    return msgspec.structs.replace(message, consumer=states[0].rank) if len(states) < ranks else message


def check_awaited(job: Job, message: JoinJob) -> None:
    """Refuse who has nothing to say to a job that waits for states."""
    if job.first is None and not message.states and not message.resume:
        raise Refused.because(
            "StateError",
            f"job {job.name!r} waits for the states of its {named(missing(job))}, to go on from there: load this one's",
        )


def same_load(job: Job, message: JoinJob) -> bool:
    """Whether the job goes on from these states already, or waits for this one."""
    states = message.states
    if not job.states or job.failure is not None:
        return False
    if any(place.client == message.client for place in job.consumers.values()):
        # It asks again, as it has not heard the answer: its states are part of what the job goes on from.
        return all(job.states.get(state.rank) == state for state in states)
    if len(states) < states[0].ranks:
        return job.first is None and not _differ(job, states[0])
    waited_for = missing(job)
    if not waited_for or message.consumer not in (None, *waited_for):
        return False
    return job.states == {state.rank: state for state in states}


def _differ(job: Job, state: Checkpoint) -> bool:
    try:
        alike([state, *(known for rank, known in job.states.items() if rank != state.rank)])
    except StateError:
        return True
    return False


def load(tx: Transaction, job: Job, states: list[Checkpoint]) -> Failure | None:
    """Take note of states; why the job cannot go on from them, if so."""
    tx.emit(StatesLoaded(job.name, states))
    if job.first is not None:
        try:
            merge(list(job.states.values()))
        except StateError as error:
            return Failure("StateError", str(error))
        for consumer in job.consumers:
            send_resumed(tx, job, consumer)
    return check_data(tx.state, job, states)


def make_up(tx: Transaction, job: Job) -> None:
    """Deal slots whose readers went what is theirs of a resumed epoch, as far as tails begun before it need it.

    In a fixed order, where nobody else gets that. Nobody reads it: it runs for what it leaves over.
    """
    number = job.first
    if number is None or not job.states or not round_robin(job) or number not in job.epochs:
        return
    epoch = job.epochs[number]
    for slot in range(job.stride):
        if not gone(job, number, slot):
            continue
        last = owed_by(tx.state, job, number, slot)
        for share in range(len(epoch.owners)) if job.spec.statically_owned else (-1,):
            key, ahead = cursor_of(job, epoch, share, slot)
            while ahead is not None and ahead[0] <= last:
                tx.emit(TailDealt(job.name, number, ahead[0], slot, {key: ahead[1]}))
                drop(tx, job, number, ahead[0])
                key, ahead = cursor_of(job, epoch, share, slot)


def check_data(state: State, job: Job, states: Iterable[Checkpoint]) -> Failure | None:
    """Why these states of the job are not of its data, if that is known and so; states that are alike cost one look."""
    if job.tables is None:
        return None
    lengths: dict[tuple[int, tuple[Piece, ...], int], int | None] = {}
    try:
        for loaded in states:
            cut = loaded.shares, tuple(loaded.pieces), loaded.chunks
            if cut not in lengths:
                lengths[cut] = plan_of_state(state, job, loaded).length
            fit(loaded.identity, PipelineIdentity("", job.prints, lengths[cut]))
            if loaded.reweighted:
                units = UnitMap(serialize.unpack(job.spec.structure), job.tables, job.seed)
                check_changes(units, loaded.epoch, loaded.reweighted)
    except StateError as error:
        return Failure("StateError", str(error))
    return None


def void(job: Job, message: JoinJob) -> Failure:
    """Failure for the consumers of a job that begins anew."""
    who = f"process {message.pid} on {message.host or 'another host'}"
    return Failure(
        "ConsumerConflictError",
        f"job {job.name!r} was begun anew by {who} from saved states, so that this process reads nothing of it any "
        "more; load the state of this consumer too, or start the training loop again",
    )
