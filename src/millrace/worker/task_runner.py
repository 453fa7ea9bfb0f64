"""Task runner: the thread of a lane, which runs leases from the engine's chunks to messages for the core."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from millrace.engine.user_code.crash_probe import RunStoppedError
from millrace.errors import CodecError, ElementTooLargeError
from millrace.graph.nodes import Autocache, Cache, Prefetch, WithOptions
from millrace.planning.plan import Task
from millrace.protocol.messages import FromWorker, LeaseTask
from millrace.protocol.sampler_messages import SamplersDrew
from millrace.wire.error_codec import failure_of
from millrace.worker.cache_access import CacheAccess
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_inputs as inp
from millrace.worker.core.run_state import PROBED
from millrace.worker.job_pipeline import JobPipeline
from millrace.worker.leftovers import Ask, LeftoversMissingError, encoded, gather
from millrace.worker.packing import Packer, RoundPacker, is_due
from millrace.worker.probe_reporter import ProbeReporter

if TYPE_CHECKING:
    from millrace.elements.chunk import Chunk
    from millrace.engine.run.program import Program

_logger = logging.getLogger(__name__)


def _task_of(program: Program, lease: LeaseTask) -> Task:
    """Find the task that a lease has run."""
    if lease.parts:
        return Task(lease.ref.task, lease.parts[0].start, lease.parts[0].stop, parts=tuple(lease.parts))
    plan = program.plan_in_chunks(lease.chunks) if lease.chunks else program.plan
    return plan.task(lease.ref.task if lease.run < 0 else lease.run)


def _until(run: Iterator[Chunk], failures: list[Exception]) -> Iterator[Chunk]:
    """Yield a run's chunks up to its failure, which goes to ``failures``: readers get what came before."""
    try:
        yield from run
    except StoppedError:
        raise
    except Exception as error:  # noqa: BLE001 (raised by the caller)
        failures.append(error)


class StoppedError(RunStoppedError):
    """The core has told a run to stop; raised inside the lane's thread, caught by it."""


class LaneThread:
    """Thread of a lane: it runs the leases that the core starts, one by one, and asks the core on their way.

    Args:
        number: of the lane, in the core.
        slot: number of its slot.
        feed: gives the core an input; what it says about this lane comes through :meth:`start` and :meth:`resume`.
        caches: of this worker.
        fetch: gets leftovers from other workers (and this one).

    Attributes:
        batch: elements that made a message of the lease before.
        slowest_s: seconds of the slowest chunk lately.
    """

    def __init__(
        self, number: int, slot: int, feed: Callable[[inp.Input], None], caches: CacheAccess, fetch: Ask
    ) -> None:
        self.number, self.slot = number, slot
        self._feed, self._caches, self._fetch = feed, caches, fetch
        self.batch, self.slowest_s = 1, 0.0
        self._leases: queue.SimpleQueue[tuple[JobPipeline, LeaseTask] | None] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[act.Verdict] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"millrace-lane-{slot}", daemon=True)
        self._thread.start()

    def start(self, job: JobPipeline, lease: LeaseTask) -> None:
        """Have the thread run a lease."""
        self._leases.put((job, lease))

    def resume(self, verdict: act.Verdict) -> None:
        """Answer what the run has asked."""
        self._verdicts.put(verdict)

    def end(self) -> None:
        """Have the thread end; nothing runs."""
        self._leases.put(None)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread, up to ``timeout`` seconds if that is given; return whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def ask(self, want: inp.Want) -> act.GoOn | act.TooLarge:
        """Ask the core, in the run; wait for its answer.

        Raises:
            StoppedError: if the run is to stop.
        """
        self._feed(inp.RunAsks(self.number, want))
        verdict = self._verdicts.get()
        if isinstance(verdict, act.Halt):
            raise StoppedError
        return verdict

    def say(self, message: FromWorker) -> None:
        """Have the dispatcher told something, in the run."""
        self._feed(inp.Say(message))

    def _work(self) -> None:
        while (work := self._leases.get()) is not None:
            self._feed(self._run(*work))
            work = None  # what a run leaves is not kept while nothing runs

    def _run(self, job: JobPipeline, lease: LeaseTask) -> inp.RunEnded:
        """Run a lease to its end, and say how it went. Raises nothing."""
        told: list[FromWorker] = []
        outcome: inp.Outcome
        try:
            self.ask(inp.Enter())
            outcome = _Run(self, job, lease, self._caches).run(self._fetch, told)
        except StoppedError:
            outcome = inp.Stopped()
        except LeftoversMissingError as error:
            outcome = inp.Missing(error.tasks)
        except BaseException as error:  # noqa: BLE001 (user code may raise anything; all of it goes to the reader)
            outcome = _failed(lease, error)
        return inp.RunEnded(self.number, outcome, told)


def _failed(lease: LeaseTask, error: BaseException) -> inp.RunFailed:
    doing = f"task {lease.ref.task} of epoch {lease.ref.epoch} of job {lease.ref.job!r}"
    failure = failure_of(error, doing)
    if failure.needs:
        _logger.warning("%s: %s; another worker gets it, if there is one that may keep as much", doing, error)
    return inp.RunFailed(failure)


class _Run:
    """Run of one lease.

    Args:
        lane: the lane that runs it.
        job: the lease's.
        lease: what is run.
        caches: of this worker.
    """

    def __init__(self, lane: LaneThread, job: JobPipeline, lease: LeaseTask, caches: CacheAccess) -> None:
        self._lane = lane
        self._job = job
        self._lease = lease
        self._caches = caches
        self._reporter = ProbeReporter(lease, lane.ask)
        self._expected: list[int] = []
        self._drawn = 0

    def run(self, ask: Ask, told: list[FromWorker]) -> inp.RunFinished:
        """Run the lease; what the dispatcher is to hear of its cache goes to ``told``, however it ends."""
        from millrace.elements import codec

        lease, ref, lane = self._lease, self._lease.ref, self._lane
        watch = self._reporter.begin()
        program = self._job.program()
        # What the readers have is computed again, but neither encoded nor kept, up to the last of it, which is compared
        # with what it was; -1: they have all of it.
        keep = lease.received >= 0
        first = max(lease.received - 1, 0)
        going = lane.ask(inp.BeginOutputs(first, program.changed() if keep and lease.again else ""))
        assert isinstance(going, act.GoOn)
        task = _task_of(program, lease)
        self._job.label_chunks(lease.chunks)
        if lease.flush:
            task = msgspec.structs.replace(task, parent=-1)
        self._expect(program, [lease, *going.coming])
        leftovers = gather(ref.job, ref.epoch, lease.holders, ask) if lease.holders else None
        made, together = 0, self._job.spec.together
        packer: Packer | RoundPacker
        if self._job.spec.coordinated:
            packer = RoundPacker(codec.encode, together, first)
        else:
            packer = Packer(codec.encode, first, batch=lane.batch)
        with (
            self._caches.using(lease, told.append) as cache,
            program.run(
                task,
                ref.epoch,
                leftovers,
                watch,
                shape=lease,
                point=cache.point,
                writer=cache.writer,
                owner=lane.slot,
            ) as run,
        ):
            self._say_drawn(run.drawn)
            began = time.perf_counter()
            for chunk in _until(run, failures := list[Exception]()):
                now = time.perf_counter()
                lane.slowest_s, began = max(0.99 * lane.slowest_s, now - began), now
                self._say_drawn(run.drawn)
                going = self._step(program)
                before, made = made, made + len(chunk)
                self._reporter.outputs = made
                if not keep or made <= first * together:
                    continue
                packer.add(chunk.elements[max(first * together - before, 0) :])
                packer.target = going.message_bytes
                due = is_due(waiting=going.waiting, hungry=going.hungry, slowest_s=lane.slowest_s)
                self._put(packer, flush=due)
            self._say_drawn(run.drawn)
            self._put(packer, flush=True)
            lane.batch = packer.batch
            for failure in failures:
                raise failure
            cache.whole = True
        self._step(program)
        kept = encoded(run.leftovers) if task.parent >= 0 else None
        nothing = program.gave_nothing(run, made)
        outputs, more = divmod(made, together)
        assert not more, f"{self._last_operator()} gave {more} batches too many for whole rounds"
        return inp.RunFinished(outputs, run.skipped, run.passed, nothing, kept, run.left_out)

    def _say_drawn(self, drawn: dict[str, str]) -> None:
        """Say what samplers have drawn for the task, if it is more than was said."""
        if len(drawn) > self._drawn:
            self._drawn = len(drawn)
            self._lane.say(SamplersDrew(self._lease.ref.job, self._lease.ref.epoch, dict(drawn)))

    def _step(self, program: Program) -> act.GoOn:
        going = self._lane.ask(inp.Step())
        assert isinstance(going, act.GoOn)
        self._expect(program, going.coming)
        return going

    def _expect(self, program: Program, coming: Sequence[LeaseTask]) -> None:
        """Announce to the program what the lane runs now and next, unless it knows."""
        from millrace.engine.run.outlook import ComingTask

        leases = [each.lease for each in coming]
        if leases != self._expected:
            self._expected = leases
            tasks = (
                ComingTask(_task_of(program, each), each.ref.epoch, each, self._caches.point(each))
                for each in coming
                if each.received >= 0
            )
            program.expect(self._lane.slot, tasks)

    def _put(self, packer: Packer | RoundPacker, *, flush: bool) -> None:
        try:
            for message in packer.messages(flush=flush):
                place = self._reporter.between() if self._lease.probe_level >= PROBED else ((), "")
                verdict = self._lane.ask(inp.Put(message, *place))
                if isinstance(verdict, act.TooLarge):
                    raise _too_large(self._lease, message, verdict.limit)
                packer.target = verdict.message_bytes
        except CodecError as error:
            raise CodecError(f"an element that {self._last_operator()} gives cannot be sent: {error}") from error

    def _last_operator(self) -> str:
        node = self._job.program().graph.root
        while isinstance(node, (Prefetch, Cache, Autocache, WithOptions)):
            node = node.inputs[0]
        return str(node)


def _too_large(lease: LeaseTask, message: inp.OutputMessage, limit: int) -> ElementTooLargeError:
    what = f"output {message.index}"
    if message.shares:  # none of its batches can be sent before all are there
        what = f"round {message.index}, a batch for each of {len(message.shares)} consumers,"
    error = ElementTooLargeError(
        f"{what} of task {lease.ref.task} has {message.size:,} bytes, more than the {limit:,} that this worker may "
        "keep: yield smaller elements (smaller batches), or give the worker more, e.g. millrace worker "
        f"--buffer-bytes {2 * message.size}"
    )
    error.needs = message.size
    return error
