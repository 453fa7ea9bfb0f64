"""Clusters on which a dispatcher runs workers: the options, and the cluster that they ask for."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from millrace.cli.options import LOOPBACK, amount, count_or_range, named_amount, positive, size
from millrace.errors import PipelineError

if TYPE_CHECKING:
    from millrace.dispatcher.cluster_contract import Cluster

_LEAST_MEMORY = 256 << 20


def add_clusters(command: argparse.ArgumentParser) -> None:
    """Add the options about workers that the dispatcher starts."""
    group = command.add_argument_group("workers that it starts")
    group.add_argument(
        "--cluster",
        choices=tuple(_CLUSTERS),
        default="local",
        help="where: processes of this machine, actors on Ray, or pods of a Kubernetes Deployment (default local)",
    )
    group.add_argument(
        "--workers",
        "--local-workers",
        type=count_or_range,
        default=(0, 0),
        metavar="N",
        help="how many (default 0); N-M: as many as jobs need to be fed, and no more",
    )
    group.add_argument(
        "--first-workers",
        type=positive,
        metavar="N",
        help="that a job which is not known begins with (default: 1; on this machine all that there may be)",
    )
    group.add_argument(
        "--threads", type=positive, metavar="N", help="cores that user functions keep busy in each, but for pods"
    )
    group.add_argument(
        "--worker-memory",
        type=size,
        metavar="N",
        help="that each process on this machine may have for itself, or that Ray sets aside for each, e.g. 8GiB",
    )
    group.add_argument(
        "--worker-user",
        metavar="NAME|UID",
        help="run those on this machine as this user, who cannot read what is the service's; takes root",
    )
    group = command.add_argument_group("with --cluster ray", "see docs/ray.md")
    group.add_argument(
        "--ray-address", default="auto", metavar="ADDRESS", help="default: the cluster that this machine is a node of"
    )
    group.add_argument(
        "--worker-cpus", type=amount, default=1.0, metavar="N", help="cores that Ray sets aside for each (default 1)"
    )
    group.add_argument(
        "--worker-resource",
        type=named_amount,
        action="append",
        default=[],
        metavar="NAME=AMOUNT",
        help="that Ray sets aside for each; may be given several times",
    )
    group = command.add_argument_group("with --cluster kubernetes", "see docs/kubernetes.md")
    group.add_argument("--deployment", metavar="NAME", default="millrace-worker", help="default: millrace-worker")
    group.add_argument("--namespace", metavar="NAME", default="", help="of the Deployment (default: this pod's)")
    group.add_argument("--api-server", metavar="URL", default="", help="default: of the cluster that this pod is in")


def cluster_of(options: argparse.Namespace, token: str | None, dispatcher: Callable[[], str]) -> Cluster | None:
    """Make the cluster that was asked for; None if no workers are to be started.

    Args:
        options: of the command line.
        token: of the service.
        dispatcher: returns the address that it listens at, once it does.
    """
    _, most = options.workers
    if options.worker_user is not None and options.cluster != "local":
        raise PipelineError("--worker-user is about workers on this machine: those of a cluster run as it says")
    return _CLUSTERS[options.cluster](options, token, dispatcher) if most else None


def caches_on_nodes(options: argparse.Namespace) -> bool:
    """Whether the cluster that was asked for runs a source cache on its nodes, rather than the dispatcher beside it."""
    return bool(options.cluster == "ray" and options.workers[1])


def of_cache_server(options: argparse.Namespace) -> list[str]:
    """Options of the dispatcher's command line that a cache server gets, wherever it runs."""
    return [
        *(() if options.source_cache_bytes is None else ("--bytes", str(options.source_cache_bytes))),
        *(f"--{name}" for name in ("mtls", "insecure") if getattr(options, name)),
    ]


def _of_workers(options: argparse.Namespace) -> list[str]:
    """Options of the dispatcher's command line that its workers get as they are."""
    return [
        *("--buffer-bytes", str(options.buffer_bytes)),
        *(() if options.threads is None else ("--threads", str(options.threads))),
        *(() if options.shared_memory else ("--no-shared-memory",)),
        *(f"--{name}" for name in ("mtls", "insecure") if getattr(options, name)),
    ]


def _local(options: argparse.Namespace, token: str | None, dispatcher: Callable[[], str]) -> Cluster:
    from millrace.clusters.subprocesses import LocalCluster

    if options.worker_memory is not None and options.worker_memory < _LEAST_MEMORY:
        raise PipelineError("--worker-memory is at least 256MiB: a worker takes some 100 before it runs anything")
    limits = [] if options.worker_memory is None else ["--memory", str(options.worker_memory)]
    if options.worker_user is not None:
        from millrace.cli.unprivileged_worker import find_user

        find_user(options.worker_user)
        limits += ["--user", options.worker_user]
    cluster = LocalCluster(
        dispatcher,
        ["--host", options.host or LOOPBACK, "--zone", options.zone, *_of_workers(options), *limits],
        token,
        options.tls,
    )
    least, most = options.workers
    cluster.prepare(max(least, min(most, options.first_workers or most)))
    return cluster


def _ray(options: argparse.Namespace, token: str | None, dispatcher: Callable[[], str]) -> Cluster:
    with _installed("ray", "--cluster ray and RayService need Ray: pip install 'millrace[ray]'"):
        from millrace.clusters.ray import RayCluster

    folder = options.source_cache
    source_cache = None if folder is None else (os.path.abspath(folder), of_cache_server(options))
    sys.stdout = sys.stderr  # Ray prints what workers print; standard output is for a program to read
    cluster = RayCluster(
        dispatcher,
        _of_workers(options),
        token,
        options.tls,
        ray_address=options.ray_address,
        num_cpus=options.worker_cpus,
        memory=options.worker_memory,
        resources=dict(options.worker_resource),
        source_cache=source_cache,
    )
    options.host = options.host or cluster.host  # which all nodes reach
    return cluster


def _kubernetes(options: argparse.Namespace, token: str | None, dispatcher: Callable[[], str]) -> Cluster:
    with _installed("aiohttp", "--cluster kubernetes needs aiohttp: pip install 'millrace[kubernetes]'"):
        from millrace.clusters.api_server import ApiServer
        from millrace.clusters.kubernetes import KubernetesCluster

    return KubernetesCluster(options.deployment, ApiServer(options.api_server, options.namespace))


@contextlib.contextmanager
def _installed(library: str, needed: str) -> Iterator[None]:
    """Raise an import of ``library`` that fails as a PipelineError that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise PipelineError(needed) from None


_CLUSTERS: dict[str, Callable[[argparse.Namespace, str | None, Callable[[], str]], Cluster]] = {
    "local": _local,
    "ray": _ray,
    "kubernetes": _kubernetes,
}
