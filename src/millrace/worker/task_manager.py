"""Task manager: the shell around the worker's core, with one lock, and what the core has it do."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from millrace.elements.shared import Arena
from millrace.errors import ServiceError, ServiceUnreachableError
from millrace.functions.module_importer import uninstall
from millrace.host_limits import cpu_quota, resident_bytes, run_delay_s, usable_cores
from millrace.planning.server_zones import servers_asked
from millrace.planning.split_table import pack_tables, summaries
from millrace.protocol import data_messages
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import BlocksKnown, MeasureStore
from millrace.protocol.cache_server_messages import CacheServersKnown
from millrace.wire.backoff import delays
from millrace.wire.data.data_connection import DataConnection
from millrace.wire.data.data_keys import consumer_key, read_claims, worker_credential
from millrace.wire.error_codec import failure_of
from millrace.wire.tls_files import TlsFiles
from millrace.worker.cache_access import CacheAccess
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_inputs as inp
from millrace.worker.core.worker_core import WorkerCore
from millrace.worker.delivery_server import PeerConnection, fetch_leftovers
from millrace.worker.job_pipeline import Fetch, JobPipeline, Share
from millrace.worker.leftovers import answer
from millrace.worker.memory_release import give_back
from millrace.worker.source_cache import SourceCache, connect
from millrace.worker.task_runner import LaneThread

if TYPE_CHECKING:
    from millrace.ops.stacking import Allocate

JOIN_S = 10.0
"""Seconds after which a job's end tells of runs that have not stopped; user code can't be interrupted."""

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class TaskManager:
    """Manager of a worker's jobs, runs and peers. Thread-safe; no method but :meth:`serve` and :meth:`close` waits.

    Args:
        tell: sends a message to the dispatcher, without waiting.
        fetch: bytes by digest, from the dispatcher.
        put: gives it bytes, unless it has them, and returns their digest.
        threads: for user functions; None: by the machine.
        buffer_bytes: for outputs, over all lanes.
        arena: what batches are written into, so that they can be lent; None: ordinary memory.
        hurry: has :meth:`report` called soon.
        end: has the process end; told whether the time for an orderly end has sufficed.
        share: see :class:`JobPipeline`.
    """

    def __init__(
        self,
        tell: Callable[[msg.FromWorker], None],
        fetch: Fetch,
        put: Callable[[bytes], str],
        *,
        threads: int | None,
        buffer_bytes: int,
        arena: Arena | None = None,
        hurry: Callable[[], None] = lambda: None,
        end: Callable[[bool], None] = lambda _: None,
        share: Share | None = None,
    ) -> None:
        self.address = ""
        """Address at which this worker is asked for what it holds; known once its server listens."""
        self.tls: TlsFiles | None = None
        """Certificates of this host, for what other workers are asked for."""
        self.zone = ""
        """Zone that this worker is in: it asks the cache servers there, if there are any; empty: in none."""
        self._tell = tell
        self._fetch, self._share = fetch, share
        self._put = put
        self._hurry, self._end_process = hurry, end
        self._threads = threads
        self._arena = arena
        self._lock = threading.Lock()
        self._core = WorkerCore(buffer_bytes, time.monotonic())
        self._over = threading.Event()
        self._jobs: dict[str, JobPipeline] = {}
        self._lanes: dict[int, LaneThread] = {}
        self._cache_servers = CacheServersKnown([])
        self.caches = CacheAccess()
        # Peers and whoever waits for code are what this shell has fed.
        self._does: dict[type[act.Action], Callable[[Any], None]] = {
            act.Resume: lambda action: self._lanes[action.lane].resume(action.verdict),
            act.Send: lambda action: action.peer.send(action.header, action.buffers, shared=action.shared),
            act.TellDispatcher: lambda action: self._tell(action.message),
            act.HurryReport: lambda _: self._hurry(),
            act.StartRun: self._start_run,
            act.EndLane: self._end_lane,
            act.CodeGranted: lambda action: action.who.set(),
            act.SendLeftovers: lambda action: action.peer.send(*answer(action.ref, action.kept)),
            act.HangUp: lambda action: action.peer.hang_up(),
            act.PrepareJob: self._prepare,
            act.ClosePipeline: self._close_pipeline,
            act.Rest: lambda _: self._aside(give_back),
            act.EndProcess: lambda action: self._end_process(action.in_time),
        }

    # -- the core ------------------------------------------------------------------------------------------------------

    def feed(self, item: inp.Input) -> None:
        """Give the core an input, and do what it says.

        Raises:
            MillraceError: if ``tell`` does.
        """
        with self._lock:
            for action in self._core.handle(item, time.monotonic()):
                self._does[type(action)](action)

    def told(self, message: msg.ToWorker) -> None:
        """Take a message of the dispatcher in; what takes time goes on in other threads."""
        match message:
            case BlocksKnown():
                self.caches.known(message)
            case CacheServersKnown():
                self._use_cache_servers(message)
            case MeasureStore(path=path, room=room):
                self._aside(lambda: self.feed(inp.Say(self.caches.measure(path, room))))
            case _:
                self.feed(inp.Heard(message))

    def _start_run(self, action: act.StartRun) -> None:
        lane = self._lanes.get(action.lane)
        if lane is None:
            lane = LaneThread(action.lane, action.slot, self.feed, self.caches, self._leftovers_of)
            self._lanes[action.lane] = lane
        lane.start(self._jobs[action.job], action.lease)

    def _end_lane(self, action: act.EndLane) -> None:
        lane = self._lanes.pop(action.lane, None)  # None: it never ran anything
        if lane is not None:
            lane.end()

    def _prepare(self, action: act.PrepareJob) -> None:
        message = action.message
        job = self._jobs.get(message.job)
        if job is None:
            assert isinstance(message, msg.OpenJob), "the core knows which jobs are open"
            self._jobs[message.job] = self._pipeline(message)
            return
        match message:
            case msg.OpenJob():
                job.update(message)
            case msg.ListSources():
                self._aside(lambda: self._say(job, "listing the sources", lambda: self._list(job, message.tables)))
            case msg.ChooseSharding():
                self._aside(lambda: self._say(job, "the sharding function", lambda: self._choose(job, message)))

    def _pipeline(self, opened: msg.OpenJob) -> JobPipeline:
        def link(address: str) -> DataConnection:
            return connect(address, job.spec.tenant, job.opened.source_key, self.tls)

        sources = SourceCache(link, self._asked(self._cache_servers))
        sources.past = opened.job in self._cache_servers.past
        # Consumers of another job may still have mapped what those of this one would be sent.
        allocate: Allocate = (
            np.empty if self._arena is None else functools.partial(self._arena.allocate, owner=object())
        )
        fetch: Fetch = functools.partial(self._patiently, opened.job, self._fetch)
        share = None if self._share is None else functools.partial(self._patiently, opened.job, self._share)
        job = JobPipeline(opened, fetch, self._threads, allocate, share, sources)
        return job

    def _use_cache_servers(self, known: CacheServersKnown) -> None:
        with self._lock:
            self._cache_servers = known
            jobs = list(self._jobs.values())
        for job in jobs:
            if job.sources is not None:
                job.sources.past = job.name in known.past
                job.sources.use(self._asked(known))

    def _asked(self, known: CacheServersKnown) -> list[str]:
        return servers_asked(known.addresses, known.zones, self.zone)

    def _close_pipeline(self, action: act.ClosePipeline) -> None:
        self._aside(functools.partial(self._end, self._jobs.pop(action.job), action.lanes))

    # -- what runs in other threads ------------------------------------------------------------------------------------

    def _leftovers_of(self, address: str, refs: list[msg.TaskRef]) -> list[tuple[data_messages.Leftovers, memoryview]]:
        if address != self.address:
            with self._lock:
                job = self._core.jobs.get(refs[0].job)
            if job is None:
                raise ServiceError(f"job {refs[0].job!r} is over")
            return fetch_leftovers(address, refs, worker_credential(job.key, job.job, job.generation), self.tls)
        found = []
        for ref in refs:
            with self._lock:
                kept = self._core.leftovers.get(ref)
            header, buffers = answer(ref, kept)
            found.append((header, memoryview(b"".join(buffers))))
        return found

    def _aside(self, action: Callable[[], None]) -> None:
        threading.Thread(target=action, name="millrace-aside", daemon=True).start()

    @contextmanager
    def _inside(self, job: str) -> Iterator[None]:
        """Keep other jobs' code from running while the body does."""
        granted = threading.Event()
        self.feed(inp.CodeWanted(granted, job))
        granted.wait()
        try:
            yield
        finally:
            self.feed(inp.CodeDone(granted))

    def _say(self, job: JobPipeline, doing: str, found: Callable[[], msg.FromWorker | None]) -> None:
        """Tell the dispatcher what a job's code has found, or how it failed."""
        try:
            answer = found()
        except BaseException as error:  # noqa: BLE001 (opening the bundle runs the user's code)
            answer = msg.SourcesFailed(job.name, failure_of(error, f"{doing} of job {job.name!r}"), job.generation)
        if answer is not None:
            self.feed(inp.Say(answer))

    def _list(self, job: JobPipeline, shared: str) -> msg.FromWorker | None:
        with self._inside(job.name):
            _, tables, prints, points = job.list_sources(shared)
        digest = self._hand_over(job, pack_tables(tables))
        if not digest:
            return None
        return msg.SourcesListed(job.name, summaries(tables), prints, points, digest, job.generation)

    def _patiently(self, job: str, fetch: Callable[[str], T], digest: str) -> T:
        """Fetch a blob of a job, however long the dispatcher is away, or sends to others."""
        pauses = delays()
        while True:
            try:
                return fetch(digest)
            except ServiceUnreachableError as error:
                if job not in self._jobs or self._over.is_set():
                    raise
                _logger.info("job %s waits for %s: %s", job, digest, error)
                self._over.wait(next(pauses))

    def _hand_over(self, job: JobPipeline, tables: bytes) -> str:
        """Give the dispatcher split tables, however long it is away; return their digest, "" if the job is over."""
        pauses = delays()
        while self._jobs.get(job.name) is job and not self._over.is_set():
            try:
                return self._put(tables)
            except ServiceUnreachableError as error:
                _logger.info("the split tables of job %s wait: %s", job.name, error)
                self._over.wait(next(pauses))
        return ""

    def _choose(self, job: JobPipeline, message: msg.ChooseSharding) -> msg.FromWorker:
        with self._inside(job.name):
            return msg.ShardingChosen(job.name, message.epoch, job.choose(message.tasks, message.workers))

    def _end(self, job: JobPipeline, lanes: Sequence[int]) -> None:
        """Let go of a job once its runs have stopped."""
        with self._lock:
            running = [self._lanes[number] for number in lanes if number in self._lanes]
        if not all(thread.join(JOIN_S) for thread in running):
            _logger.warning("job %s: user code has not stopped for %g s; other jobs wait for that", job.name, JOIN_S)
            for thread in running:
                thread.join()
        job.close()
        if not self._jobs:
            with self._inside(""):  # no job's functions are unpacked meanwhile
                if not self._jobs:
                    uninstall()
            self.caches.close()
        if self._arena is not None:
            self._arena.trim()
        give_back()

    # -- peers ---------------------------------------------------------------------------------------------------------

    def key_of(self, claims: bytes) -> bytes:
        """Find the key of a peer, by what it claims.

        Raises:
            ServiceUnreachableError: this worker does not serve the job yet, or no longer: a consumer tries again.
            ProtocolError: the claims are malformed.
        """
        opening = read_claims(claims)
        with self._lock:
            job = self._core.jobs.get(opening.job)
        if job is None or job.generation != opening.generation or not job.key:
            raise ServiceUnreachableError(f"this worker does not serve job {opening.job!r} now")
        return consumer_key(job.key, opening)

    def serve(self, connection: DataConnection) -> None:
        """Serve one consumer or one tail's worker, until it goes."""
        PeerConnection(connection).serve(self.feed)

    # -- what the dispatcher hears -------------------------------------------------------------------------------------

    def report(self) -> None:
        """Have the heartbeat told."""
        with self._lock:
            job = self._jobs.get(self._core.current)
            jobs = list(self._jobs.values())
        listing = next(((each.name, seen) for each in jobs if (seen := each.seen) is not None), ("", 0))
        cores = self._threads or usable_cores()
        measured = msg.WorkerReport(
            job="" if job is None else job.name,
            nodes=[] if job is None else job.measures(),
            cpu_s=time.process_time() / cores,
            cores=cores,
            cpu_quota=cpu_quota() or 0.0,
            delayed_s=run_delay_s(),
            listing=listing[0],
            listed=listing[1],
            memory_bytes=resident_bytes(),
        )
        self.feed(inp.HeartbeatDue(measured))

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = JOIN_S) -> None:
        """End all jobs; wait up to ``timeout_s`` seconds for their runs to stop."""
        self._over.set()
        with self._lock:
            threads = list(self._lanes.values())
        self.feed(inp.CloseAll())
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
