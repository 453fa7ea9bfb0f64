"""Settings by the operator of a dispatcher."""

from __future__ import annotations

from typing import Literal

import msgspec

from millrace.policies.caching.cache_probe import PROBE_BATCHES, PROBE_INTERVAL_S
from millrace.policies.prices import PriceTable
from millrace.policies.scaling.scaling_policies import Kind


class Settings(msgspec.Struct, frozen=True):
    """Settings of the dispatcher; times in seconds.

    Attributes:
        version: millrace's, for messages.
        python: "major.minor".
        heartbeat_s: between two reports of a worker or consumer.
        job_gc_timeout_s: how long a consumer's place is kept without a session, and a job that nobody reads for
            expected consumers that have not come.
        anonymous_grace_s: the same for a job that the service named, as nobody else can ever join it.
        return_s: after a restart of the dispatcher, how long at least its peers have to find it again.
        durable: what became so outlives the dispatcher.
        cache: where blocks are kept, path or URL; empty: nowhere.
        cache_bytes: that they may take together.
        compression: of blocks.
        blocked_s: a worker whose lanes have all been blocked for so long is given to a job that waits.
        turn_s: shortest turn of a worker with one job while another waits, unless it gets through several tasks.
        least_workers: that the service runs, and ``most_workers``; both alike: the number of workers is not its affair.
        first_workers: of a job that is not known.
        shrink_s: after the last job has gone, until fewer workers are planned.
        drain_s: that a worker has to leave.
        patience_s: until a cluster that has not started all workers is taken to have no room for more.
        turn_limit_s: longest time to a task's end for a worker that another job waits for; doubled for a job each time
            it is too short.
        quotas: by tenant, how many workers its jobs may have together; of others: all.
        job_quotas: by tenant, how many jobs it may have at once; of others: any number.
        byte_quotas: by tenant, how much of ``cache_bytes`` what its jobs keep may take; of others: all.
        scaling_policy: that finds out how many workers a job needs.
        prices: for what is said to cost what; None: nobody has said any.
        lockstep_wait_s: for how long a job may keep others waiting that share its computation in lockstep.
        window_tasks: that members have read and that are remembered, of which outputs may lie in a shared window.
        window_behind: tasks of a slot by which a member may be behind the furthest one where rounds are shared in a
            window, before it skips what is dealt.
        trust: by tenant, the others whose blocks its jobs read.
        probe_batches: of a job that are timed for one look at what it gains by the source cache.
        probe_interval_s: from one look past the source cache to the next of a job, at least.
    """

    version: str = ""
    python: str = ""
    heartbeat_s: float = 5.0
    job_gc_timeout_s: float = 300.0
    anonymous_grace_s: float = 10.0
    return_s: float = 10.0
    durable: bool = False
    cache: str = ""
    cache_bytes: int = 0
    compression: Literal["lz4", "zstd"] | None = None
    blocked_s: float = 5.0
    turn_s: float = 1.0
    turn_limit_s: float = 30.0
    least_workers: int = 0
    most_workers: int = 0
    first_workers: int = 1
    shrink_s: float = 60.0
    drain_s: float = 60.0
    patience_s: float = 60.0
    quotas: dict[str, int] = {}
    job_quotas: dict[str, int] = {}
    byte_quotas: dict[str, int] = {}
    scaling_policy: Kind = "millrace"
    prices: PriceTable | None = None
    lockstep_wait_s: float = 30.0
    window_tasks: int = 1024
    window_behind: int = 8
    trust: dict[str, list[str]] = {}
    probe_batches: int = PROBE_BATCHES
    probe_interval_s: float = PROBE_INTERVAL_S
