"""Dispatcher's shell: sockets, timers, blobs and the journal around :mod:`millrace.control`."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.decide import react
from millrace.control.journal.snapshot import dump
from millrace.control.journal.transaction import Transaction, merged
from millrace.control.journal.worker_events import WorkerRetiring
from millrace.control.state.observed import Observed
from millrace.control.state.plans import Planner
from millrace.control.state.settings import Settings
from millrace.control.state.state import State
from millrace.dispatcher.audit_log import AuditLog
from millrace.dispatcher.blob_calls import blob_calls
from millrace.dispatcher.blob_store import BlobFolder, BlobStore
from millrace.dispatcher.clock import Clock
from millrace.dispatcher.cluster_contract import Cluster
from millrace.dispatcher.job_keys import JobKeys
from millrace.dispatcher.journal_file import Journal
from millrace.dispatcher.needed_blobs import adopt_needed, hold_needed
from millrace.dispatcher.recovery import restore
from millrace.dispatcher.service_calls import service_calls
from millrace.dispatcher.sessions import (
    PendingDecision,
    check_cache_server,
    check_worker,
    close,
    draw_job,
    internal_error,
    send,
    warn_of_duplicate_name,
)
from millrace.dispatcher.shortage import ShortageError, UnwritableError, retry_while_short
from millrace.dispatcher.status_report import own_use, status
from millrace.dispatcher.store_janitor import StoreJanitor
from millrace.dispatcher.work_dir import SECRET_BYTES, WorkDir
from millrace.dispatcher.worker_pool import WorkerPool, dead_workers
from millrace.errors import ProtocolError
from millrace.policies.prices import PriceTable
from millrace.policies.scaling.scaling_policies import Kind
from millrace.protocol import messages as msg
from millrace.protocol.bounds import checker
from millrace.protocol.cache_server_messages import CacheServerHello, FromCacheServer
from millrace.protocol.caller import Caller
from millrace.version import __version__
from millrace.wire.control import rpc
from millrace.wire.control.control_server import CallHandler, ControlServer, Session
from millrace.wire.data.compression import Compression
from millrace.wire.tls_files import TlsFiles

BLOB_BYTES = 2 << 30
CHECK = "Check"
"""Call: None -> "" once what decides and writes has come round; why it waits, if it waits for the disk."""
_PEERS = msg.FromWorker | msg.FromConsumer | FromCacheServer

_logger = logging.getLogger(__name__)


class Dispatcher:
    """Dispatcher of a service. Belongs to the event loop in which it was started.

    Args:
        address: where to listen; port 0 takes a free one.
        token: an administrator's; on any address but loopback there has to be one, or ``tokens``.
        tokens: file of the tokens of others, and ``audit``: file of who did what; empty: none.
        worker_token: of workers that the cluster starts.
        cluster: starts workers; None if they are started by others.
        workers: how many it keeps running; or (least, most), and as many as its jobs need.
        first_workers: of a job that is not known, if they are as many as needed; None: one.
        heartbeat_s: seconds between two reports of a worker or consumer.
        job_gc_timeout: seconds that a lost consumer's place is kept, and a job that nobody reads for those expected.
        lockstep_wait: seconds that one of several jobs which share in lockstep may keep the others waiting.
        work_dir: folder for what outlives this dispatcher, of which it then goes on; None: in memory only.
        cache_dir: path or URL of the folder in which workers keep blocks, which all of them can reach; empty: none.
        cache_bytes: that blocks may take together; ``cache_compression``: of those that become smaller by it.
        recover: of a damaged journal in ``work_dir`` keep what is good.
        quotas: by tenant, workers of its jobs, and ``job_quotas``, ``byte_quotas``: jobs, and bytes of the cache.
        scaling_policy: one of :mod:`millrace.policies.scaling.scaling_policies`, for how many workers a job needs.
        prices: of workers and training hosts, for jobs that want to be cheap and for the bill; None: usual ones.
        trust: by tenant, the tenants whose cached blocks its jobs read; of others: none.
        owner: process that the service ends with for good; empty: it may be started again at this address.
        tls: this host's certificates; None: none. ``insecure``: no mistake where others can hear what is said.
        blob_bytes: bound on functions and split tables kept for workers.
        planner: makes plans; None: :func:`millrace.planning.plan.make_plan`.

    Attributes:
        address: ``host:port`` that it listens on, once started.
        failure: why it cannot go on; empty while it can.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:0",
        token: str | None = None,
        *,
        tokens: str = "",
        audit: str = "",
        worker_token: str | None = None,
        cluster: Cluster | None = None,
        workers: int | tuple[int, int] = 0,
        first_workers: int | None = None,
        heartbeat_s: float = 5.0,
        job_gc_timeout: float = 300.0,
        lockstep_wait: float = 30.0,
        work_dir: str | None = None,
        cache_dir: str = "",
        cache_bytes: int = 0,
        cache_compression: Compression | None = None,
        recover: bool = False,
        quotas: Mapping[str, int] | None = None,
        job_quotas: Mapping[str, int] | None = None,
        byte_quotas: Mapping[str, int] | None = None,
        scaling_policy: Kind = "millrace",
        prices: PriceTable | None = None,
        trust: Mapping[str, Iterable[str]] | None = None,
        owner: str = "",
        tls: TlsFiles | None = None,
        insecure: bool = False,
        blob_bytes: int = BLOB_BYTES,
        planner: Planner | None = None,
    ) -> None:
        self.address = address
        least, most = (workers, workers) if isinstance(workers, int) else workers
        settings = Settings(
            __version__,
            f"{sys.version_info.major}.{sys.version_info.minor}",
            heartbeat_s=heartbeat_s,
            job_gc_timeout_s=job_gc_timeout,
            lockstep_wait_s=lockstep_wait,
            durable=work_dir is not None,
            cache=cache_dir,
            cache_bytes=cache_bytes,
            compression=cache_compression,
            least_workers=least,
            most_workers=most,
            first_workers=first_workers or 1,
            quotas=dict(quotas or {}),
            job_quotas=dict(job_quotas or {}),
            byte_quotas=dict(byte_quotas or {}),
            scaling_policy=scaling_policy,
            prices=prices,
            trust={reader: list(writers) for reader, writers in (trust or {}).items()},
        )
        self._store_janitor = StoreJanitor(cache_dir, self._feed) if cache_dir else None
        self._fresh_state = functools.partial(State, settings, planner)
        self._state = self._fresh_state()
        self._observed = Observed()
        self._work_dir: WorkDir | None = None
        self._work_path = work_dir
        self._recover = recover
        self._journal: Journal = Journal()
        self._unwritable = self._lacking = ""
        self._clock = Clock(time.monotonic, heartbeat_s=heartbeat_s)
        self._blob_bytes = blob_bytes
        self._blobs = BlobStore(blob_bytes)
        self._audit = AuditLog(audit)
        self._keys = JobKeys(secrets.token_bytes(SECRET_BYTES))
        self._ready = asyncio.Event()
        self._worker_pool = WorkerPool(
            cluster,
            least if cluster is not None and least == most else 0,
            on_end=lambda worker, how: self._feed(inp.WorkerEnded(worker, how)),
            notice=self._notice,
        )
        self._workers: dict[str, Session] = {}
        self._clients: dict[str, Session] = {}
        self._cache_servers: dict[str, Session] = {}
        self._pending: list[PendingDecision] = []
        self._some_pending = asyncio.Event()
        self._checks: list[asyncio.Future[str]] = []
        self._broken = asyncio.Event()
        self.failure = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._server = ControlServer(
            address,
            on_session=self._session,
            message=_PEERS,
            check=checker(_PEERS),
            calls={
                **blob_calls(lambda: self._blobs, self._resource_missing),
                **service_calls(
                    lambda: (self._state, self._observed, self._clock.now()),
                    self.status,
                    self._feed,
                    self._audit.refused,
                ),
                CHECK: CallHandler(None, self._check),
            },
            token=token,
            tokens=tokens,
            worker_token=worker_token,
            owner=owner,
            tls=tls,
            insecure=insecure,
        )

    async def start(self) -> str:
        """Go on where the work_dir says, listen, start the workers, and return the address as ``host:port``.

        Raises:
            AddressInUseError: the port is taken.
            ServiceError: it can't listen or start workers, another one has the work_dir, or the journal is damaged.
        """
        try:
            if self._work_path is not None:
                await retry_while_short(self._restore, ShortageError, self._resource_missing)
            if self._store_janitor is not None:
                await self._store_janitor.open()
            self.address = await self._server.start()
            self._feed(inp.Started(self.address, uuid.uuid4().hex))
            self._ready.set()
            self._tasks = [asyncio.create_task(self._commit()), asyncio.create_task(self._tick())]
            for task in self._tasks:
                task.add_done_callback(self._loop_ended)
            await self._worker_pool.start()
        except BaseException:
            await self.stop()
            raise
        return self.address

    async def _restore(self) -> None:
        assert self._work_path is not None
        work_dir = WorkDir(self._work_path)
        try:
            self._keys = JobKeys(work_dir.secret())
            self._journal, self._state, at = restore(work_dir, self._fresh_state, recover=self._recover)
        except BaseException:
            work_dir.close()
            raise
        self._work_dir = work_dir
        self._clock = Clock(time.monotonic, at, self._state.settings.heartbeat_s)
        self._blobs = BlobStore(self._blob_bytes, BlobFolder(self._work_dir.blobs))
        for worker in self._state.workers.values():
            if worker.draining:
                self._worker_pool.leaves(worker.id)
        adopt_needed(self._blobs, self._state)

    async def broken(self) -> None:
        """Wait until it cannot go on, be it by a bug, for the reason that ``failure`` has: stop it then."""
        await self._broken.wait()

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            _logger.critical("the dispatcher cannot go on", exc_info=task.exception())
            self._end("the dispatcher has failed and ended; its log says why. With --work-dir it can go on")

    def _end(self, reason: str) -> None:
        self.failure = self.failure or reason
        self._broken.set()

    async def stop(self, grace: float = 1.0) -> None:
        """End the workers it started, tell everybody else, and stop listening. Harmless if done before."""
        await self._worker_pool.close()
        await self._server.stop(grace)
        if self._store_janitor is not None:
            await self._store_janitor.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._journal.close()
        if self._work_dir is not None:
            self._work_dir.close()
            self._work_dir = None

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _feed(self, item: inp.Input, blame: Session | None = None) -> None:
        """Decide at once; what follows waits for the journal, in order."""
        tx = Transaction(self._state, self._observed, self._clock.now())
        try:
            react(tx, item)
        except Exception as error:
            # A bug. Events up to it have been applied and must be kept; the sender is told, everybody else goes on.
            _logger.exception("could not decide about %r", type(item).__name__)
            if blame is not None:
                blame.close(internal_error(error))
        self._audit.decided(item, tx.events, tx.actions)
        for event in tx.events:
            if isinstance(event, WorkerRetiring):  # now: it may have ended before that is written
                self._worker_pool.leaves(event.worker)
        if tx.events or tx.actions:
            # Whoever has come back by the time this is durable was told anew, and must not hear what came before.
            actions = [(action, self._session_of(action)) for action in merged(tx.actions)]
            self._pending.append(PendingDecision(tx.events, tx.encoded, actions))
        if tx.actions or isinstance(item, inp.Tick):  # what nobody waits for is written with what somebody does
            self._some_pending.set()

    async def _commit(self) -> None:
        while True:
            await self._some_pending.wait()
            self._some_pending.clear()
            decided, self._pending = self._pending, []
            checks = len(self._checks)
            events = [event for each in decided for event in each.encoded]
            # Now: the next input changes the state.
            snapshot = dump(self._state) if self._journal.due else None
            if events:
                await self._persist(functools.partial(self._journal.append, events, self._clock.now(), snapshot))
            for each in decided:
                for action, session in each.actions:
                    try:
                        self._perform(action, session)
                    except Exception as error:  # a bug: the action is void, its peer is told, everybody else goes on
                        _logger.exception("could not do %r", type(action).__name__)
                        if session is not None:
                            session.close(internal_error(error))
                hold_needed(self._blobs, self._state, each.events)
                each.log()
            self._answer(checks, "")

    async def _persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write, however long it takes: meanwhile nothing is answered, and no new job is taken."""
        await retry_while_short(write, UnwritableError, self._journal_stalled)

    def _journal_stalled(self, why: str) -> None:
        if not why:
            _logger.warning("the journal is written again")
        elif why != self._unwritable:
            _logger.error("%s; trying again until there is room", why)
            self._notice(f"{why}. The service stands still until it can: free some space on that disk")
        self._unwritable = why
        self._answer(len(self._checks), why)

    def _resource_missing(self, why: str) -> None:
        """Report a shortage that keeps it from beginning, or from going on with some jobs; others are not concerned."""
        if not why:
            _logger.warning("there is room again")
        elif why != self._lacking:
            _logger.error("%s; trying again until there is room", why)
            self._notice(f"{why}. What needs it waits: the dispatcher needs room on its disk, and file descriptors")
        self._lacking = why

    def _answer(self, checks: int, waits: str) -> None:
        answered, self._checks = self._checks[:checks], self._checks[checks:]
        for check in answered:
            if not check.done():
                check.set_result(waits)

    def _send(self, session: Session | None, message: Any, job: str) -> None:
        unsendable = send(session, message, job)
        if unsendable is not None:
            self._feed(unsendable)

    def _session_of(self, action: act.Action) -> Session | None:
        match action:
            case act.SendToWorker(worker=worker) | act.CloseWorker(worker=worker):
                return self._workers.get(worker)
            case act.SendToClient(client=client) | act.CloseClient(client=client):
                return self._clients.get(client)
            case act.SendToCacheServer(server=server) | act.CloseCacheServer(server=server):
                return self._cache_servers.get(server)
        return None

    def _perform(self, action: act.Action, session: Session | None) -> None:
        match action:
            case act.SendToWorker(message=message):
                self._send(session, self._keys.enclose(message), rpc.about_job(message))
            case act.SendToClient(client=client, message=told):
                self._send(session, self._keys.enclose(told, client), self._state.clients.get(client, ("", 0))[0])
            case act.SendToCacheServer(message=welcome):
                self._send(session, self._keys.enclose(welcome), "")
            case act.CloseWorker(failure=failure) | act.CloseCacheServer(failure=failure):
                close(session, failure)
            case act.CloseClient(failure=reason):
                close(session, reason)
            case act.StopWorkers(workers=workers, reason=reason):
                self._worker_pool.stop(workers, reason)
            case act.ResizeFleet(workers=count):
                self._worker_pool.resize(count)
            case act.EndService(reason=reason):
                self._end(reason)
            case act.DropBlobs(job=job):
                self._blobs.drop(job)
            case act.ListStore() | act.DeleteBlocks():
                if self._store_janitor is not None:
                    self._store_janitor.do(action)

    async def _tick(self) -> None:
        # Deadlines are a few seconds away at least; looking this often is exact enough and costs nothing.
        period = min(1.0, self._state.settings.heartbeat_s / 4)
        while True:
            await asyncio.sleep(period)
            for name in dead_workers(self._state.workers.values()):
                self._feed(inp.WorkerEnded(name, "ended"))
            self._server.expel()
            self._feed(inp.Tick(self._worker_pool.running()))

    # -- peers ---------------------------------------------------------------------------------------------------------

    async def _session(self, session: Session) -> None:
        await self._ready.wait()
        first = await anext(session, None)
        if first is None:
            return
        if isinstance(first, msg.WorkerHello):
            check_worker(session, self._state, first, self._audit)
            if first.worker in self._workers and (before := self._state.workers.get(first.worker)) is not None:
                warn_of_duplicate_name(first, before)
            await self._converse(session, self._workers, first.worker, first, self._worker_said, inp.WorkerSessionLost)
        elif isinstance(first, msg.JoinJob):
            await self._converse(session, self._clients, first.client, first, self._client_said, inp.ClientSessionLost)
        elif isinstance(first, CacheServerHello):
            check_cache_server(session, self._audit)
            hear, lost = self._cache_server_said, inp.CacheServerSessionLost
            await self._converse(session, self._cache_servers, first.server, first, hear, lost)
        else:
            raise ProtocolError(f"a session begins with a hello or JoinJob, not with {type(first).__name__}")

    async def _converse(
        self,
        session: Session,
        sessions: dict[str, Session],
        name: str,
        first: Any,
        said: Callable[[Session, str, Any], None],
        lost: Callable[[str], inp.Input],
    ) -> None:
        before = sessions.pop(name, None)
        if before is not None:
            before.close()
        sessions[name] = session
        try:
            said(session, name, first)
            async for message in session:
                said(session, name, message)
        finally:
            if sessions.get(name) is session:
                del sessions[name]
                self._feed(lost(name))

    def _worker_said(self, session: Session, name: str, message: Any) -> None:
        if not isinstance(message, msg.FromWorker) or getattr(message, "worker", name) != name:
            raise ProtocolError(f"worker {name} may not send {type(message).__name__}")
        if isinstance(message, msg.SourcesListed) and message.digest not in self._blobs:
            # A dispatcher that is no more was given the tables, or they had to go: it gives them again, and says so.
            self._send(session, msg.ListSources(message.job), message.job)
            return
        self._feed(inp.WorkerSaid(name, message, session.caller), session)

    def _cache_server_said(self, session: Session, name: str, message: Any) -> None:
        if not isinstance(message, FromCacheServer) or getattr(message, "server", name) != name:
            raise ProtocolError(f"cache server {name} may not send {type(message).__name__}")
        self._feed(inp.CacheServerSaid(name, message, session.caller), session)

    def _client_said(self, session: Session, name: str, message: Any) -> None:
        if not isinstance(message, msg.FromConsumer) or getattr(message, "client", name) != name:
            raise ProtocolError(f"a consumer may not send {type(message).__name__}")
        if isinstance(message, msg.JoinJob):
            if self._unwritable and not message.resume:
                raise UnwritableError(f"{self._unwritable}; the service takes nothing new until it can")
            # A job without could not be restored.
            if not message.resume and session.caller.runs and not all(map(self._blobs.has, message.spec.blobs)):
                raise ProtocolError(
                    f"the functions of job {message.spec.name!r} were not handed over before joining it"
                )
            item: inp.Input = inp.JoinRequested(message, *draw_job(), session.caller)
        else:
            item = inp.ConsumerSaid(name, message)
        self._feed(item, session)

    def _notice(self, text: str) -> None:
        for session in self._clients.values():
            send(session, msg.Notice(text), "")

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def _check(self, _: None, __: Caller) -> str:
        if self._unwritable:
            return self._unwritable
        check: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._checks.append(check)
        self._some_pending.set()
        return await check

    def status(self) -> dict[str, Any]:
        """Report what the service is doing, as :func:`millrace.dispatcher.status_report.status` does."""
        return status(
            self._state,
            self._observed,
            self._clock.now(),
            work_dir=self._work_dir.path if self._work_dir is not None else None,
            unwritable=self._unwritable,
            plan=self._worker_pool.plan,
            requested=self._worker_pool.requested,
            why=self._worker_pool.trouble,
            dispatcher=own_use(self._clock.now() - self._state.started),
        )
