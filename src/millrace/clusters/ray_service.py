"""Ray service: its workers are actors of a Ray cluster."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any, Literal

from millrace.clusters.service import (
    Service,
    quota_options,
    scaling_options,
    source_cache_options,
    storage_options,
    worker_range,
)
from millrace.errors import PipelineError, ServiceError


class RayService(Service):
    """Service on a Ray cluster, as long as this object lives.

    The dispatcher is a process beside this one, not an actor: it is needed for as long as this process reads, its
    journal is on this machine's disk, and Ray could only start a dead one anew where that is not. The workers are
    actors, which it asks Ray for; see :class:`millrace.clusters.ray.RayCluster`. All of them end with :meth:`close`,
    with a ``with`` block, or with this process, however it ends.

    Args:
        min_workers: at least so many workers.
        max_workers: at most so many; None: as many as the nodes have room for as it starts, if this process is
            connected to Ray. As many are asked for as jobs need for their consumers not to wait; those that have no
            room wait for it, and Ray's autoscaler adds nodes for them.
        num_cpus: cores that Ray sets aside for each worker; fractions are allowed.
        memory: bytes that Ray sets aside for each worker; None: it does not count them.
        resources: others that Ray sets aside for each worker, by name.
        ray_address: of the Ray cluster; None: the one that this process is connected to, or else that ``RAY_ADDRESS``
            in the environment names, or else that this machine is a node of.
        cache_dir: folder, or ``s3://``, ``gs://``, ``az://`` prefix, that all nodes reach, in which workers keep what
            is expensive to make; see :class:`millrace.LocalService`, as for the others below.
        cache_bytes: that this may take; None: half of what is free where the folder is, its present blocks included.
        cache_compression: of what is kept.
        source_cache: folder on the nodes in which what workers read from object stores and web servers is kept, for all
            jobs: each node that has workers runs a cache server, in a folder of its own there. None: it is read from
            there each time.
        source_cache_bytes: that this may take on each node; None: half of what is free where the folder is.
        work_dir: folder on this machine in which the dispatcher keeps its journal. None: nothing is kept.
        scaling_policy: see :class:`millrace.LocalService`.
        prices: likewise.
        quotas: by tenant, how many workers the jobs of a ``distribute(tenant=...)`` may have together; of others: all.
        job_quotas: by tenant, how many jobs it may have at once; of others: any number.
        byte_quotas: by tenant, how many bytes of the cache what its jobs keep may take; of others: all.
        host: address to listen on; None: that of this machine in the Ray cluster.
        port: to listen on; 0 takes a free one.
        token: that clients must present; None: that of the environment (MILLRACE_TOKEN), or else one is drawn.
        tls: folder of certificates, on every node (docs/security.md); None: that of the environment (MILLRACE_TLS).
        insecure: that what is said on other networks than loopback can be heard is no mistake.
        threads: for user functions in each worker; None: ``num_cpus``, and at least one.

    Attributes:
        address: to give to ``distribute``, e.g. ``grpc://10.0.0.7:40123``.
        token: to give to ``distribute`` in other processes; in this one it is known.

    Raises:
        PipelineError: the numbers make no sense.
        AddressInUseError: the port is taken.
        ServiceError: the dispatcher did not start, e.g. because there is no such cluster; the message has its last
            words.
    """

    token: str

    def __init__(
        self,
        min_workers: int = 1,
        max_workers: int | None = None,
        *,
        num_cpus: float = 1.0,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
        ray_address: str | None = None,
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
        host: str | None = None,
        port: int = 0,
        token: str | None = None,
        tls: str | None = None,
        insecure: bool = False,
        threads: int | None = None,
    ) -> None:
        ray = _connected()
        resources = dict(resources or {})
        room = _room(ray, {"CPU": num_cpus, "memory": memory or 0, **resources}) if max_workers is None else 0
        least, most = worker_range(min_workers, max_workers, room)
        token = token or os.environ.get("MILLRACE_TOKEN") or secrets.token_hex(32)
        tls = tls or os.environ.get("MILLRACE_TLS")
        where = ray_address or (ray.get_runtime_context().gcs_address if ray else "auto")
        super().__init__(
            [
                *("--cluster", "ray", "--ray-address", where, "--worker-cpus", str(num_cpus)),
                *(word for name in resources for word in ("--worker-resource", f"{name}={resources[name]}")),
                *(() if memory is None else ("--worker-memory", str(memory))),
                *("--workers", f"{least}-{most}"),
                *(() if threads is None else ("--threads", str(threads))),
                *(() if host is None else ("--host", host)),
                *("--port", str(port)),
                *storage_options(cache_dir, cache_bytes, cache_compression, work_dir),
                *source_cache_options(source_cache, source_cache_bytes),
                *scaling_options(scaling_policy, prices),
                *quota_options(quotas, job_quotas, byte_quotas),
                *(("--insecure",) if insecure else ()),
            ],
            token,
            tls,
        )


def _connected() -> Any:
    """Return the module ``ray``, if this process is connected to a Ray cluster; else None."""
    ray = sys.modules.get("ray")  # who is connected has imported it
    if ray is None or not ray.is_initialized():
        return None
    if ray.util.client.ray.is_connected():
        raise ServiceError(
            "this process is connected by Ray's client (ray://), and workers could not reach a dispatcher here: start"
            " the script on a node of the cluster, e.g. by `ray job submit`"
        )
    return ray


def _room(ray: Any, needs: Mapping[str, float]) -> int:
    """Count the workers that the nodes of now could hold if they held nothing else; at least 1."""
    if ray is None:
        raise PipelineError("max_workers has to be said, as this process is connected to no Ray cluster: ray.init()")
    there = ray.cluster_resources()
    return max(1, min((int(there.get(name, 0) / need) for name, need in needs.items() if need), default=1))
