"""The dispatcher: the real core in a modelled shell, which does what :mod:`millrace.dispatcher.server` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.decide import react
from millrace.control.journal.event import Event
from millrace.control.journal.snapshot import dump, fill_in
from millrace.control.journal.transaction import Transaction, merged
from millrace.control.state.observed import Observed
from millrace.control.state.settings import Settings
from millrace.control.state.state import State
from millrace.dispatcher.clock import Clock
from millrace.dispatcher.recovery import rebuild
from millrace.protocol import messages as msg
from millrace.protocol.cache_server_messages import CacheServerHello
from millrace.simulation.disk import Disk, encoded
from millrace.simulation.share_invariants import SharesTold
from millrace.simulation.state_invariants import check_refusals
from millrace.simulation.virtual_network import Connection, Process, Violation

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster

HOST = "the dispatcher's host"
NAME = "dispatcher"
ADDRESS = "dispatcher:1"
_NAMES: dict[type, str] = {msg.WorkerHello: "worker", msg.JoinJob: "client", CacheServerHello: "server"}
_LOST: dict[type, Callable[[str], inp.Input]] = {
    msg.WorkerHello: inp.WorkerSessionLost,
    msg.JoinJob: inp.ClientSessionLost,
    CacheServerHello: inp.CacheServerSessionLost,
}


class Decided(NamedTuple):
    """Events and actions that followed from one input; ``upto`` is the number of the last event decided by then.

    ``sessions``: by action, the one that it goes to, or void with.
    """

    events: list[Event]
    actions: list[act.Action]
    sessions: list[Connection | None]
    upto: int


def restored(disk: Disk, settings: Settings) -> State:
    """Return the state that a dispatcher finds on the disk."""
    state, damage = rebuild(lambda: State(settings, checked=True), disk.read())
    if damage:
        raise Violation(f"the journal does not replay: {damage}")
    for job in state.jobs.values():
        fill_in(job, disk.blobs.__getitem__)
    return state


class SimulatedDispatcher(Process):
    """One life of a dispatcher.

    Args:
        cluster: has the disk that the lives before have left, the store of blocks, and its workers.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        network = cluster.network
        super().__init__(network, NAME)
        self.disk = disk = cluster.disk
        self.state = restored(disk, cluster.settings)
        self.observed = Observed()
        disk.keep_blobs({job.tables_digest for job in self.state.jobs.values()})
        self.unwritable = False
        self._cluster, self._invariants = cluster, cluster.invariants
        self._shelved_at = 0.0
        self._clock = Clock(lambda: network.now, disk.at, cluster.settings.heartbeat_s)
        self._sessions: dict[tuple[type, str], Connection] = {}
        self._names: dict[Connection, tuple[type, str]] = {}
        self._count = disk.last
        self._shares = SharesTold()
        self._decided: list[Decided] = []
        self._committing: list[Decided] = []
        self._writing: tuple[bytes, int, float, bytes | None] | None = None
        self._feed(inp.Started(ADDRESS, f"life at {network.now}"))
        self.after(0.0, self._tick)

    def undurable(self) -> list[Event]:
        """Return the events that were decided and are not on the disk."""
        return [event for each in [*self._committing, *self._decided] for event in each.events]

    def owes(self, worker: str) -> bool:
        """Something was decided about a worker, or about all, that is not on its way yet."""
        about = (act.SendToWorker, act.CloseWorker)
        return any(isinstance(each, about) and each.worker == worker for each in self._pending()) or self._ending()

    def owes_client(self, client: str) -> bool:
        """Return whether something that was decided about a client is not on its way yet."""
        about = (act.SendToClient, act.CloseClient)
        return any(isinstance(each, about) and each.client == client for each in self._pending()) or self._ending()

    def owes_cache_server(self, server: str) -> bool:
        """Return whether something that was decided about a cache server is not on its way yet."""
        about = (act.SendToCacheServer, act.CloseCacheServer)
        return any(isinstance(each, about) and each.server == server for each in self._pending()) or self._ending()

    def _ending(self) -> bool:
        return any(isinstance(each, act.EndService) for each in self._pending())

    def _pending(self) -> Iterator[act.Action]:
        return (action for each in [*self._committing, *self._decided] for action in each.actions)

    def now(self) -> float:
        """Return the seconds of its clock."""
        return self._clock.now()

    def die(self, *, silently: bool = False) -> None:
        """End the process at once; what it was just writing may have become durable."""
        if self._writing is not None and self._committing and self.network.rng.random() < 0.5:
            self._write_now()
        super().die(silently=silently)

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _feed(self, item: inp.Input) -> None:
        tx = Transaction(self.state, self.observed, self._clock.now())
        try:
            react(tx, item)
        except Exception as error:
            raise Violation(f"could not decide about {item!r}: {type(error).__name__}: {error}") from error
        for event in tx.events:
            self.network.note("decided", event)
        self._count += len(tx.events)
        actions = merged(tx.actions)
        self._decided.append(Decided(tx.events, actions, [self._session_of(each) for each in actions], self._count))
        self._invariants.decided(self, item, tx.events)
        self._shares.decided(self.state, actions)
        check_refusals(self, item, actions)
        if tx.actions or isinstance(item, inp.Tick):
            self._wake()

    def _wake(self) -> None:
        if self._writing is None and self._decided:
            self._commit()

    def _commit(self) -> None:
        self._committing, self._decided = self._decided, []
        events = [event for each in self._committing for event in each.events]
        snapshot = dump(self.state) if self.disk.due else None
        if events:
            self._writing = encoded(events), len(events), self._clock.now(), snapshot
            self._write()
        else:
            self._perform_all()

    def _write(self) -> None:
        self.after(self.network.rng.uniform(0.001, 0.02), self._written)

    def _written(self) -> None:
        if self._write_now():
            self.unwritable = False
            self._writing = None
            self._perform_all()
            self._wake()
        else:
            self.unwritable = True
            self.after(self.network.rng.uniform(1.0, 3.0), self._write)

    def _write_now(self) -> bool:
        assert self._writing is not None
        if not self.disk.write(*self._writing):
            return False
        self._invariants.durable(event for each in self._committing for event in each.events)
        return True

    def _perform_all(self) -> None:
        decided, self._committing = self._committing, []
        for each in decided:
            for action, session in zip(each.actions, each.sessions, strict=True):
                if each.upto > self.disk.last:
                    raise Violation(f"{type(action).__name__} is done before event {each.upto} is durable: {action}")
                self._perform(action, session)

    def _session_of(self, action: act.Action) -> Connection | None:
        match action:
            case act.SendToWorker(worker=name) | act.CloseWorker(worker=name):
                return self._sessions.get((msg.WorkerHello, name))
            case act.SendToClient(client=name) | act.CloseClient(client=name):
                return self._sessions.get((msg.JoinJob, name))
            case act.SendToCacheServer(server=name) | act.CloseCacheServer(server=name):
                return self._sessions.get((CacheServerHello, name))
            case _:
                return None

    def _perform(self, action: act.Action, session: Connection | None) -> None:
        match action:
            case act.SendToWorker(message=message) | act.SendToClient(message=message) if session is not None:
                if isinstance(message, msg.OpenJob) and message.tables and message.tables not in self.disk.blobs:
                    raise Violation(f"worker is sent to split tables that are not there: {message}")
                session.send(self, message)
            case act.SendToCacheServer(message=message) if session is not None:
                self._cluster.sources.sends(session, message)
                session.send(self, message)
            case (
                act.CloseWorker(failure=failure)
                | act.CloseClient(failure=failure)
                | act.CloseCacheServer(failure=failure)
            ) if session is not None:
                if failure is not None:
                    session.send(self, failure)
                session.close(self)
                self.after(0.0, self._over, session)
            case act.EndService(reason=reason):
                self._cluster.end_service(reason)
            case act.StopWorkers(workers=workers):
                self._cluster.stop(workers)
            case act.ResizeFleet(workers=count):
                self._cluster.resize(count)
            case act.ListStore() | act.DeleteBlocks():
                self._shelve(action)
            case _:
                pass  # blobs are kept

    # -- the store, as in :mod:`millrace.dispatcher.store_janitor` -----------------------------------------------------

    def _shelve(self, action: act.ListStore | act.DeleteBlocks) -> None:
        """In the background, one thing at a time; what came of it is fed."""
        if isinstance(action, act.ListStore):
            self._soon(self._list, action)
            return
        for name in action.names:
            self._soon(self._delete, action.place, name)
        self._soon(self._feed, inp.BlocksGone(action.place, action.names))

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        network = self.network
        self._shelved_at = max(self._shelved_at, network.now) + network.rng.expovariate(100.0)
        self.after(self._shelved_at - network.now, call, *args)

    def clear_cache(self) -> bool:
        """Somebody wants all blocks to be deleted; False if there are none."""
        places = [place for place, cached in self.state.caches.points.items() if cached.blocks]
        if places:
            self.do(self._feed, inp.RemovalAsked(places))
        return bool(places)

    def _list(self, action: act.ListStore) -> None:
        found = inp.StoreListed(self._cluster.store.listed(action.known), action.leases, self._cluster.store.writers())
        self.after(self.network.rng.expovariate(5.0), self._feed, found)

    def _delete(self, place: str, name: str) -> None:
        self._invariants.caches.deleting(self, place, name)
        self._cluster.store.delete(place, name)

    def _tick(self) -> None:
        self.after(min(1.0, self._cluster.settings.heartbeat_s / 4), self._tick)
        for worker in list(self.state.workers.values()):
            if worker.lost_at is not None and worker.host == HOST and self._cluster.ended(worker.id):
                self._feed(inp.WorkerEnded(worker.id, "ended"))
        self._feed(inp.Tick(self._cluster.running()))

    # -- peers ---------------------------------------------------------------------------------------------------------

    def worker_ended(self, worker: str) -> None:
        """Note that a worker has ended, as the cluster says."""
        self._feed(inp.WorkerEnded(worker, "was killed"))

    def heard(self, connection: Connection, message: Any) -> None:
        """Take a message of a worker or a consumer; the first one of a session says whose it is."""
        if connection not in self._names:
            if isinstance(message, msg.JoinJob) and self.unwritable and not message.resume:
                connection.send(self, msg.Failure("UnwritableError", "the journal cannot be written"))
                connection.close(self)
                return
            key = (type(message), getattr(message, _NAMES[type(message)]))
            before = self._sessions.get(key)
            if before is not None:
                before.close(self)
                del self._names[before]
            self._sessions[key] = connection
            self._names[connection] = key
        kind, name = self._names[connection]
        if kind is CacheServerHello:
            self._feed(inp.CacheServerSaid(name, message))
            return
        if isinstance(message, msg.SourcesListed) and message.digest not in self.disk.blobs:
            connection.send(self, msg.ListSources(message.job))  # the dispatcher that was given the tables is no more
        elif kind is msg.WorkerHello:
            self._feed(inp.WorkerSaid(name, message))
        elif isinstance(message, msg.JoinJob):
            drawn = self.network.rng.getrandbits(63)
            self._feed(inp.JoinRequested(message, f"job-{drawn:x}", drawn))
        else:
            self._feed(inp.ConsumerSaid(name, message))
        place = self.state.clients.get(name)
        peer = self.state.workers.get(name) if place is None else self.state.jobs[place[0]].consumers[place[1]]
        if peer is not None and peer.lost_at is None:
            self._invariants.words.heard(name)

    def broken(self, connection: Connection) -> None:
        """Note that a session has ended."""
        self._over(connection)

    def _over(self, connection: Connection) -> None:
        key = self._names.pop(connection, None)
        if key is not None and self._sessions.get(key) is connection:
            del self._sessions[key]
            self._feed(_LOST[key[0]](key[1]))
