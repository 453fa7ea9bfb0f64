"""Commands that run a process of a service: ``millrace dispatcher`` and ``millrace worker``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import secrets
import signal
import sys
from typing import TYPE_CHECKING

from millrace.cli.clusters import add_clusters, caches_on_nodes, cluster_of, of_cache_server
from millrace.cli.descriptor_limit import FOR_MANY_PEERS, FOR_WORKER, raise_descriptors
from millrace.cli.options import (
    LOOPBACK,
    TOKEN,
    add_cache,
    add_listening,
    add_memory,
    add_process,
    add_scaling,
    add_source_cache,
    add_zone,
    amount,
    positive,
    quota,
    quota_bytes,
    seconds,
    size,
    tls_of,
    token_of,
    trust,
)
from millrace.cli.shutdown import end_with, exit_status, watch_parent
from millrace.errors import PipelineError, ServiceError
from millrace.host_limits import usable_cores

if TYPE_CHECKING:
    from millrace.clusters.respawned_processes import RespawnedProcesses

_FOR_TASKS = ("millrace.engine.run.program", "millrace.elements.codec", "millrace.functions.bundles")
"""Modules that a worker's first task needs: loaded while it waits for the dispatcher's address."""
_OWN_THREADS = 24
"""Of a worker, beside those of user functions."""


def add_dispatcher(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace dispatcher``."""
    command = commands.add_parser("dispatcher", help="the process that knows jobs and workers; one per service")
    add_listening(command, port=5050, host=f"{LOOPBACK}, with --cluster ray this node's")
    command.add_argument("--owner", default="", help=argparse.SUPPRESS)  # the process that the service ends with
    add_clusters(command)
    add_memory(command)
    command.add_argument(
        "--heartbeat", type=seconds, default=5.0, metavar="S", help="seconds between reports (default 5)"
    )
    command.add_argument(
        "--job-gc-timeout",
        type=seconds,
        default=300.0,
        metavar="S",
        help="seconds that a lost consumer's place is kept, or a job for consumers that have not come (default 300)",
    )
    command.add_argument(
        "--lockstep-wait",
        type=seconds,
        default=30.0,
        metavar="S",
        help="seconds that one of several jobs which share in lockstep may keep the others waiting (default 30)",
    )
    command.add_argument(
        "--work-dir",
        metavar="DIR",
        help="journal what is going on there, and go on with it when started again (default: in memory only)",
    )
    add_cache(command)
    add_source_cache(command)
    add_zone(command, "of the workers and the cache server that it starts on this machine")
    command.add_argument(
        "--tokens",
        metavar="FILE",
        default="",
        help="TOML: who may do what, by tokens of `millrace token new`; read again when it changes (docs/security.md)",
    )
    command.add_argument(
        "--audit",
        metavar="FILE",
        default="",
        help="append who begins, joins and removes what, and who is refused, a line of JSON each",
    )
    command.add_argument(
        "--quota",
        dest="quotas",
        type=quota,
        action="append",
        default=[],
        metavar="TENANT=N",
        help="workers that the jobs of a tenant may have together (default: all); may be given for several",
    )
    command.add_argument(
        "--quota-jobs",
        type=quota,
        action="append",
        default=[],
        metavar="TENANT=N",
        help="jobs that a tenant may have at once (default: any number); may be given for several",
    )
    command.add_argument(
        "--quota-bytes",
        type=quota_bytes,
        action="append",
        default=[],
        metavar="TENANT=BYTES",
        help="what the jobs of a tenant keep in the cache may take, e.g. vision=200GiB (default: all of it)",
    )
    add_scaling(command)
    command.add_argument(
        "--trust",
        type=trust,
        action="append",
        default=[],
        metavar="READER=WRITER,...",
        help="tenants of whose jobs another one's read what the cache has (default: none); may be given for several",
    )
    command.add_argument(
        "--recover", action="store_true", help="of a damaged journal keep what is good, and say what was lost"
    )
    add_process(command)
    command.set_defaults(run=_dispatcher)


def add_worker(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace worker``."""
    command = commands.add_parser("worker", help="runs pipelines; start as many as you like, at any time")
    command.add_argument(
        "--dispatcher",
        required=True,
        metavar="ADDRESS",
        help="e.g. grpc://10.0.0.7:5050; - reads it from standard input",
    )
    add_listening(command, port=0)
    command.add_argument("--advertise", metavar="HOST", help="host name under which consumers reach this worker")
    command.add_argument(
        "--threads", type=positive, metavar="N", help="cores that user functions keep busy (default: all)"
    )
    add_memory(command)
    command.add_argument(
        "--memory",
        type=size,
        metavar="N",
        help="that it may have for itself, e.g. 8GiB; a function that asks for more gets a MemoryError (default: all)",
    )
    command.add_argument(
        "--user",
        metavar="NAME|UID",
        help="run functions as this user, who cannot read what is the service's; takes root",
    )
    command.add_argument("--broker", type=int, help=argparse.SUPPRESS)  # the socket by which such a one gets blocks
    command.add_argument("--name", help="unique in the service (default: drawn)")
    command.add_argument(
        "--job", default="", metavar="NAME", help="serve this job alone, which is read on this machine (default: any)"
    )
    add_zone(command, "that it is in: it asks the cache servers there, and all where it has none")
    command.add_argument(
        "--drain-timeout",
        type=amount,
        default=30.0,
        metavar="S",
        help="seconds that it may take to leave: for tasks to be done, and read (default 30)",
    )
    add_process(command)
    command.set_defaults(run=_worker)


def _dispatcher(options: argparse.Namespace) -> int:
    import asyncio

    if options.recover and options.work_dir is None:
        raise PipelineError("--recover needs --work-dir: without one nothing was journalled")
    if options.cache_dir is None and options.cache_bytes is not None:
        raise PipelineError("--cache-bytes says how much a cache may take: say where it is, too, with --cache-dir")
    if options.source_cache is None and options.source_cache_bytes is not None:
        raise PipelineError("--source-cache-bytes says how much of a cache: say where it is, too, with --source-cache")
    if options.cache_dir is None and options.quota_bytes:
        raise PipelineError(
            "--quota-bytes says how much of a cache a tenant may have: say where it is, with --cache-dir"
        )
    if options.cache_dir is not None and options.cache_bytes is None:
        from millrace.blocks.disk_capacity import default_bytes
        from millrace.blocks.stores import file_store

        options.cache_bytes = default_bytes(options.cache_dir, file_store.is_own)
    if options.source_cache is not None and not caches_on_nodes(options):
        from millrace.cache_server.item_store import check_folder

        check_folder(options.source_cache)  # else what is started for it would say so again and again
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else whoever connects makes it write lines
    raise_descriptors(FOR_MANY_PEERS)  # each peer takes one
    asyncio.run(_dispatch(options))
    return 0


async def _dispatch(options: argparse.Namespace) -> None:
    import asyncio

    token, tls = token_of(options), tls_of(options)
    # Beside a file of tokens, or as another user, what is started here has one that lets it do nothing else.
    limited = options.tokens or options.worker_user
    starts = options.workers[1] or options.source_cache
    worker_token = secrets.token_hex(32) if limited and starts else None
    # First: local workers load meanwhile.
    cluster = cluster_of(options, worker_token or token, lambda: dispatcher.address)
    _, most = options.workers

    from millrace.dispatcher.server import Dispatcher
    from millrace.display.cost import read_prices
    from millrace.sources.storage import absolute
    from millrace.wire.address import format_address

    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def stop(reason: str) -> None:
        if over.is_set():
            os._exit(1)  # the second time; what it started ends with its pipes
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    if options.parent_pipe:
        watch_parent(lambda reason: loop.call_soon_threadsafe(over.set))
    dispatcher = Dispatcher(
        format_address(options.host or LOOPBACK, options.port),
        token,
        tokens=options.tokens,
        audit=options.audit,
        worker_token=worker_token,
        cluster=cluster,
        workers=options.workers,
        # On this machine they cost next to nothing until it is known how many are needed.
        first_workers=options.first_workers or (most if options.cluster == "local" else None),
        heartbeat_s=options.heartbeat,
        job_gc_timeout=options.job_gc_timeout,
        lockstep_wait=options.lockstep_wait,
        work_dir=options.work_dir,
        cache_dir=absolute(options.cache_dir) if options.cache_dir else "",
        cache_bytes=options.cache_bytes or 0,
        cache_compression=options.cache_compression,
        recover=options.recover,
        quotas=dict(options.quotas),
        job_quotas=dict(options.quota_jobs),
        byte_quotas=dict(options.quota_bytes),
        scaling_policy=options.scaling_policy,
        prices=read_prices(options.prices) if options.prices else None,
        trust=_merged(options.trust),
        owner="" if options.port else options.owner,
        tls=tls,
        insecure=options.insecure,
    )
    stopped = asyncio.create_task(over.wait())
    source_cache: RespawnedProcesses | None = None
    try:
        starting = asyncio.create_task(dispatcher.start())  # which may wait for room on a disk
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return
        address = f"grpc://{starting.result()}"
        if options.source_cache is not None and not caches_on_nodes(options):
            source_cache = _cache_server(options, address, worker_token or token)
        if options.parent_pipe:
            said = json.dumps({"address": address, "pid": os.getpid()})
        else:
            said = f"millrace dispatcher listens at {address}; end it with Ctrl-C"
        print(said, file=sys.__stdout__, flush=True)
        broken = asyncio.create_task(dispatcher.broken())
        await asyncio.wait([broken, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await dispatcher.stop()
        if source_cache is not None:  # behind the workers, which would complain that it has gone
            await asyncio.to_thread(source_cache.close)
    if broken.done():
        raise ServiceError(dispatcher.failure)


def _cache_server(options: argparse.Namespace, address: str, token: str | None) -> RespawnedProcesses:
    """Start a cache server on this machine."""
    from millrace.clusters.respawned_processes import RespawnedProcesses

    command = ["cache-server", "--dispatcher", address, "--dir", options.source_cache, *of_cache_server(options)]
    where = ["--host", options.host or LOOPBACK, "--zone", options.zone]
    return RespawnedProcesses("the cache server", command + where, 1, token, options.tls)


def _merged(trust: list[tuple[str, list[str]]]) -> dict[str, list[str]]:
    """Merge the writers of each reader, whether they were given at once or one by one."""
    return {each: [name for reader, names in trust if reader == each for name in names] for each, _ in trust}


def _worker(options: argparse.Namespace) -> int:
    if options.user is not None and options.broker is None:
        from millrace.cli.unprivileged_worker import run_as

        return run_as(options)
    # Functions may fork (multiprocessing.Pool does), and no child of a worker needs gRPC. With its fork support each
    # fork waits a second for gRPC's threads, and a child now and then for ever for a lock that one of them held.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

    from millrace.worker.worker_process import WorkerProcess

    broker = None
    if options.broker is not None:
        from millrace.wire.broker.brokered_store import BrokeredStore
        from millrace.worker.privileges import give_up_privileges

        broker = BrokeredStore(options.broker)
        give_up_privileges(broker.owner)
    if options.memory is not None:  # Arrow's own pool takes a gibibyte of addresses at once, used or not
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    dispatcher: str = options.dispatcher
    if dispatcher == "-":
        for module in _FOR_TASKS:
            importlib.import_module(module)
        dispatcher = sys.stdin.readline().strip()
        if not dispatcher:
            return 0  # whoever would have said it has ended
    raise_descriptors(FOR_WORKER)  # each piece of shared memory takes one
    if options.memory is not None:
        from millrace.engine.user_code.memory_limit import limit_memory

        limit_memory(options.memory, (options.threads or usable_cores()) + _OWN_THREADS)
    worker = WorkerProcess(
        dispatcher,
        token=token_of(options),
        host=options.host or LOOPBACK,
        port=options.port,
        advertise=options.advertise,
        threads=options.threads,
        buffer_bytes=options.buffer_bytes,
        shared_memory=options.shared_memory,
        name=options.name,
        drain_timeout=options.drain_timeout,
        job=options.job,
        tls=tls_of(options),
        insecure=options.insecure,
        broker=broker,
        zone=options.zone,
    )
    os.environ.pop(TOKEN, None)  # functions print their environment, and start processes with it
    end_with(worker.stop, parent_pipe=options.parent_pipe)

    def listening() -> None:
        if not options.parent_pipe:
            print(f"millrace worker {worker.id} joins the dispatcher at {dispatcher}; end it with Ctrl-C", flush=True)

    return exit_status(lambda: worker.run(listening))
