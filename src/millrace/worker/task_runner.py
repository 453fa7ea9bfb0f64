"""Runs one lease: from the engine's chunks to messages in the lane's buffer, and the word to the dispatcher."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from millrace.engine.user_code.crash_probe import Watch
from millrace.errors import CodecError, ElementTooLargeError
from millrace.graph.nodes import Autocache, Cache, Prefetch, WithOptions
from millrace.planning.plan import Task
from millrace.protocol.cache_messages import CacheUsed
from millrace.protocol.messages import FromWorker, LeaseTask, LeftoversLost, TaskFailed, TaskFinished, TaskReturned
from millrace.wire.error_codec import failure_of
from millrace.worker.cache_access import Caches, Using
from millrace.worker.consumer_lane import Lane, Stop, StoppedError
from millrace.worker.job_lock import Gate
from millrace.worker.job_pipeline import Job
from millrace.worker.leftovers import Ask, LeftoversMissingError, LeftoverStore, gather
from millrace.worker.packing import Packer
from millrace.worker.probe_reporter import Steps

if TYPE_CHECKING:
    from millrace.elements.chunk import Chunk
    from millrace.engine.run.program import Program

_logger = logging.getLogger(__name__)
AHEAD_S = 2.0
"""Seconds of work that a worker wants to hold leases for."""
REST_S = 5.0
"""Seconds without work after which a worker gives memory back that it would need for more."""


class Pace:
    """How long tasks take, and how long the worker has been computing. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: deque[float] = deque(maxlen=20)
        self._active = 0
        self._since = time.monotonic()
        self._busy_s = 0.0
        self._rested = True

    @contextmanager
    def active(self) -> Iterator[None]:
        """A lane computes while the body runs."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside :meth:`active`: it does not while the body runs, as its buffer is full."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    def _enter(self) -> None:
        with self._lock:
            if self._active == 0:
                self._since = time.monotonic()
            self._active += 1
            self._rested = False

    def _leave(self) -> None:
        with self._lock:
            self._active -= 1
            if self._active == 0:
                now = time.monotonic()
                self._busy_s, self._since = self._busy_s + now - self._since, now

    def rests(self) -> bool:
        """Whether no lane has computed for :data:`REST_S` seconds; said once, until one computes again."""
        with self._lock:
            if self._rested or self._active or time.monotonic() - self._since < REST_S:
                return False
            self._rested = True
            return True

    def took(self, seconds: float) -> None:
        """A task was computed in so many seconds, without waiting for its consumer."""
        with self._lock:
            self._times.append(seconds)

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one lane computed."""
        with self._lock:
            return self._busy_s + (time.monotonic() - self._since if self._active else 0.0)

    @property
    def want(self) -> int:
        """Leases to hold: about two seconds of work, from 2 to 16."""
        with self._lock:
            if not self._times:
                return 2
            mean = sum(self._times) / len(self._times)
            return max(2, min(16, math.ceil(AHEAD_S / max(mean, 1e-6))))


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


class Runner:
    """Runs leases of one job; called by each of its lanes in the lane's thread.

    Args:
        job: the job.
        store: where leftovers are kept.
        ask: how leftovers are fetched from other workers (and this one).
        tell: sends a message to the dispatcher.
        pace: measures.
        gate: keeps jobs apart.
        careful: lets one lease at a time be run with care.
        caches: of this worker.
        hurry: has the worker's report sent soon.
    """

    def __init__(
        self,
        job: Job,
        store: LeftoverStore,
        ask: Ask,
        tell: Callable[[FromWorker], None],
        pace: Pace,
        gate: Gate,
        careful: Gate,
        caches: Caches,
        hurry: Callable[[], None],
    ) -> None:
        self._job = job
        self._caches = caches
        self._hurry = hurry
        self._store = store
        self._ask = ask
        self._tell = tell
        self._pace = pace
        self._gate = gate
        self._careful = careful

    def __call__(self, lane: Lane, lease: LeaseTask) -> None:
        """Runs ``lease`` to its end and tells the dispatcher how it went. Raises nothing."""
        outcome: FromWorker | None
        try:
            with self._gate.inside(self._job.name, lane.check), self._pace.active():
                outcome = self._run(lane, lease)
        except StoppedError as stopped:
            self._store.drop((lease.lease,))
            lane.abandon(lease)
            outcome = TaskReturned(lease.ref, lease.lease) if stopped.stop is Stop.RETURN else None
        except LeftoversMissingError as error:
            lane.abandon(lease)
            outcome = LeftoversLost(lease.ref, lease.lease, error.tasks)
        except BaseException as error:  # noqa: BLE001 (user code may raise anything; all of it goes to the consumer)
            outcome = self._failed(lane, lease, error)
        if outcome is not None:
            self._tell(outcome)
        if lease.measure:
            self._hurry()

    def _failed(self, lane: Lane, lease: LeaseTask, error: BaseException) -> TaskFailed | TaskReturned | None:
        """What to tell the dispatcher of a run that failed, once its consumer has what came before that."""
        doing = f"task {lease.ref.task} of epoch {lease.ref.epoch} of job {lease.ref.job!r}"
        needs = error.needs if isinstance(error, ElementTooLargeError) else 0
        if needs:
            _logger.warning("%s: %s; another worker gets it, if there is one that may keep as much", doing, error)
        failed = TaskFailed(lease.ref, lease.lease, failure_of(error, doing), needs)
        try:
            if not needs:
                lane.deliver(lease)
        except StoppedError as stopped:
            return TaskReturned(lease.ref, lease.lease) if stopped.stop is Stop.RETURN else None
        else:
            return failed
        finally:
            lane.abandon(lease)

    def _run(self, lane: Lane, lease: LeaseTask) -> TaskFinished:
        steps = Steps(lane, lease, self._tell, self._careful)
        with steps.running() as watch:
            return self._run_steps(lane, lease, steps, watch)

    def _run_steps(self, lane: Lane, lease: LeaseTask, steps: Steps, watch: Watch | None) -> TaskFinished:
        from millrace.elements import codec

        started = time.monotonic()
        waited = 0.0
        ref = lease.ref
        program = self._job.program()
        # What the consumer has is computed again, but neither encoded nor kept, up to the last of it, which is compared
        # with what it was; -1: it has all of it.
        keep = lease.received >= 0
        first = max(lease.received - 1, 0)
        lane.begin(lease, first, program.changed() if keep and lease.again else "")
        task = _task_of(program, lease)
        if lease.flush:
            task = msgspec.structs.replace(task, parent=-1)
        known = self._expect(program, lane, [lease, *lane.coming()], [])
        leftovers = gather(ref.job, ref.epoch, lease.holders, self._ask) if lease.holders else None
        outputs = 0
        packer = Packer(codec.encode, first)
        with (
            self._cached(lease) as cache,
            program.run(
                task,
                ref.epoch,
                leftovers,
                watch,
                reused=lease.reused,
                point=cache.point,
                kept=cache.kept,
                owner=lane.consumer,
            ) as run,
        ):
            for chunk in _until(run, failures := list[Exception]()):
                lane.check()
                known = self._expect(program, lane, lane.coming(), known)
                before, outputs = outputs, outputs + len(chunk)
                steps.outputs = outputs
                if not keep or outputs <= first:
                    continue
                packer.add(chunk.elements[max(first - before, 0) :])
                waited += self._put(lane, lease, packer, steps, flush=lane.hungry)
            waited += self._put(lane, lease, packer, steps, flush=True)
            for failure in failures:
                raise failure
            cache.whole = True
        self._expect(program, lane, lane.coming(), known)
        left = task.parent >= 0 and self._store.put(lease, run.leftovers)
        nothing = program.gave_nothing(run, outputs)
        if keep:
            lane.finish(lease, outputs, run.skipped, nothing=nothing)
        else:
            lane.abandon(lease)
        if watch is None:  # else it says nothing about other tasks
            self._pace.took(time.monotonic() - started - waited)
        return TaskFinished(ref, lease.lease, outputs, run.skipped, left, run.passed, nothing=nothing)

    def _expect(self, program: Program, lane: Lane, coming: list[LeaseTask], known: list[int]) -> list[int]:
        """Announces what the lane runs now and next, unless these are the ``known`` leases; returns those leases."""
        leases = [each.lease for each in coming]
        if leases != known:
            tasks = [(_task_of(program, each), each.ref.epoch) for each in coming if each.received >= 0]
            program.expect(lane.consumer, tasks)
        return leases

    @contextmanager
    def _cached(self, lease: LeaseTask) -> Iterator[Using]:
        """The body is the run; behind it the dispatcher hears what it did with its cache, however it ended."""
        told: list[CacheUsed] = []
        try:
            with self._caches.using(lease) as (using, told):
                yield using
        finally:
            for message in told:
                self._tell(message)

    def _put(self, lane: Lane, lease: LeaseTask, packer: Packer, steps: Steps, *, flush: bool) -> float:
        waited = 0.0
        packer.target = lane.message_bytes
        try:
            for message in packer.messages(flush=flush):
                with self._pace.paused(), steps.waiting():
                    waited += lane.put(lease, message)
        except CodecError as error:
            raise CodecError(f"an element that {self._last_operator()} gives cannot be sent: {error}") from error
        return waited

    def _last_operator(self) -> str:
        node = self._job.program().graph.root
        while isinstance(node, (Prefetch, Cache, Autocache, WithOptions)):
            node = node.inputs[0]
        return str(node)
