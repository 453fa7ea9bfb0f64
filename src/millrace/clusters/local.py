"""Local service: its workers are processes of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from millrace.clusters.service import (
    Service,
    quota_options,
    scaling_options,
    source_cache_options,
    storage_options,
    worker_range,
)
from millrace.host_limits import usable_cores


class LocalService(Service):
    """Service on this machine: a dispatcher and its workers, as long as this object lives.

    All of its processes end with :meth:`close`, with a ``with`` block, or with this process, however it ends.

    Args:
        min_workers: at least so many workers.
        max_workers: at most so many; None: one for each core. All of them are started, and those leave that turn out
            not to be needed for the jobs' consumers not to wait; they come back when they are.
        cache_dir: folder, or ``s3://``, ``gs://``, ``az://`` prefix, in which workers keep what is expensive to make,
            at ``autocache()`` and ``cache()``; what is there is used again by any later service. None: nothing is kept.
        cache_bytes: that this may take; None: half of what is free where the folder is, its present blocks included.
        cache_compression: of what is kept; pays if the store is slow.
        source_cache: folder of this machine in which what workers read from object stores and web servers is kept, for
            all jobs; only one service at a time may use it. None: it is read from there each time.
        source_cache_bytes: that this may take; None: half of what is free where the folder is.
        work_dir: folder in which the dispatcher keeps its journal; a service that is started there again goes on with
            the jobs of the one before. None: nothing is kept.
        scaling_policy: that finds out how many workers a job needs: millrace's own, or for comparison Cachew's rules,
            as published or as in its released code, or those of Kubernetes' HPA.
        prices: TOML file that says what workers and training hosts cost, for jobs with ``workers="cheapest"``; or
            ``"aws"``, ``"azure"`` or ``"gcp"``. None: usual ones.
        quotas: by tenant, how many workers the jobs of a ``distribute(tenant=...)`` may have together; of others: all.
        job_quotas: by tenant, how many jobs it may have at once; of others: any number.
        byte_quotas: by tenant, how many bytes of the cache what its jobs keep may take; of others: all.
        host: address to listen on; others than loopback demand ``token`` and ``tls``.
        port: to listen on; 0 takes a free one.
        token: that clients must present; None: on loopback this user's own, which they find by themselves.
        tls: folder of certificates (``millrace tls init``); None: none, and what is said can be heard.
        insecure: that what is said on other networks than loopback can be heard is no mistake.
        threads: for user functions in each worker; None: the cores, shared among the workers.
        memory: bytes that each worker's process may have for itself: a function that asks for more gets a MemoryError.
            None: what there is.
        buffer_bytes: that each worker may keep computed ahead, for all its jobs; None: 256 MiB.
        user: name or number of another user, as whom workers run functions, which then cannot read what is this one's;
            that takes root. None: this one.

    Attributes:
        address: to give to ``distribute``, e.g. ``grpc://127.0.0.1:40123``.

    Raises:
        PipelineError: the numbers make no sense.
        AddressInUseError: the port is taken.
        ServiceError: the dispatcher did not start; the message has its last words.
    """

    def __init__(
        self,
        min_workers: int = 1,
        max_workers: int | None = None,
        *,
        cache_dir: str | None = None,
        cache_bytes: int | None = None,
        cache_compression: Literal["lz4", "zstd"] | None = None,
        source_cache: str | None = None,
        source_cache_bytes: int | None = None,
        work_dir: str | None = None,
        scaling_policy: Literal["millrace", "cachew", "cachew-released", "hpa"] = "millrace",
        prices: str | None = None,
        quotas: Mapping[str, int] | None = None,
        job_quotas: Mapping[str, int] | None = None,
        byte_quotas: Mapping[str, int] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        tls: str | None = None,
        insecure: bool = False,
        threads: int | None = None,
        memory: int | None = None,
        buffer_bytes: int | None = None,
        user: str | int | None = None,
    ) -> None:
        cores = usable_cores()
        least, most = worker_range(min_workers, max_workers, cores)
        threads = max(1, cores // most) if threads is None else threads
        super().__init__(
            [
                *("--host", host, "--port", str(port)),
                *("--local-workers", f"{least}-{most}", "--threads", str(threads)),
                *(() if memory is None else ("--worker-memory", str(memory))),
                *(() if buffer_bytes is None else ("--buffer-bytes", str(buffer_bytes))),
                *(() if user is None else ("--worker-user", str(user))),
                *storage_options(cache_dir, cache_bytes, cache_compression, work_dir),
                *source_cache_options(source_cache, source_cache_bytes),
                *scaling_options(scaling_policy, prices),
                *quota_options(quotas, job_quotas, byte_quotas),
                *(("--insecure",) if insecure else ()),
            ],
            token,
            tls,
        )
