"""Pipeline behind a distributed dataset: its job, its place in the service, and its iterators."""

from __future__ import annotations

import functools
import platform
import threading
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from millrace import validation
from millrace.errors import ConsumerConflictError, ServiceError, StateError, UnknownLengthError
from millrace.frameworks.base import Readable
from millrace.graph import serialize
from millrace.graph.nodes import Node, WithOptions
from millrace.graph.rounds import in_rounds
from millrace.job_parameters import (
    check_helpers,
    chosen_parameters,
    fresh_state,
    served_made_of,
    why_no_whole_epoch,
)
from millrace.own_job import OwnJobs, own_job, told_detached, told_late
from millrace.planning.checkpoint import Checkpoint, fit_rounds, graph_digest, parse_all, said
from millrace.planning.epoch_cursor import EpochCursor, Number, Share, place_of
from millrace.planning.shapes import Varying

if TYPE_CHECKING:
    from millrace.client.deferred_reader import AnyReader, DeferredReader
    from millrace.client.epoch_iterator import EpochIterator
    from millrace.client.epoch_reader import ConsumerSession, EpochReader
    from millrace.clusters.local import LocalService
    from millrace.clusters.local_workers import LocalWorkers
    from millrace.elements.sealed_memory import SealedMemory
    from millrace.errors import DetachedError
    from millrace.pipeline import Pipeline
    from millrace.policies.saved_data import MadeOf


class ServedPipeline(Readable):
    """A pipeline that is computed by a service.

    Holds its place in the service (and the service itself, if it is an embedded one) from the first epoch until
    :meth:`close`, or the end of its life. Arguments are those of :meth:`millrace.Dataset.distribute`,
    and the call as it is to be shown.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        service: str | None,
        *,
        token: str | None,
        tls: str | None,
        made: str,
        **chosen: Any,
    ) -> None:
        choice = SimpleNamespace(**chosen)
        self._pipeline: Pipeline | None = pipeline
        self._expression = f"{pipeline}.{made}"
        self._service = service
        self._consumer_index, self._parameters = chosen_parameters(choice, pipeline, service, token)
        from millrace.clusters.service import access_to

        self._token, self._tls = access_to(service, token, tls)
        self._compression, self._progress, self._workers = choice.compression, choice.progress, choice.workers
        self._sharing, self._alone = choice.sharing, False
        self._named = choice.job_name is not None and choice.sharing is None
        self._seed_is_chosen = choice.seed is not None or pipeline.graph.seed() is not None
        self._local_workers = validation.local_workers(service, choice.target_workers, choice.local_workers)
        self._buffer_bytes = pipeline.graph.options().buffer_bytes or 0
        from millrace.client.bundling import fingerprint_of, ship

        self._memories: dict[str, SealedMemory] = {}
        self._share_arrays()
        graph, incomplete = pipeline.graph, self._parameters["coordinated"]
        graph = in_rounds(graph, self.ranks, incomplete) if incomplete else graph
        self._structure, self._bundle = ship(graph, choice.sharding)
        if choice.sharing is not None:
            self._parameters["functions"] = fingerprint_of(graph, choice.sharding)
        self._embedded: LocalService | None = None
        self._local: LocalWorkers | None = None
        self._session: ConsumerSession | None = None
        self._share: Share | None = None
        self._passes = EpochCursor()
        self._resumed: weakref.ref[AnyReader] | None = None
        self._first: weakref.ref[DeferredReader] | None = None
        self._others = OwnJobs()
        self._closings = 0
        self._job = self._parameters["name"]
        self._lock = threading.RLock()

    def read_epoch(self, number: Number = None, share: Share | None = None) -> EpochIterator:
        """Elements of one epoch; see :class:`Readable`. Helpers are consumers of their own."""
        from millrace.client.epoch_iterator import EpochIterator

        return EpochIterator(self.reader(number, share))

    def reader(self, number: Number = None, share: Share | None = None) -> DeferredReader:
        """Make the reader of one epoch; each of several ranks may load its state into it, before or after others."""
        check_helpers(self._parameters, share)
        several = share is None and self._parameters["num_consumers"] not in (None, 1)
        with self._lock:
            try:
                if several and not self._passes.loaded and self._session is None:
                    return self._passes.read_by(self._awaited(number))
                return self._passes.read_by(self._begun(number, share))
            except BaseException:
                if self._session is None or self._session.failed:
                    self._leave(self._session)  # the traceback holds this dataset, and it an embedded service
                raise

    def _begun(self, number: Number, share: Share | None) -> DeferredReader:
        if not self._passes.loaded:
            return self._next_epoch(number, share)

        from millrace.client.deferred_reader import DeferredReader

        first, reload = self._first, functools.partial(self._reload, number, share)
        if share is None and first is not None and (other := first()) is not None and not other.closed:
            # Both begin with these states, until one is asked.
            begin, fresh = functools.partial(self._begin_instead, first, self._closings), self.before()
            return DeferredReader(reload, begin=begin, fresh=fresh)
        found = DeferredReader(reload, reader=self._resume(number, share))
        self._first = weakref.ref(found)
        return found

    def _begin_instead(self, first: Callable[[], DeferredReader | None], closings: int) -> AnyReader:
        """Go on with the loaded states in the place of an iterator that was not asked yet, or beside it."""
        with self._lock:
            following, other = self._passes.following, first()
            if (other is None or other.closed) and self._passes.loaded and closings == self._closings:
                return self._resume(None, None)
            begin = functools.partial(self._begin_beside, following, None, closings)
            reader = None if other is None else other.hand_over(begin, self._fresh_state(following))
            return begin() if reader is None else reader

    def _awaited(self, number: Number) -> DeferredReader:
        """Begin the first epoch of one of several ranks, of which others may have loaded states."""
        try:
            session = self._joined(None)
            try:
                return self._begun(number, None)
            except ConsumerConflictError:  # another rank has loaded its state meanwhile: this one's comes, perhaps
                self._session = None
                session.close()
                return self._begun(number, None)
        except StateError as error:
            from millrace.client.deferred_reader import DeferredReader

            reload = functools.partial(self._reload, number, None)
            return DeferredReader(reload, awaits=error, fresh=self._fresh_state())

    def _next_epoch(self, number: Number, share: Share | None) -> DeferredReader:
        from millrace.client.deferred_reader import DeferredReader

        passes, session, reload = self._passes, self._joined(share), functools.partial(self._reload, number, share)
        if self._sharing is not None and not session.reading:
            return DeferredReader(reload, reader=self._begin_shared(session, number))
        passes.following = max(session.next_epoch, passes.following)  # of which some may have been read beside others
        chosen, _ = passes.choose(number)
        if not session.reading:
            return DeferredReader(reload, reader=self._begin(session, chosen, passes))
        begin = functools.partial(self._begin_beside, chosen, share, self._closings)
        return DeferredReader(reload, begin=begin, fresh=self._fresh_state(chosen), passes=passes)

    def _check_open(self, closings: int) -> None:
        """Raise a ServiceError if the dataset was closed since it had been so many times."""
        if closings != self._closings:
            raise ServiceError("the dataset was closed after this iterator was made: iterate over it anew")

    def _begin_beside(self, number: int, share: Share | None, closings: int) -> AnyReader:
        """Begin an epoch; in a job of its own, if another one is still being read."""
        with self._lock:
            self._check_open(closings)
            session = self._joined(share)
            alone = self._named or share is not None or not (session.reading or session.next_epoch > number)
            if alone:
                return self._begin(session, number, EpochCursor())
            other = self._join(None, own_job(self._parameters, epochs=number + 1))
            self._others.add(other)
            return self._begin(other, number, EpochCursor(), self._new_local(other.job, None))

    def _begin(self, session: ConsumerSession, number: int, passes: EpochCursor, keep: object = None) -> EpochReader:
        failed, alone = weakref.WeakMethod(self._leave), None if self._sharing is None else self._go_on_alone
        return session.epoch(number, keep=(self, keep), passes=passes, failed=failed, alone=alone)

    def _begin_shared(self, session: ConsumerSession, number: Number) -> EpochReader:
        """Begin the next epoch with the group if it is at the beginning of one, and in a job of one's own if not."""
        passes, there, late = self._passes, session.next_epoch, session.late
        chosen, shares = passes.choose_shared(number, there, late=late, leads=session.leads)
        if shares:
            return self._begin(session, chosen, passes)
        self._session = None
        session.close()
        other = self._join(None, own_job(self._parameters, seed=session.seed, epochs=chosen + 1))
        self._others.add(other)
        other.warn(told_late(self._parameters, chosen, there, late=late))
        return self._begin(other, chosen, passes)

    def _go_on_alone(self, state: Checkpoint, why: DetachedError) -> ConsumerSession:
        """Join a job that reads what is left of the epoch that a group reads on without this member."""
        with self._lock:
            if self._session is not None and self._session.failed:
                self._session.close()
                self._session = None
            other = self._join(None, own_job(self._parameters, seed=state.seed, epochs=state.epoch + 1), (state,))
            self._others.add(other)
        other.warn(told_detached(self._parameters, state.epoch, why))
        return other

    def _resume(self, number: Number, share: Share | None) -> AnyReader:
        """Begin the epoch that the loaded states lead to."""
        passes, loaded = self._passes, self._passes.loaded
        resumed = self._resumed() if self._resumed is not None else None
        if resumed is not None and (share is not None or not resumed.over):
            return resumed  # it is where these states lead, and nobody has asked it for anything
        session = self._joined(share, loaded)
        following = session.next_epoch
        over = share is not None and any(each.epoch < following for each in loaded)  # for the loader, it is still that
        passes.following = loaded[0].epoch if over else following
        passes.choose(number)
        if over:
            reader = session.over(loaded[0], passes)
        else:
            reader = session.epoch(
                following,
                read=None if self.coordinated else said(loaded, following),
                keep=self,
                passes=passes,
                failed=weakref.WeakMethod(self._leave),
            )
        self._resumed = weakref.ref(reader)
        if share is not None and (over or not reader.prime()):
            self._session = None
            session.close()  # a loader's next pass may have other processes, and that before this one has ended
        return reader

    def _leave(self, session: ConsumerSession | None) -> None:
        """End the processes that belong to this dataset alone after a failure, unless something else is being read.

        A service that others hold shows the job as failed until this dataset is closed, dropped or iterated anew.
        """
        with self._lock:
            others = {self._session, *self._others} - {session, None}
            if any(each.reading for each in others if each is not None):
                return
            if self._embedded is not None or session is None:
                self._end()
            elif self._local is not None:
                self._local.close()

    def _reload(self, number: Number, share: Share | None, state: Any) -> AnyReader:
        """Make the reader of an iterator into which ``state`` is loaded."""
        with self._lock:
            resumed = self._resumed() if self._resumed is not None else None
            if resumed is not None and self._passes.loaded == parse_all(state):
                return resumed  # it was loaded into the dataset before
            self.load_state_dict(state)
            (first, *others), session = self._passes.loaded, self._session
            if share is None and first.ended and not others:
                return (session or self._joined(share, self._passes.loaded)).over(first, EpochCursor())
            reader = self._resume(number if callable(number) else None, share)
            self._passes.forget()
            return reader

    def load_state_dict(self, state: Any) -> None:
        """See :class:`Readable`. The job begins anew with it, whatever has become of it since."""
        if self.coordinated:
            fit_rounds(parse_all(state)[0], self.ranks, self._parameters["cycle_length"])
        super().load_state_dict(state)
        first, chosen = self._passes.loaded[0], self._parameters["seed"]
        if first.helpers or (first.seed is not None and chosen != first.seed and self._seed_is_chosen):
            self._passes.loaded = ()
            raise StateError(
                f"the state is of seed {first.seed}, and this dataset has seed {chosen} by choice"
                if not first.helpers
                else "the state is of a process of a DataLoader without a service, which had tasks of its own"
            )
        self._resumed = self._first = None
        self.adopt_seed(first.seed)

    def adopt_seed(self, seed: int | None) -> None:
        """See :class:`Readable`. Who shares goes on alone with it, and then takes the others' again."""
        if seed is not None and self._sharing is None:
            self._parameters["seed"] = seed

    def _fresh_state(self, epoch: int | None = None) -> Checkpoint:
        graph = graph_digest(serialize.unpack(self._structure))
        number = self._passes.following if epoch is None else epoch
        return fresh_state(self._parameters, self._consumer_index, graph, number)

    def peek(self, count: int) -> list[Any]:
        """See :class:`Readable`."""
        return self.pipeline.peek(count)

    def varying(self) -> Varying:
        """See :class:`Readable`."""
        return self.pipeline.varying()

    def prepare_to_fork(self) -> None:
        """Start the embedded service, if there is to be one, here rather than once in each process."""
        self.service_address()

    @property
    def ranks(self) -> int:
        """Number of consumers that there are to be."""
        return self._parameters["num_consumers"] or 1

    @property
    def equal_steps(self) -> bool:
        """Whether all consumers get equally many elements."""
        return self._parameters["equal_steps"] is True or self.coordinated

    @property
    def coordinated(self) -> bool:
        """Whether all consumers read rounds of batches in one order."""
        return bool(self._parameters["coordinated"])

    @property
    def loaded(self) -> tuple[Checkpoint, ...]:
        """States that the next epoch begins with."""
        return self._passes.loaded

    def started(self, load_id: int | None) -> None:
        """Note that somebody asks for elements, see :meth:`EpochCursor.started`."""
        self._passes.started(load_id)

    def before(self) -> Checkpoint:
        """State before anything is read."""
        return self._passes.before(self._fresh_state)

    def made_of(self, behind: Callable[[Node], Node] = lambda node: node, shown: str = "") -> MadeOf:
        """See :class:`Readable`; ``behind`` puts operators behind the last node, and ``shown`` says which."""
        found = served_made_of(behind(self.pipeline.node), self._parameters, shown or self._expression, self._named)
        return found.judged(self._passes.why_unlike(self._fresh_state))

    def will_read(self, epochs: int) -> None:
        """Prepare nothing beyond so many epochs, if this is said before the first."""
        if self._session is None:
            self._parameters["epochs"] = epochs

    def __len__(self) -> int:
        """Length of the dataset, if one consumer reads all of it; see :class:`Readable`."""
        several = self._parameters["num_consumers"] not in (None, 1)
        if several or self.coordinated or self._parameters["sharding"] == "off":
            raise UnknownLengthError("how much of an epoch comes to one consumer is known only after reading it")
        told = None if self._session is None else self._session.elements
        return len(self.pipeline) if told is None else told  # workers have listed what is being read

    @property
    def whole(self) -> bool:
        """See :class:`Readable`."""
        return not why_no_whole_epoch(self._parameters, named=self._named)

    def has_no_end(self) -> bool:
        """See :class:`Readable`."""
        return self.pipeline.has_no_end()

    def _share_arrays(self) -> None:
        """Hold the memory of the pipeline's arrays until it is closed, and again when it is used again."""
        if self._pipeline is not None and not self._memories:
            from millrace.client.bundling import shared

            self._memories = shared(self._pipeline.graph)

    def close(self) -> None:
        """Leave the job; stop the service if it is an embedded one. Idempotent."""
        self._closings += 1
        self._end()

    def _end(self) -> None:
        session, self._session = self._session, None
        local, self._local = self._local, None
        service, self._embedded = self._embedded, None
        if self._pipeline is not None:  # else what was copied here can't be made again
            self._memories = {}
        try:
            self._others.close(session)
        finally:
            for each in (local, service):
                if each is not None:
                    each.close()

    def status(self) -> dict[str, Any]:
        """Status of the service; see :meth:`millrace.DistributedDataset.status`."""
        from millrace.client.status_query import fetch_status

        found = fetch_status(self.service_address(), self._token, tls=self._tls)
        own = [job["bottleneck"] for job in found["jobs"] if job["name"] == self._job]
        return {**found, "bottleneck": own[0] if own else None}

    def __str__(self) -> str:
        """Expression that makes the dataset, without the token."""
        return self._expression

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy: in another process it joins by itself; an embedded service stays with the original."""
        service = self._embedded.address if self._embedded is not None else self._service
        # The user's functions go along as they go to workers, and are not unpickled unless somebody asks for them.
        own = dict.fromkeys(("_pipeline", "_embedded", "_local", "_session", "_resumed", "_first", "_others", "_lock"))
        return {**self.__dict__, **own, "_service": service, "_passes": self._passes.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _others=OwnJobs(), _lock=threading.RLock())

    @property
    def pipeline(self) -> Pipeline:
        """Pipeline that is distributed."""
        if self._pipeline is None:
            from millrace.client.bundling import unship
            from millrace.pipeline import Pipeline

            root = unship(self._structure, self._bundle, self._memories)
            self._pipeline = Pipeline(WithOptions(inputs=(root,), seed=self._parameters["seed"]))
        return self._pipeline

    def service_address(self) -> str:
        """Address of the service; starts the embedded one if there is none."""
        if self._service is not None:
            return self._service
        if self._embedded is None:
            from millrace.clusters.local import LocalService

            least, most = validation.workers(self._workers) or (1, None)
            self._embedded = LocalService(least, most)
        return self._embedded.address

    def _joined(self, share: Share | None, states: Sequence[Checkpoint] = ()) -> ConsumerSession:
        """Session of this process, as the consumer or as one of its helpers; another one if it is to resume."""
        former = self._session
        if former is not None and self._alone and former.reading:  # it goes on from a state; the next epoch is shared
            self._others.add(former)
            former = None
        if former is not None and not (self._alone or former.closed or former.failed or share != self._share or states):
            return former
        self._session = None
        if former is not None:
            former.close()
        self._alone = self._sharing is not None and bool(states)
        self._session = session = self._join(
            share, own_job(self._parameters, seed=states[0].seed) if self._alone else {}, states
        )
        self._share = share
        if self._sharing is None:
            self._passes.following = 0  # the job may have begun anew
        self._start_local(session.job, share)
        return session

    def _join(self, share: Share | None, changes: dict[str, Any], states: Sequence[Checkpoint] = ()) -> ConsumerSession:
        """Join a job; ``changes``: what is another in it than in this dataset's own."""
        self._share_arrays()
        self._others.wait()
        address = self.service_address()

        from millrace.client.epoch_reader import ConsumerSession
        from millrace.client.job_session import BUFFER_BYTES, LEAST_BUFFER_BYTES, JobSession
        from millrace.clusters.service import watch
        from millrace.protocol.job_spec import JobSpec

        python = ".".join(platform.python_version_tuple()[:2])
        consumer, places = place_of(share, self._consumer_index, self._parameters, named=self._named)
        parameters = {**self._parameters, **places, **changes}
        job_session = JobSession(
            address,
            JobSpec(structure=self._structure, bundle="", python=python, arrays=tuple(self._memories), **parameters),
            self._bundle,
            arrays=tuple(self._memories.values()),
            consumer=consumer,
            token=self._token,
            tls=self._tls,
            compression=self._compression,
            buffer_bytes=max(LEAST_BUFFER_BYTES, self._buffer_bytes or BUFFER_BYTES),
            gone=watch(address),
            linger=share is not None,  # the same helper's next life comes back
            states=states,
            progress=self._progress,
        )
        self._job = job_session.job
        return ConsumerSession(job_session)

    def _start_local(self, job: str, share: Share | None) -> None:
        """Start the workers inside this host, unless they are there."""
        if self._local is not None and self._local.usable and self._local.job == job:
            return
        if self._local is not None:
            self._local.close()
        self._local = self._new_local(job, share)

    def _new_local(self, job: str, share: Share | None) -> LocalWorkers | None:
        """Workers of a job inside this host, if it is to have any."""
        if not self._local_workers:
            return None
        from millrace.clusters.local_workers import LocalWorkers, local_share

        count = local_share(self._local_workers, share, alone=self._parameters["target_workers"] == "local")
        return LocalWorkers(self.service_address(), job, count, self._token, self._tls) if count else None
