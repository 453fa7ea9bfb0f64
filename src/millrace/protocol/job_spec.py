"""Specification of a job, as its consumers say it when they join."""

from __future__ import annotations

from typing import Literal

import msgspec

MOST_CONSUMERS = 16_384
"""Of a job. Each that is there is looked at whenever one of its tasks is leased, which takes 3 µs."""
MOST_TASKS = 1_000_000
"""Of an epoch, where the user chooses their number: a consumer is told the numbers of all its tasks in one message."""
MOST_WORKERS = 100_000
"""Of a job, where the user chooses their number."""
MOST_ACCELERATORS = 1024
"""Behind one consumer."""
ALONE = "-alone-"
"""In the name of a job in which a process goes on without those that it shares with: behind its name among these."""
MOST_SLOTS = 64
"""That coordinated consumers read in turn: a worker's buffer is divided among them."""


class JobSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Specification of a job: the same for all its consumers.

    Attributes:
        name: the job's name, unique in the service while the job lives.
        structure: the graph, from :func:`millrace.graph.serialize.pack`.
        bundle: digest of the bundle that holds the graph's slots, from :mod:`millrace.functions.bundles`; it was
            put into the dispatcher before joining.
        sharding: "dynamic", "static", "static_contiguous", "off" or "custom" (then the bundle's last value is the
            user's function).
        visitation: "exactly_once", "at_most_once" or "zero_once_or_more".
        deterministic: every consumer reads its tasks in plan order.
        num_consumers: expected number, None if whoever joins.
        equal_steps: every consumer reads equally many elements of an epoch.
        seed: of everything random without a seed of its own; None: drawn by the dispatcher when the job begins.
        tasks: number of tasks of an epoch; None: by the data's size.
        epochs: epochs that will be read; None if unknown. Nothing is prepared beyond.
        accelerators: behind each consumer.
        workers: (least, most) that the job may have; None: as the service has it.
        cheapest: as many workers as make an element cheapest, and not as many as feed the consumers.
        python: "major.minor" of the consumers; the bundle can be read by no other.
        priority: weight of the job where there are too few workers for all, see
            :mod:`millrace.policies.scheduling.fair_share`.
        tenant: whose quota of workers it counts against, and whose name is on what it keeps in the service's cache.
        untrusted_cache: what to do where elements of the pipeline are kept by a tenant that this one does not trust:
            "recompute" them, and say so, or "refuse" the job.
        arrays: digests of the arrays that the bundle's functions leave out; the dispatcher had them before joining.
        coordinated: "drop" or "mix": outputs are rounds of a batch for each consumer, see
            ``docs/design/0017-coordinated-reads.md``, and this becomes of what does not fill one at the end of an
            epoch; "": consumers read tasks of their own.
        cycle_length: of ``coordinated``: so many tasks are read at a time, a round of each in turn.
        sharing: "lockstep" or "window": the consumers are members of the group of all jobs that are alike, see
            ``docs/design/0017-sharing.md``, and ``name`` is the member's own; "": the job is of its consumers alone.
        window_bytes: of "window": outputs that each worker keeps of a slot for members that come later or are slower;
            0: half of the slot's part of the worker's buffer, or more.
        functions: fingerprint of what the bundle holds, by which groups know that functions are alike, as two processes
            may pack the same ones into other bytes; empty: the bundle's digest does.
        target_workers: where they may be: "auto", "local", "remote" or "any"; see
            :mod:`millrace.control.scaling.job_placement`.
    """

    name: str
    structure: bytes
    bundle: str
    sharding: str = "dynamic"
    visitation: str = "exactly_once"
    deterministic: bool = False
    num_consumers: int | None = None
    seed: int | None = None
    tasks: int | None = None
    epochs: int | None = None
    python: str = ""
    equal_steps: bool = False
    workers: tuple[int, int] | None = None
    accelerators: int = 1
    priority: float = 1.0
    tenant: str = "default"
    cheapest: bool = False
    target_workers: str = "auto"
    untrusted_cache: Literal["recompute", "refuse"] = "recompute"
    arrays: tuple[str, ...] = ()
    coordinated: Literal["", "drop", "mix"] = ""
    cycle_length: int = 1
    sharing: Literal["", "window", "lockstep"] = ""
    functions: str = ""
    window_bytes: int = 0

    @property
    def blobs(self) -> tuple[str, ...]:
        """Digests of all that the dispatcher was given for the job before it began."""
        return self.bundle, *self.arrays

    @property
    def runs_again(self) -> bool:
        """Whether what is lost with a worker is computed again: promised, or an unsharded epoch keeps its length.

        Rounds are, in any case: some ranks may have had them.
        """
        return self.visitation == "exactly_once" or self.sharding == "off" or bool(self.coordinated)

    @property
    def statically_owned(self) -> bool:
        """The sharding fixes which worker runs what."""
        return self.sharding in {"static", "static_contiguous", "custom"}

    @property
    def ranks(self) -> int | None:
        """Consumers that are to get equally many elements; None: it does not matter."""
        return self.num_consumers if self.equal_steps else None

    def rank(self, reader: int) -> int:
        """Rank of a reader within its own job: each member of a group has as many readers as it has ranks."""
        return reader % self.together if self.sharing else reader

    @property
    def together(self) -> int:
        """Number of batches that are one output for the job's consumers: those of a round where it is coordinated."""
        return self.num_consumers or 1 if self.coordinated else 1
