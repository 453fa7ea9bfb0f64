"""Bottleneck of a training loop: what keeps it from being faster, in one sentence. Pure.

A chain of stages with buffers between them is as fast as its slowest stage: what lies before that one is full, what
comes after it is empty. So the loop's own waiting says on which side of it the bottleneck is, what lies computed at the
workers says on which side of the link, and beyond it the stage is the operator that held the pulling thread longest.
Whether that one computed, waited, or had one thread where there were cores follows from its processor time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.figures import counted, rounded

Bottleneck = Literal["unknown", "model", "link", "tasks", "storage", "operator", "thread", "workers"]
"""Bottleneck of a job: nothing was measured yet; the loop itself; the way between workers and loop; workers have no
tasks; reads that wait; a function that waits; one thread, though there are cores; all cores that there are."""

WAITS = 0.1
"""Share of its time below which a waiting loop is itself the bottleneck."""
FILLED = 0.5
"""Share of the time for which something must have lain computed at the workers, for the link to be blamed."""
AHEAD = 0.2
"""Least excess of this share over the one in which they computed: whoever is ahead at last has nothing left to do."""
BUSY = 0.3
"""Share of the time below which computing workers are taken to have had no tasks."""
COMPUTES = 0.25
"""Share of its time, over all its threads, below which an operator that used a processor is taken to have waited."""
HALF_CORE = 0.5
"""Cores that its threads together must have kept busy for it to have waited for Python's lock only; and the fewest that
a process keeps busy whose operators compute rather than wait."""
ONE_CORE = 1.3
"""Cores in use up to which it was one thread at a time."""

BEFORE_DISTRIBUTE = "the same before distribute()"
"""Advice for operators behind ``distribute()``."""
CROWDED = 0.3
"""Share of the time without a free core from which other programs are worth a word."""


class Operator(msgspec.Struct, frozen=True):
    """Work of one operator in a while, in all workers of a job.

    Attributes:
        label: as the user wrote it.
        elements: number of its outputs.
        wall_s: seconds for which it held the threads that pull, those in which they waited for its own included.
        active_s: seconds of its work over all threads.
        cpu_s: seconds of a processor in ``active_s``.
        threads: number of its threads; 0: the one that pulls.
        reads: it is a source.
        sequential: the user did not let it have threads (``num_parallel_calls=None``).
    """

    label: str
    elements: int
    wall_s: float
    active_s: float
    cpu_s: float
    threads: int = 0
    reads: bool = False
    sequential: bool = False

    def waits(self, delayed: float) -> bool:
        """Whether it neither computed nor wanted to, for the most part, where ``delayed`` of that is without a core."""
        wanted_s = self.cpu_s / (1 - delayed)
        return wanted_s < COMPUTES * self.active_s and wanted_s < HALF_CORE * self.wall_s

    @property
    def idle(self) -> float:
        """Share of its work in which it did not compute, from 0 to 1."""
        return max(0.0, 1 - self.cpu_s / self.active_s) if self.active_s > 0 else 0.0


class BottleneckMeasures(msgspec.Struct, frozen=True):
    """Measures of a job, or of an iterator in process.

    Attributes:
        operators: from the source to the last.
        batch_s: seconds from one element to the next, as the loop sees it; 0: nothing was read yet.
        wait_s: of these, seconds of waiting.
        workers: number of workers that serve the job; None: it runs in the loop's process.
        planned: number of workers that it is to have; 0: nobody plans.
        requested: number of workers that a cluster was asked for; 0: nobody plans.
        spare: whether hosts of its workers have cores for further ones.
        cores: number that each process may keep busy.
        used: number of cores that it did keep busy while it computed.
        delayed: share of the time in which its threads could have run and had no core, from 0 to below 1.
        computing: share of the time in which the workers ran its tasks, from 0 to 1.
        filled: share of the time in which something computed lay at the workers for the loop to take.
        link_bytes_s: bytes a second that came to its consumers.
        elsewhere: in words, what has the operators of the loop's process run in others.
    """

    operators: Sequence[Operator]
    batch_s: float
    wait_s: float
    workers: int | None = None
    planned: int = 0
    requested: int = 0
    spare: bool = True
    cores: int = 1
    used: float = 0.0
    delayed: float = 0.0
    computing: float = 1.0
    filled: float = 0.0
    link_bytes_s: float = 0.0
    elsewhere: str = "distribute()"

    @property
    def waits(self) -> float:
        """Share of the loop's time in which it waited, from 0 to 1."""
        return min(1.0, max(0.0, self.wait_s / self.batch_s)) if self.batch_s > 0 else 0.0

    @property
    def top(self) -> Operator | None:
        """Operator that held the pipeline longest."""
        held = [operator for operator in self.operators if operator.wall_s > 0]
        return max(held, key=lambda operator: operator.wall_s, default=None)

    @property
    def waiter(self) -> Operator | None:
        """Operator that held the pipeline longest without computing, if that was most of its time."""
        waiting = [operator for operator in self.operators if operator.wall_s > 0 and operator.idle >= 1 - HALF_CORE]
        return max(waiting, key=lambda operator: operator.wall_s * operator.idle, default=None)

    def share(self, operator: Operator | None) -> float:
        """Share of an operator in the time of all operators."""
        return operator.wall_s / sum(each.wall_s for each in self.operators) if operator is not None else 0.0


def bottleneck(load: BottleneckMeasures) -> Decision[Bottleneck]:
    """Find the bottleneck, and how to widen it. The reason is a sentence without a subject: "the model; ..."."""
    value, reason = _found(load)
    return Decision(value, reason, _inputs(load))


def is_held_up(load: BottleneckMeasures, arriving_s: float) -> bool:
    """Whether a loop waits for operators in its own process, rather than ``arriving_s`` seconds for a service."""
    return load.waits >= WAITS and load.top is not None and load.top.wall_s > arriving_s


def _found(load: BottleneckMeasures) -> tuple[Bottleneck, str]:
    if load.batch_s <= 0:
        return "unknown", "not known yet, as too little was read"
    top = load.top
    waited = f"the loop waited {rounded(load.waits)} of its time"
    most = f", and {rounded(load.share(top))} of the computing was {top.label}" if top is not None else ""
    if load.waits <= WAITS:
        gain = "a faster pipeline" if load.workers is None else "more or faster ones"
        whom = "" if load.workers is None else f" for {counted(load.workers)}"
        return "model", f"the model; {waited}{whom}{most}, so {gain} would gain little"
    said = f"the input data; {waited}"
    if load.workers == 0:
        return "unknown", f"{said}; no worker serves it now, so what its operators do is not known"
    if load.workers is not None and load.filled >= FILLED and load.filled - load.computing >= AHEAD:
        return "link", (
            f"{said} although something lay computed at {counted(load.workers)} {rounded(load.filled)} of the time:"
            f" the link brings {_rate(load.link_bytes_s)}, so smaller elements, compression= or workers nearer to the"
            " loop would make it faster"
        )
    if load.workers is not None and load.computing < BUSY:
        return "tasks", (
            f"{said} while {counted(load.workers)} computed {rounded(load.computing)} of theirs and had no more"
            " tasks, so more parts (more or larger files, tasks=) or fewer workers would fit better"
        )
    if top is None:
        return "unknown", f"{said}; what its operators do is not known yet"
    idle = load.used < HALF_CORE * (1 - load.delayed)  # then no core was what it lacked
    waits = top if top.waits(load.delayed) else load.waiter if idle else None
    if waits is not None:
        share = rounded(load.share(waits))
        return _waiting(f"{said}, {share} of the pipeline's time went into {waits.label}", waits)
    if idle:
        whose = "this process" if load.workers is None else counted(load.workers)
        return "unknown", f"{said} while {whose} kept {load.used:.1f} cores busy; what held it up was not measured"
    said += f", {rounded(load.share(top))} of the computing was {top.label}"
    # Of several threads only those count as held up by one another that had cores to run on.
    if load.cores > 1 and load.used < ONE_CORE * (1 - load.delayed if top.threads > 1 else 1):
        return "thread", f"{said} {_one_thread(load, top)} would make it faster"
    return "workers", f"{said} {_too_few(load)} would make it faster"


def _waiting(said: str, top: Operator) -> tuple[Bottleneck, str]:
    idle = rounded(top.idle)
    if top.reads:
        reads = "1 read" if top.threads <= 1 else f"{top.threads} reads"
        return "storage", (
            f"{said}, which waited for its data {idle} of that with {reads} at a time, so storage that answers faster,"
            " larger files or a cache (autocache()) would make it faster"
        )
    calls = "num_parallel_calls=mr.AUTOTUNE" if top.sequential else "num_parallel_calls="
    change = f"more calls at a time than {max(1, top.threads)} ({calls})"
    return "operator", f"{said}, which waited {idle} of that and computed little, so {change} would make it faster"


def _one_thread(load: BottleneckMeasures, top: Operator) -> str:
    cores = f"the {load.cores} cores that {'this process' if load.workers is None else 'a worker'} may use"
    others = load.elsewhere if load.workers is None else "more workers of a thread each"
    if top.sequential:
        change = f"num_parallel_calls=mr.AUTOTUNE (or {others}, if it holds Python's lock)"
        return f"on one thread and not on {cores}, so {change}"
    if top.threads > 1:
        return (
            f"whose {top.threads} threads kept {load.used:.1f} of {cores} busy (Python's lock lets one run at a time),"
            f" so {others}, or functions that release the lock,"
        )
    return f"on one thread and not on {cores}, so {others}"


def _too_few(load: BottleneckMeasures) -> str:
    others = f" (with other programs too: {rounded(load.delayed)} of the time no core was free)"
    crowded = others if load.delayed >= CROWDED else ""
    if load.workers is None:
        return f"with all cores of this process busy{crowded}, so cheaper functions or {load.elsewhere}"
    planned = f", of {load.planned} planned ({load.requested} requested)" if load.planned > load.workers else ""
    where = "" if load.spare else " (on other machines, as these have no core to spare)"
    change = f"cheaper functions or more workers{where}"
    return f"with all cores of {counted(load.workers)} busy{crowded}{planned}, so {change}"


def _inputs(load: BottleneckMeasures) -> dict[str, Any]:
    top = load.top
    return {
        "waits": load.waits,
        "operator": top.label if top is not None else None,
        "operator_share": load.share(top),
        **msgspec.to_builtins(load),
    }


def _rate(bytes_s: float) -> str:
    return f"{bytes_s / 1e6:,.1f} MB/s"
