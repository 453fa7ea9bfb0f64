"""A dataset on a service: what ``distribute`` gives."""

from __future__ import annotations

import enum
import functools
import os
import platform
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from millrace import arguments
from millrace.arguments import one_of
from millrace.control.spec import MOST_ACCELERATORS, MOST_TASKS
from millrace.engine.host import siblings
from millrace.errors import ConsumerConflictError, JobConflictError, PipelineError, StateError, UnknownLengthError
from millrace.frameworks.readable import Readable
from millrace.functions.signature import describe
from millrace.graph import serialize
from millrace.planning.checkpoint import Checkpoint, graph_digest, parse_all, said
from millrace.planning.passes import Number, Passes, Share
from millrace.planning.shapes import Varying

if TYPE_CHECKING:
    from millrace.client.session import ConsumerSession, EpochReader
    from millrace.clusters.local import LocalService
    from millrace.clusters.training_host import TrainingHost
    from millrace.dataset import Dataset
    from millrace.wire.compression import Compression

ShardingFunction = Callable[[Sequence[int], Sequence[str]], Sequence[int]]


class ShardingPolicy(enum.Enum):
    """Which worker runs which task (tf.data service 3.3)."""

    OFF = "off"
    """Every worker runs over all the data in an order of its own; an epoch is as long as the data, but not the data."""
    DYNAMIC = "dynamic"
    """First come, first served: disjoint, and workers may come and go."""
    STATIC = "static"
    """Fixed at the start of an epoch, task i to worker i mod W; moved only if that worker dies."""


class Visitation(enum.Enum):
    """How often each element of an epoch reaches the job (tf.data service 3.3, 3.4)."""

    EXACTLY_ONCE = "exactly_once"
    AT_MOST_ONCE = "at_most_once"
    """What a lost worker had is not computed again."""
    ZERO_ONCE_OR_MORE = "zero_once_or_more"
    """Any number of times; what ``ShardingPolicy.OFF`` gives."""


class Sharing(enum.Enum):
    """How jobs share one pipeline's work."""

    WINDOW = "window"
    LOCKSTEP = "lockstep"


class DistributedDataset(Readable):
    """A dataset whose elements are computed by a service. Each ``iter()`` is one epoch.

    Holds its place in the service (and the service itself, if it is an embedded one) from the first ``iter()`` until
    :meth:`close`, the end of a ``with`` block, or the end of its life.
    """

    def __init__(
        self,
        dataset: Dataset,
        service: str | None,
        *,
        job_name: str | None,
        sharding: ShardingPolicy | ShardingFunction,
        visitation: Visitation,
        deterministic: bool,
        num_consumers: int | None,
        equal_steps: bool,
        consumer_index: int | None,
        sharing: Sharing | None,
        workers: Any,
        target_workers: Any,
        local_workers: Any,
        accelerators: int,
        tasks: int | None,
        compression: Compression | None,
        seed: int | None,
        priority: float,
        tenant: str,
        token: str | None,
    ) -> None:
        self._dataset: Dataset | None = dataset
        self._service = service
        num_consumers, self._consumer_index = arguments.consumers(num_consumers, consumer_index)
        arguments.asker(service, job_name, token, num_consumers, self._consumer_index)
        if token is None and service is not None:
            from millrace.clusters.service import token_of

            token = token_of(service)
        self._token = token or os.environ.get("MILLRACE_TOKEN")
        self._compression = compression
        seed = arguments.seed("distribute", seed)
        _check(sharding, visitation, deterministic)
        _check_equal(equal_steps, num_consumers, visitation)
        arguments.place(target_workers, local_workers, service)
        arguments.claim(priority, tenant, sharing)
        one_of("distribute", "compression", compression, (None, "lz4", "zstd"))
        self._parameters: dict[str, Any] = {
            "name": job_name or f"job-{secrets.token_hex(4)}",
            "visitation": visitation.value,
            "deterministic": bool(deterministic),
            "num_consumers": num_consumers,
            "equal_steps": equal_steps,
            "seed": _seed(dataset, job_name) if seed is None else seed,
            "tasks": None if tasks is None else arguments.positive("distribute", "tasks", tasks, MOST_TASKS),
            "workers": arguments.workers(workers),
            "cheapest": bool(workers == "cheapest"),
            "accelerators": arguments.positive("distribute", "accelerators", accelerators, MOST_ACCELERATORS),
            "sharding": sharding.value if isinstance(sharding, ShardingPolicy) else "custom",
            "priority": float(priority),
            "tenant": tenant,
            "target_workers": "any" if service is None else target_workers,
        }
        self._named = job_name is not None
        self._seed_is_chosen = seed is not None or dataset.graph.seed() is not None
        self._workers = workers
        self._local_workers = 0 if service is None else _local_workers(target_workers, local_workers)
        self._buffer_bytes = dataset.graph.options().buffer_bytes or 0
        self._structure, self._bundle = _ship(dataset, sharding)
        self._embedded: LocalService | None = None
        self._local: TrainingHost | None = None
        self._session: ConsumerSession | None = None
        self._share: Share | None = None
        self._passes = Passes()
        self._resumed: weakref.ref[EpochReader] | None = None

    def __iter__(self) -> EpochReader:
        """The next epoch: an iterator with ``close()``, and a context manager."""
        return self.read_epoch()

    def read_epoch(self, number: Number = None, share: Share | None = None) -> EpochReader:
        """Elements of one epoch; see :class:`Readable`. Helpers are consumers of their own.

        Of several ranks each may make an iterator, and load its state into that, before or after the others do.
        """
        if share is not None or self._passes.loaded or self._session or self._parameters["num_consumers"] in (None, 1):
            return self._begin_epoch(number, share)
        try:
            session = self._joined(None)
            try:
                return self._begin_epoch(number, None)
            except ConsumerConflictError:  # another rank has loaded its state meanwhile: this one's comes, perhaps
                self._session = None
                session.close()
                return self._begin_epoch(number, None)
        except StateError as error:
            from millrace.client.session import AwaitedReader

            return AwaitedReader(error, self._fresh_state, functools.partial(self._reload, None))

    def _begin_epoch(self, number: Number, share: Share | None) -> EpochReader:
        passes, reload = self._passes, functools.partial(self._reload, share)
        loaded = passes.loaded
        resumed = self._resumed() if self._resumed is not None else None
        if loaded and resumed is not None:
            return resumed  # it is where these states lead, and nobody has asked it for anything
        session = self._joined(share, loaded)
        following = session.next_epoch
        over = share is not None and any(each.epoch < following for each in loaded)  # for the loader, it is still that
        passes.following = loaded[0].epoch if over else following
        chosen, _ = passes.choose(number)
        if not loaded:
            if chosen < following:
                raise JobConflictError(
                    f"consumer {session.consumer} of job {session.job!r} is past epoch {chosen}, which this process "
                    "is about to begin: an earlier run, or another loader, has read the job; give this one another "
                    "job_name"
                )
            return session.epoch(chosen, keep=self, passes=passes, reload=reload)
        if over:
            reader = session.over(loaded[0], passes, reload)
        else:
            reader = session.epoch(following, read=said(loaded, following), keep=self, passes=passes, reload=reload)
        self._resumed = weakref.ref(reader)
        if share is not None and (over or not reader.prime()):
            self._session = None
            session.close()  # a loader's next pass may have other processes, and that before this one has ended
        return reader

    def _reload(self, share: Share | None, state: Any) -> EpochReader:
        """What an iterator becomes into which ``state`` is loaded."""
        resumed = self._resumed() if self._resumed is not None else None
        if resumed is not None and self._passes.loaded == parse_all(state):
            return resumed  # it was loaded into the dataset before
        self.load_state_dict(state)
        (first, *others), session = self._passes.loaded, self._session
        if share is None and first.ended and not others and session is not None:
            return session.over(first, Passes(), functools.partial(self._reload, None))
        reader = self.read_epoch(None, share)
        self._passes.started()
        return reader

    def load_state_dict(self, state: Any) -> None:
        """See :class:`Readable`. The job begins anew with it, whatever has become of it since."""
        super().load_state_dict(state)
        first, chosen = self._passes.loaded[0], self._parameters["seed"]
        if first.helpers or (first.seed is not None and chosen != first.seed and self._seed_is_chosen):
            self._passes.loaded = ()
            raise StateError(
                f"the state is of seed {first.seed}, and this dataset has seed {chosen} by choice"
                if not first.helpers
                else "the state is of a process of a DataLoader without a service, which had tasks of its own"
            )
        self._resumed = None
        if first.seed is not None:
            self._parameters["seed"] = first.seed

    set_state = load_state_dict

    def adopt_seed(self, seed: int | None) -> None:
        """See :class:`Readable`."""
        if seed is not None:
            self._parameters["seed"] = seed

    def _fresh_state(self) -> Checkpoint:
        graph = graph_digest(serialize.unpack(self._structure))
        return Checkpoint(seed=self._parameters["seed"], epoch=self._passes.following, graph=graph)

    def peek(self, count: int) -> list[Any]:
        """The first ``count`` elements, computed in this process."""
        return self.dataset.peek(count)

    def varying(self) -> Varying:
        """As of the dataset."""
        return self.dataset.varying()

    def prepare_to_fork(self) -> None:
        """Starts the embedded service, if there is to be one, here rather than once in each process."""
        self.service_address()

    def epochs(self, count: int) -> Iterator[Any]:
        """Elements of ``count`` epochs, one after the other; nothing is prepared beyond the last."""
        count = arguments.whole("epochs", "count", count, 0)
        if self._session is None:
            self._parameters["epochs"] = count
        for _ in range(count):
            yield from self

    def __len__(self) -> int:
        """As of the dataset, if one consumer reads all of it.

        Raises:
            UnknownLengthError: else, and where the dataset's own length is unknown.
        """
        if self._parameters["num_consumers"] not in (None, 1) or self._parameters["sharding"] == "off":
            raise UnknownLengthError("how much of an epoch comes to one consumer is known only after reading it")
        return len(self.dataset)

    def close(self) -> None:
        """Leaves the job; stops the service if it is an embedded one. Idempotent."""
        session, self._session = self._session, None
        local, self._local = self._local, None
        service, self._embedded = self._embedded, None
        try:
            if session is not None:
                session.close()
        finally:
            for each in (local, service):
                if each is not None:
                    each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def status(self) -> dict[str, Any]:
        """What the service is doing, as of ``millrace status --json``.

        With ``bottleneck``, that of this dataset's job: its ``reason`` says in one sentence what keeps the loop from
        being faster. None before the first ``iter()``, and once the job is over.
        """
        from millrace.client.status import fetch_status

        found = fetch_status(self.service_address(), self._token)
        own = [job["bottleneck"] for job in found["jobs"] if job["name"] == self._parameters["name"]]
        return {**found, "bottleneck": own[0] if own else None}

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process joins by itself; an embedded service stays with the original."""
        service = self._embedded.address if self._embedded is not None else self._service
        # The user's functions go along as they go to workers, and are not unpickled unless somebody asks for them.
        return {
            **self.__dict__,
            "_dataset": None,
            "_embedded": None,
            "_local": None,
            "_session": None,
            "_service": service,
            "_passes": self._passes.copy(),
            "_resumed": None,
        }

    @property
    def dataset(self) -> Dataset:
        """What is distributed."""
        if self._dataset is None:
            self._dataset = _unship(self._structure, self._bundle, self._parameters["seed"])
        return self._dataset

    def service_address(self) -> str:
        """Address of the service; starts the embedded one if there is none."""
        if self._service is not None:
            return self._service
        if self._embedded is None:
            from millrace.clusters.local import LocalService

            least, most = arguments.workers(self._workers) or (1, None)
            self._embedded = LocalService(least, most)
        return self._embedded.address

    def _joined(self, share: Share | None, states: Sequence[Checkpoint] = ()) -> ConsumerSession:
        """The session of this process, as the consumer or as one of its helpers; another one if it is to resume."""
        if self._session is None or share != self._share or states:
            address = self.service_address()

            from millrace.client.session import BUFFER_BYTES, LEAST_BUFFER_BYTES, ConsumerSession
            from millrace.clusters.service import watch
            from millrace.control.spec import JobSpec

            python = ".".join(platform.python_version_tuple()[:2])
            consumer, changes = self._place(share)
            spec = JobSpec(structure=self._structure, bundle="", python=python, **{**self._parameters, **changes})
            former, self._session = self._session, None
            if former is not None:
                former.close()
            self._session = ConsumerSession(
                address,
                spec,
                self._bundle,
                consumer=consumer,
                token=self._token,
                compression=self._compression,
                buffer_bytes=max(LEAST_BUFFER_BYTES, self._buffer_bytes or BUFFER_BYTES),
                gone=watch(address),
                linger=share is not None,  # the same helper's next life comes back
                states=states,
            )
            self._share = share
            self._start_local(address, spec.name, share)
        return self._session

    def _start_local(self, address: str, job: str, share: Share | None) -> None:
        """Starts the workers inside this host, unless they are there."""
        count = local_share(self._local_workers, share, alone=self._parameters["target_workers"] == "local")
        if not count:
            return
        if self._local is not None and self._local.usable and self._local.job == job:
            return
        if self._local is not None:
            self._local.close()

        from millrace.clusters.training_host import TrainingHost

        self._local = TrainingHost(address, job, count, self._token)

    def _place(self, share: Share | None) -> tuple[int | None, dict[str, Any]]:
        """Index of the consumer, and what else is another in a helper's job: helpers are consumers of their own."""
        if share is None:
            return self._consumer_index, {}
        part, parts = share
        name, consumers = self._parameters["name"], self._parameters["num_consumers"] or 1
        changes = {"num_consumers": consumers * parts, "name": name if self._named else f"{name}/{parts}"}
        return (self._consumer_index or 0) * parts + part, changes


def _seed(dataset: Dataset, job_name: str | None) -> int | None:
    """The seed to ask for: a job of one's own has this dataset's.

    Processes that share a job would each draw another one, so there the dispatcher draws it.
    """
    return dataset.seed if job_name is None else dataset.graph.seed()


def _ship(dataset: Dataset, sharding: ShardingPolicy | ShardingFunction) -> tuple[bytes, bytes]:
    from millrace.functions.shipping import pack
    from millrace.graph import serialize

    structure, slots = serialize.pack(dataset.graph)
    users = {id(slot): str(node) for node in dataset.graph.nodes for _, slot in node.opaques()}
    values, names = [slot.value for slot in slots], [users.get(id(slot), slot.name) for slot in slots]
    if not isinstance(sharding, ShardingPolicy):
        values.append(sharding)
        names.append(f"sharding={describe(sharding, 'distribute', ('tasks', 'workers')).name}")
    return structure, pack(values, names)


def _unship(structure: bytes, bundle: bytes, seed: int | None) -> Dataset:
    from millrace.dataset import Dataset
    from millrace.functions.shipping import unpack
    from millrace.graph import serialize

    return Dataset(serialize.unpack(structure, unpack(bundle)).root).with_options(seed=seed)


def _check(sharding: Any, visitation: Visitation, deterministic: Any) -> None:
    if not isinstance(sharding, ShardingPolicy):
        if not callable(sharding):
            raise PipelineError(f"sharding is {_members(ShardingPolicy)} or a function, not {sharding!r}")
        describe(sharding, "distribute", ("tasks", "workers"))
    if not isinstance(visitation, Visitation):
        raise PipelineError(f"visitation is {_members(Visitation)}, not {visitation!r}")
    if sharding is ShardingPolicy.OFF and visitation is not Visitation.ZERO_ONCE_OR_MORE:
        raise PipelineError(
            "ShardingPolicy.OFF gives every worker all the data, so elements come any number of times: "
            "say visitation=Visitation.ZERO_ONCE_OR_MORE, or use ShardingPolicy.DYNAMIC"
        )
    if sharding is ShardingPolicy.OFF and deterministic:
        raise PipelineError("ShardingPolicy.OFF depends on which workers there are; deterministic=True needs another")
    one_of("distribute", "deterministic", deterministic, (False, True))


def _check_equal(equal_steps: Any, num_consumers: int | None, visitation: Visitation) -> None:
    if not isinstance(equal_steps, bool):
        raise PipelineError(f"equal_steps is True or False, not {equal_steps!r}")
    if equal_steps and num_consumers is None:
        raise PipelineError("equal_steps=True needs num_consumers: between how many processes is an epoch divided?")
    if equal_steps and visitation is not Visitation.EXACTLY_ONCE:
        raise PipelineError(
            f"equal_steps=True cannot be with {visitation}: elements that are lost would be missing from one consumer"
        )


def _members(kind: type[enum.Enum]) -> str:
    return ", ".join(str(member) for member in kind)


def _local_workers(target_workers: str, local_workers: int | None) -> int:
    """How many processes of this host to start: those that the user allows, or the cores but one of each training."""
    if local_workers is not None or target_workers in {"auto", "remote"}:
        return local_workers or 0
    trainings = siblings()
    return max(1, ((os.cpu_count() or 1) - trainings) // trainings)


def local_share(workers: int, share: Share | None, *, alone: bool) -> int:
    """How many of this host's ``workers`` a helper starts, of which each ends as soon as it has read its share.

    Args:
        workers: that all of them may have together.
        share: (i, n): helper i of n; None: there are no helpers.
        alone: nobody else does their work: each needs one of its own, as those of others may end before.
    """
    if share is None or not workers:
        return workers
    part, parts = share
    return max(workers // parts + (part < workers % parts), int(alone))
