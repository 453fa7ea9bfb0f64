"""Runs one lease in its lane's thread: from the engine's chunks to messages that the core is given."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from millrace.errors import CodecError, ElementTooLargeError
from millrace.graph.nodes import Autocache, Cache, Prefetch, WithOptions
from millrace.planning.plan import Task
from millrace.protocol.messages import FromWorker, LeaseTask
from millrace.wire.error_codec import failure_of
from millrace.worker.cache_access import CacheAccess
from millrace.worker.core.run_state import ALONE
from millrace.worker.core.worker_actions import GoOn, TooLarge
from millrace.worker.core.worker_inputs import (
    BeginOutputs,
    Enter,
    Missing,
    Put,
    RunEnded,
    RunFailed,
    RunFinished,
    Step,
    Stopped,
)
from millrace.worker.job_pipeline import JobPipeline
from millrace.worker.lane_thread import LaneThread, StoppedError
from millrace.worker.leftovers import Ask, LeftoversMissingError, encoded, gather
from millrace.worker.packing import Packer
from millrace.worker.probe_reporter import ProbeReporter

if TYPE_CHECKING:
    from millrace.elements.chunk import Chunk
    from millrace.engine.run.program import Program
    from millrace.worker.core.worker_inputs import OutputMessage

_logger = logging.getLogger(__name__)


def _task_of(program: Program, lease: LeaseTask) -> Task:
    """What a lease has run."""
    if lease.parts:
        return Task(lease.ref.task, lease.parts[0].start, lease.parts[0].stop, parts=tuple(lease.parts))
    return program.plan.task(lease.ref.task if lease.run < 0 else lease.run)


def _until(run: Iterator[Chunk], failures: list[Exception]) -> Iterator[Chunk]:
    """The chunks of a run up to where it fails, which goes to ``failures``: the consumer gets what came before."""
    try:
        yield from run
    except StoppedError:
        raise
    except Exception as error:  # noqa: BLE001 (raised by the caller)
        failures.append(error)


def run_lease(lane: LaneThread, job: JobPipeline, lease: LeaseTask, caches: CacheAccess, ask: Ask) -> RunEnded:
    """Runs ``lease`` to its end, and says how it went. Raises nothing.

    Args:
        lane: the lane that runs it.
        job: the lease's.
        lease: what is run.
        caches: of this worker.
        ask: how leftovers are fetched from other workers (and this one).
    """
    told: list[FromWorker] = []
    outcome: RunFinished | RunFailed | Missing | Stopped
    try:
        lane.ask(Enter())
        outcome = _Run(lane, job, lease).run(caches, ask, told)
    except StoppedError:
        outcome = Stopped()
    except LeftoversMissingError as error:
        outcome = Missing(error.tasks)
    except BaseException as error:  # noqa: BLE001 (user code may raise anything; all of it goes to the consumer)
        outcome = _failed(lease, error)
    return RunEnded(lane.number, outcome, told)


def _failed(lease: LeaseTask, error: BaseException) -> RunFailed:
    doing = f"task {lease.ref.task} of epoch {lease.ref.epoch} of job {lease.ref.job!r}"
    needs = error.needs if isinstance(error, ElementTooLargeError) else 0
    if needs:
        _logger.warning("%s: %s; another worker gets it, if there is one that may keep as much", doing, error)
    return RunFailed(failure_of(error, doing), needs)


class _Run:
    """One run.

    Args:
        lane: the lane that runs it.
        job: the lease's.
        lease: what is run.
    """

    def __init__(self, lane: LaneThread, job: JobPipeline, lease: LeaseTask) -> None:
        self._lane = lane
        self._job = job
        self._lease = lease
        self._reporter = ProbeReporter(lease, lane.ask)
        self._expected: list[int] = []

    def run(self, caches: CacheAccess, ask: Ask, told: list[FromWorker]) -> RunFinished:
        """Runs the lease; what the dispatcher is to hear of its cache goes to ``told``, however it ends."""
        from millrace.elements import codec

        lease, ref, lane = self._lease, self._lease.ref, self._lane
        watch = self._reporter.begin()
        program = self._job.program()
        # What the consumer has is computed again, but neither encoded nor kept, up to the last of it, which is compared
        # with what it was; -1: it has all of it.
        keep = lease.received >= 0
        first = max(lease.received - 1, 0)
        going = lane.ask(BeginOutputs(first, program.changed() if keep and lease.again else ""))
        assert isinstance(going, GoOn)
        task = _task_of(program, lease)
        if lease.flush:
            task = msgspec.structs.replace(task, parent=-1)
        self._expect(program, [lease, *going.coming])
        leftovers = gather(ref.job, ref.epoch, lease.holders, ask) if lease.holders else None
        outputs = 0
        packer = Packer(codec.encode, first)
        with (
            caches.using(lease, told.append) as cache,
            program.run(
                task,
                ref.epoch,
                leftovers,
                watch,
                shape=lease,
                point=cache.point,
                kept=cache.kept,
                owner=lane.consumer,
            ) as run,
        ):
            for chunk in _until(run, failures := list[Exception]()):
                going = self._step(program)
                before, outputs = outputs, outputs + len(chunk)
                self._reporter.outputs = outputs
                if not keep or outputs <= first:
                    continue
                packer.add(chunk.elements[max(first - before, 0) :])
                packer.target = going.message_bytes
                self._put(packer, flush=going.hungry)
            self._put(packer, flush=True)
            for failure in failures:
                raise failure
            cache.whole = True
        self._step(program)
        kept = encoded(run.leftovers) if task.parent >= 0 else None
        nothing = program.gave_nothing(run, outputs)
        return RunFinished(outputs, run.skipped, run.passed, nothing, kept)

    def _step(self, program: Program) -> GoOn:
        going = self._lane.ask(Step())
        assert isinstance(going, GoOn)
        self._expect(program, going.coming)
        return going

    def _expect(self, program: Program, coming: Sequence[LeaseTask]) -> None:
        """Announces to the program what the lane runs now and next, unless it knows."""
        leases = [each.lease for each in coming]
        if leases != self._expected:
            self._expected = leases
            tasks = [(_task_of(program, each), each.ref.epoch) for each in coming if each.received >= 0]
            program.expect(self._lane.consumer, tasks)

    def _put(self, packer: Packer, *, flush: bool) -> None:
        try:
            for message in packer.messages(flush=flush):
                place = self._reporter.between() if self._lease.probe_level >= ALONE else ((), "")
                verdict = self._lane.ask(Put(message, *place))
                if isinstance(verdict, TooLarge):
                    raise _too_large(self._lease, message, verdict.limit)
                packer.target = verdict.message_bytes
        except CodecError as error:
            raise CodecError(f"an element that {self._last_operator()} gives cannot be sent: {error}") from error

    def _last_operator(self) -> str:
        node = self._job.program().graph.root
        while isinstance(node, (Prefetch, Cache, Autocache, WithOptions)):
            node = node.inputs[0]
        return str(node)


def _too_large(lease: LeaseTask, message: OutputMessage, limit: int) -> ElementTooLargeError:
    error = ElementTooLargeError(
        f"output {message.index} of task {lease.ref.task} has {message.size:,} bytes, more than the {limit:,} that "
        f"this worker may keep: yield smaller elements (smaller batches), or give the worker more, e.g. millrace "
        f"worker --buffer-bytes {2 * message.size}"
    )
    error.needs = message.size
    return error
