"""Commands that ask a running service."""

from __future__ import annotations

import argparse
import os

from millrace.cli.options import DEFAULT_SERVICE, SERVICE, TOKEN, add_certificates, add_json, seconds, token_of
from millrace.errors import MillraceError


def add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace status``."""
    command = commands.add_parser("status", help="what a service is doing, and who waits for what")
    add_service(command)
    form = command.add_mutually_exclusive_group()
    add_json(form)
    form.add_argument("--metrics", action="store_true", help="as Prometheus reads it")
    command.add_argument(
        "--watch", action="store_true", help="show it again every second, until Ctrl-C; with --json a line each time"
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="say only whether the dispatcher decides and writes: exit status 0, or 1 if it did not in time",
    )
    command.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="S", help="seconds to wait for an answer (default 10)"
    )
    command.set_defaults(run=_status)


def add_cache_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace cache``."""
    cache = commands.add_parser("cache", help="what a service keeps, and what it is worth")
    kinds = cache.add_subparsers(dest="kind", required=True, metavar="WHAT")
    for name, text in (
        ("ls", "the cache points of which something is kept"),
        ("stats", "how full the cache is, and what each job does about it"),
        ("rm", "delete what is kept of some points"),
    ):
        command = kinds.add_parser(name, help=text)
        add_service(command)
        if name == "rm":
            command.add_argument("points", nargs="*", metavar="POINT", help="as ls shows them, or how they begin")
            command.add_argument("--all", action="store_true", help="everything")
        else:
            add_json(command)
        command.set_defaults(run=_cache)


def add_service(command: argparse.ArgumentParser) -> None:
    """Add the options about whom to ask."""
    command.add_argument(
        "--service",
        default=os.environ.get(SERVICE) or DEFAULT_SERVICE,
        metavar="ADDRESS",
        help=f"the dispatcher's, e.g. grpc://10.0.0.7:5050 (default: ${SERVICE}, else {DEFAULT_SERVICE})",
    )
    command.add_argument("--token", help=f"of the service (default: ${TOKEN}, or on loopback your own)")
    add_certificates(command)


def _status(options: argparse.Namespace) -> int:
    from millrace.cli.shutdown import until_interrupted
    from millrace.client.status_query import check, fetch_status, watch_status
    from millrace.display import status, status_metrics

    if options.check:
        waits = check(options.service, token_of(options), options.timeout, options.tls)
        print(f"the dispatcher answers, and waits: {waits}" if waits else "the dispatcher answers")
        return 0
    if options.watch and options.metrics:
        raise MillraceError(
            "--watch shows tables or lines of JSON, and --metrics what Prometheus asks for once: say one"
        )
    if options.watch:
        answers = watch_status(options.service, token_of(options), options.timeout, options.tls)
        status.watch(until_interrupted(answers), as_lines=options.json)
        return 0
    found = fetch_status(options.service, token_of(options), options.timeout, options.tls)
    if options.metrics:
        print(status_metrics.metrics(found), end="")
    elif options.json:
        print(status.as_json(found))
    else:
        status.show(found)
    return 0


def _cache(options: argparse.Namespace) -> int:
    from millrace.client.status_query import fetch_status, remove_blocks
    from millrace.display import cache, status
    from millrace.policies import figures

    found = fetch_status(options.service, token_of(options), tls=options.tls)
    if options.kind == "rm":
        points = cache.chosen(found, options.points, everything=options.all)
        size = remove_blocks(options.service, points, token_of(options), tls=options.tls)
        print(f"{figures.data_size(size)} of {len(points)} points are deleted as soon as nobody reads them")
    elif options.json:
        print(status.as_json(cache.of(found)))
    elif options.kind == "ls":
        cache.show_points(found)
    else:
        cache.show_stats(found)
    return 0
