"""Everything a worker holds, by job: lanes, pipelines, leftovers; and what each word of the dispatcher does to it."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

import numpy as np

from millrace.elements.shared import Arena
from millrace.engine.run.host_limits import resident_bytes, run_delay_s
from millrace.errors import ServiceUnreachableError
from millrace.functions.module_importer import uninstall
from millrace.planning.split_table import pack_tables, summaries
from millrace.protocol import data_messages
from millrace.protocol.cache_messages import BlocksKnown, MeasureStore
from millrace.protocol.messages import (
    ChooseSharding,
    CloseJob,
    ForgetTasks,
    FromWorker,
    HeldTask,
    LeaseTask,
    ListSources,
    OpenJob,
    OutputsReceived,
    RevokeTask,
    ShardingChosen,
    SourcesFailed,
    SourcesListed,
    TaskGoOn,
    TaskRef,
    TaskReturned,
    ToWorker,
    WorkerReport,
)
from millrace.wire.backoff import delays
from millrace.wire.data.data_connection import BulkConnection
from millrace.wire.error_codec import failure_of
from millrace.worker.cache_access import Caches
from millrace.worker.consumer_lane import Lane
from millrace.worker.delivery_server import fetch_leftovers, serve
from millrace.worker.job_lock import Gate
from millrace.worker.job_pipeline import Fetch, Job, Share
from millrace.worker.leftovers import LeftoverStore, answer
from millrace.worker.memory_release import give_back
from millrace.worker.task_runner import Pace, Runner

if TYPE_CHECKING:
    from millrace.ops.stacking import Allocate

JOIN_S = 10.0
"""How long the end of a job waits for its runs to stop; user code can't be interrupted."""

_logger = logging.getLogger(__name__)


class Desk:
    """What a worker does, apart from its session. Thread-safe; no method but those named so waits for user code.

    Args:
        tell: sends a message to the dispatcher.
        fetch: bytes by digest, from the dispatcher.
        put: gives it bytes, unless it has them, and returns their digest.
        token: that other workers demand.
        threads: for user functions; None: by the machine.
        buffer_bytes: for outputs, over all lanes.
        arena: what batches are written into, so that they can be lent; None: ordinary memory.
        hurry: has :meth:`report` sent soon.
    """

    def __init__(
        self,
        tell: Callable[[FromWorker], None],
        fetch: Fetch,
        put: Callable[[bytes], str],
        *,
        token: str | None,
        threads: int | None,
        buffer_bytes: int,
        arena: Arena | None = None,
        hurry: Callable[[], None] = lambda: None,
        share: Share | None = None,
    ) -> None:
        self.address = ""
        """Where this worker is asked for what it holds; known once its server listens."""
        self._tell = tell
        self._fetch, self._share = fetch, share
        self._put = put
        self._hurry = hurry
        self._token = token
        self._threads = threads
        self._buffer_bytes = buffer_bytes
        self._arena = arena
        self._allocate: Allocate = np.empty if arena is None else arena.allocate
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._jobs: dict[str, Job] = {}
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._current = ""
        self._leaving = False
        self._store = LeftoverStore()
        self.caches = Caches()
        self._pace = Pace()
        self._gate = Gate()
        self._careful = Gate()

    # -- the dispatcher's words ----------------------------------------------------------------------------------------

    def told(self, message: ToWorker) -> None:
        """Does what the dispatcher says; what takes time goes on in other threads."""
        match message:
            case LeaseTask():
                self._lease(message)
            case RevokeTask(ref=ref, lease=lease):
                self._revoke(ref, lease)
            case ForgetTasks(refs=refs):
                self._forget(refs)
            case TaskGoOn(ref=ref):
                for lane in self._lanes_of(ref.job):
                    lane.noted(message)
            case OutputsReceived(refs=refs):
                self._spare(refs)
            case BlocksKnown() | MeasureStore():
                self._about_cache(message)
            case OpenJob():
                self._open(message)
            case CloseJob(job=job):
                self._close(job)
            case ListSources(job=job):
                self._aside(functools.partial(self._list, job))
            case ChooseSharding():
                self._aside(functools.partial(self._choose, message))
            case _:
                _logger.warning("nothing is known to do about %s", type(message).__name__)

    def _about_cache(self, message: BlocksKnown | MeasureStore) -> None:
        if isinstance(message, BlocksKnown):
            self.caches.known(message)
        else:
            self._aside(lambda: self._tell(self.caches.measure(message.path, message.room)))

    def _open(self, message: OpenJob) -> None:
        with self._lock:
            self._current = message.job
            job = self._jobs.get(message.job)
        if job is not None:
            if job.update(message):
                return
            self._close(message.job)  # another job has got the name
        with self._lock:
            self._jobs[message.job] = Job(message, self._fetch, self._threads, self._allocate, self._share)

    def _lease(self, message: LeaseTask) -> None:
        with self._lock:
            self._current = message.ref.job
            leaving = self._leaving
        lane = None if leaving else self._lane(message.ref.job, message.consumer)
        if lane is None:
            self._tell(TaskReturned(message.ref, message.lease))
        else:
            lane.submit(message)

    def _revoke(self, ref: TaskRef, lease: int) -> None:
        if all(lane.revoke((ref.epoch, ref.task), lease) for lane in self._lanes_of(ref.job)):
            self._store.drop((lease,))  # it may just have finished
            self._tell(TaskReturned(ref, lease))
        self._poke()

    def _spare(self, refs: Sequence[TaskRef]) -> None:
        for ref in refs:
            for lane in self._lanes_of(ref.job):
                lane.spare((ref.epoch, ref.task))

    def _forget(self, refs: Sequence[TaskRef]) -> None:
        for ref in refs:
            for lane in self._lanes_of(ref.job):
                lane.forget((ref.epoch, ref.task))
        self._store.forget(refs)
        self._poke()

    def _poke(self) -> None:
        self._gate.poke()
        self._careful.poke()

    def drop(self, leases: Container[int]) -> None:
        """The dispatcher is back: these leases became somebody else's; and it may have missed where runs are."""
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.drop(leases)
        self._store.drop(leases)
        self._poke()
        for lane in lanes:
            unanswered = lane.unanswered
            if unanswered is not None:
                self._tell(unanswered)

    def _close(self, name: str) -> None:
        with self._lock:
            job = self._jobs.pop(name, None)
            lanes = [self._lanes.pop(key) for key in list(self._lanes) if key[0] == name]
            self._share_out()
        self._store.forget_job(name)
        for lane in lanes:
            lane.close()
        self._poke()
        if job is not None:
            self._aside(functools.partial(self._end, job, lanes))

    def _end(self, job: Job, lanes: Sequence[Lane]) -> None:
        if not all(lane.join(JOIN_S) for lane in lanes):
            _logger.warning(
                "job %s: user code did not stop within %g s; it goes on beside other jobs", job.name, JOIN_S
            )
            return
        job.close()
        if not self._jobs:
            with self._gate.inside(""):  # no job's functions are unpacked meanwhile
                if not self._jobs:
                    uninstall()
            self.caches.close()
        if self._arena is not None:
            self._arena.trim()
        give_back()

    # -- planning tasks, on threads of their own -----------------------------------------------------------------------

    def _aside(self, action: Callable[[], None]) -> None:
        threading.Thread(target=action, name="millrace-aside", daemon=True).start()

    def _list(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is None:
            return  # closed meanwhile
        try:
            with self._gate.inside(name):
                _, tables, prints, points = job.list_sources()
            digest = self._hand_over(job, pack_tables(tables))
            if not digest:
                return
            answer: FromWorker = SourcesListed(name, summaries(tables), prints, points, digest, job.generation)
        except BaseException as error:  # noqa: BLE001 (opening the bundle runs the user's code)
            answer = SourcesFailed(name, failure_of(error, f"listing the sources of job {name!r}"))
        self._tell(answer)

    def _hand_over(self, job: Job, tables: bytes) -> str:
        """Gives the dispatcher split tables, however long it is away; their digest, or nothing if the job is over."""
        pauses = delays()
        while self._jobs.get(job.name) is job and not self._over.is_set():
            try:
                return self._put(tables)
            except ServiceUnreachableError as error:
                _logger.info("the split tables of job %s wait: %s", job.name, error)
                self._over.wait(next(pauses))
        return ""

    def _choose(self, message: ChooseSharding) -> None:
        job = self._jobs.get(message.job)
        if job is None:
            return
        try:
            with self._gate.inside(message.job):
                owners = job.choose(message.tasks, message.workers)
            self._tell(ShardingChosen(message.job, message.epoch, owners))
        except BaseException as error:  # noqa: BLE001 (it is the user's function)
            self._tell(SourcesFailed(message.job, failure_of(error, f"the sharding function of job {message.job!r}")))

    # -- lanes and peers -----------------------------------------------------------------------------------------------

    def _lanes_of(self, name: str) -> list[Lane]:
        with self._lock:
            return [lane for (job, _), lane in self._lanes.items() if job == name]

    def _lane(self, name: str, consumer: int) -> Lane | None:
        with self._lock:
            lane = self._lanes.get((name, consumer))
            job = self._jobs.get(name)
            if lane is not None or job is None:
                return lane
            runner = Runner(
                job, self._store, self._ask, self._tell, self._pace, self._gate, self._careful, self.caches, self._hurry
            )
            lane = self._lanes[name, consumer] = Lane(
                name,
                consumer,
                self._buffer_bytes,
                self._buffer_bytes,
                in_order=job.spec.deterministic,
                run=runner,
            )
            self._share_out()
            return lane

    def _share_out(self) -> None:
        for lane in self._lanes.values():
            lane.resize(self._buffer_bytes // len(self._lanes))

    def serve(self, connection: BulkConnection) -> None:
        """Serves one consumer or one tail's worker, until it goes."""
        serve(connection, self._lane_for, self._store)

    def _lane_for(self, opening: data_messages.Open) -> Lane | None:
        job = self._jobs.get(opening.job)
        if job is None or job.generation != opening.generation:
            return None  # it has joined a job that is over, or one that this worker is about to hear of
        return self._lane(opening.job, opening.consumer)

    def _ask(self, address: str, refs: list[TaskRef]) -> list[tuple[data_messages.Leftovers, memoryview]]:
        if address != self.address:
            return fetch_leftovers(address, refs, self._token)
        found = []
        for ref in refs:
            header, buffers = answer(self._store, ref)
            found.append((header, memoryview(b"".join(buffers))))
        return found

    # -- what the dispatcher hears -------------------------------------------------------------------------------------

    def held(self) -> list[HeldTask]:
        """Everything that is leased to this worker or kept by it."""
        with self._lock:
            lanes = list(self._lanes.values())
        # Of what was read to its end, leftovers may be all that is left; first, so that a lane's word counts.
        held = {entry.lease: entry for entry in self._store.held()}
        held.update((entry.lease, entry) for lane in lanes for entry in lane.held(self._store.has))
        return list(held.values())

    @property
    def want(self) -> int:
        """How many unfinished leases this worker should hold."""
        return self._pace.want

    def report(self) -> WorkerReport:
        """The heartbeat."""
        with self._lock:
            name = self._current
            job = self._jobs.get(name)
            listing = next(((each.name, each.seen) for each in self._jobs.values() if each.seen is not None), ("", 0))
        if self._pace.rests():
            self._aside(give_back)
        cores = self._threads or os.cpu_count() or 1
        return WorkerReport(
            self._pace.want,
            name if job is not None else "",
            [lane.report() for lane in self._lanes_of(name)],
            job.measures() if job is not None else [],
            self._pace.busy_s,
            time.process_time() / cores,
            cores,
            run_delay_s(),
            *listing,
            memory_bytes=resident_bytes(),
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def leave(self, deadline: float) -> bool:
        """Takes nothing on any more, gives back what has not begun, and waits until the rest was read; whether it was.

        Args:
            deadline: until when to wait, in monotonic seconds.
        """
        with self._lock:
            self._leaving = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            for lease in lane.unstarted():
                self._tell(TaskReturned(lease.ref, lease.lease))
        return all([*(lane.wait_idle(deadline) for lane in lanes), self._store.wait_empty(deadline)])

    def close(self, patience_s: float = JOIN_S) -> None:
        """Ends all jobs; waits so long for their runs to stop."""
        self._over.set()
        with self._lock:
            names = list(self._jobs)
            ending = [
                (job, [lane for key, lane in self._lanes.items() if key[0] == job.name]) for job in self._jobs.values()
            ]
        for name in names:
            self._close(name)
        deadline = time.monotonic() + patience_s
        for _, lanes in ending:
            for lane in lanes:
                lane.join(max(deadline - time.monotonic(), 0.0))
