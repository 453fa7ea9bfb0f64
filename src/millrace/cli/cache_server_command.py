"""Command that runs a cache server: ``millrace cache-server``."""

from __future__ import annotations

import argparse
import os

from millrace.cli.descriptor_limit import FOR_MANY_PEERS, raise_descriptors
from millrace.cli.options import LOOPBACK, TOKEN, add_listening, add_process, add_zone, size, tls_of, token_of
from millrace.cli.shutdown import end_with, exit_status


def add_cache_server(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace cache-server``."""
    command = commands.add_parser(
        "cache-server", help="keeps what workers read from object stores, on this machine's disk, for all of them"
    )
    command.add_argument("--dispatcher", required=True, metavar="ADDRESS", help="e.g. grpc://10.0.0.7:5050")
    command.add_argument("--dir", required=True, metavar="PATH", help="folder of this machine, for this server alone")
    command.add_argument(
        "--bytes",
        type=size,
        metavar="N",
        help="that it may take, e.g. 500GB (default: half of what is free where the folder is)",
    )
    add_listening(command, port=0)
    command.add_argument("--advertise", metavar="HOST", help="host name under which workers reach this server")
    command.add_argument("--name", help="unique in the service (default: drawn)")
    add_zone(command, "that this server is in: workers there ask the servers of their zone, and no others")
    add_process(command)
    command.set_defaults(run=_cache_server)


def _cache_server(options: argparse.Namespace) -> int:
    from millrace.blocks.disk_capacity import default_bytes
    from millrace.cache_server import item_store
    from millrace.cache_server.process import CacheServerProcess

    raise_descriptors(FOR_MANY_PEERS)  # each connection of a worker takes two where there is TLS
    folder = os.path.abspath(options.dir)
    server = CacheServerProcess(
        options.dispatcher,
        folder,
        options.bytes or default_bytes(folder, item_store.is_own),
        token=token_of(options),
        host=options.host or LOOPBACK,
        port=options.port,
        advertise=options.advertise,
        name=options.name,
        tls=tls_of(options),
        insecure=options.insecure,
        zone=options.zone,
    )
    os.environ.pop(TOKEN, None)
    end_with(server.stop, parent_pipe=options.parent_pipe)

    def listening() -> None:
        if not options.parent_pipe:
            print(f"millrace cache-server {server.id} serves {folder}; end it with Ctrl-C", flush=True)

    return exit_status(lambda: server.run(listening))
