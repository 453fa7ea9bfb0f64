"""The command line. Signal handlers live here and nowhere else; each command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import resource
import signal
import string
import sys
import threading
from collections.abc import Callable, Sequence

from millrace.errors import MillraceError, PipelineError
from millrace.version import __version__

TOKEN = "MILLRACE_TOKEN"  # noqa: S105 (the name of a variable)
_FOR_TASKS = ("millrace.engine.program", "millrace.elements.codec", "millrace.functions.shipping")
"""What a worker's first task needs: loaded while it waits for the dispatcher's address."""
LAST_CHANCE_S = 5.0
"""After its orderly end a process may still be held by a user's code; it does not wait longer than that."""

_DESCRIPTORS = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 fine, 1 an error (one line on stderr), 2 wrong usage."""
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper() if "log_level" in options else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except MillraceError as error:
        print(f"millrace {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`); Python must not try to flush it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="millrace", description="Input data processing for ML training, as a service.")
    top.add_argument("--version", action="version", version=f"millrace {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_dispatcher(commands)
    _add_worker(commands)
    _add_status(commands)
    _add_cache_commands(commands)
    _add_simulate(commands)
    _add_bench(commands)
    demo = commands.add_parser("demo", help="real pictures, a service with two workers, a model that learns")
    demo.set_defaults(run=_demo)
    return top


def _add_dispatcher(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("dispatcher", help="the process that knows jobs and workers; one per service")
    _add_listening(command, port=5050)
    command.add_argument("--local-workers", type=_count, default=0, metavar="N", help="start N workers on this machine")
    command.add_argument(
        "--threads", type=_positive, metavar="N", help="cores that user functions keep busy in each of them"
    )
    _add_memory(command)
    command.add_argument(
        "--heartbeat", type=float, default=5.0, metavar="S", help="seconds between reports (default 5)"
    )
    command.add_argument(
        "--work-dir",
        metavar="DIR",
        help="journal what is going on there, and go on with it when started again (default: in memory only)",
    )
    _add_cache(command)
    command.add_argument(
        "--recover", action="store_true", help="of a damaged journal keep what is good, and say what was lost"
    )
    _add_process(command)
    command.set_defaults(run=_dispatcher)


def _add_worker(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("worker", help="runs pipelines; start as many as you like, at any time")
    command.add_argument(
        "--dispatcher",
        required=True,
        metavar="ADDRESS",
        help="e.g. grpc://10.0.0.7:5050; - reads it from standard input",
    )
    _add_listening(command, port=0)
    command.add_argument("--advertise", metavar="HOST", help="host name under which consumers reach this worker")
    command.add_argument(
        "--threads", type=_positive, metavar="N", help="cores that user functions keep busy (default: all)"
    )
    _add_memory(command)
    command.add_argument("--name", help="unique in the service (default: drawn)")
    command.add_argument(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that it may take to leave: for tasks to be done, and read (default 30)",
    )
    _add_process(command)
    command.set_defaults(run=_worker)


def _add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("status", help="what a service is doing, and who waits for what")
    command.add_argument(
        "--service", required=True, metavar="ADDRESS", help="the dispatcher's, e.g. grpc://10.0.0.7:5050"
    )
    command.add_argument("--token", help=f"of the service (default: ${TOKEN})")
    command.add_argument("--json", action="store_true", help="for programs")
    command.set_defaults(run=_status)


def _add_memory(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--buffer-bytes",
        type=_positive,
        default=256 << 20,
        metavar="N",
        help="of a worker, for elements not yet read (default 256 MiB)",
    )
    command.add_argument(
        "--no-shared-memory",
        dest="shared_memory",
        action="store_false",
        help="send batches over TCP even to consumers on a worker's own host",
    )


def _add_cache_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    cache = commands.add_parser("cache", help="what a service keeps, and what it is worth")
    kinds = cache.add_subparsers(dest="kind", required=True, metavar="WHAT")
    for name, text in (
        ("ls", "the cache points of which something is kept"),
        ("stats", "how full the cache is, and what each job does about it"),
        ("rm", "delete what is kept of some points"),
    ):
        command = kinds.add_parser(name, help=text)
        command.add_argument("--service", required=True, metavar="ADDRESS", help="the dispatcher's")
        command.add_argument("--token", help=f"of the service (default: ${TOKEN})")
        if name == "rm":
            command.add_argument("points", nargs="*", metavar="POINT", help="as ls shows them, or how they begin")
            command.add_argument("--all", action="store_true", help="everything")
        else:
            command.add_argument("--json", action="store_true", help="for programs")
        command.set_defaults(run=_cache)


def _add_cache(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--cache-dir",
        metavar="PATH",
        help="folder (or s3://, gs://, az:// prefix) that all workers reach, where they keep what is expensive to make",
    )
    command.add_argument(
        "--cache-bytes", type=_size, metavar="N", help="that this may take, e.g. 50GiB; needed with --cache-dir"
    )


def _add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    simulate = commands.add_parser("simulate", help="plays in virtual time what could happen to a service")
    kinds = simulate.add_subparsers(dest="kind", required=True, metavar="WHAT")
    command = kinds.add_parser(
        "faults", help="whatever dies, hangs or is cut off: nothing is lost, nothing comes twice"
    )
    command.add_argument("--seeds", type=_positive, default=1000, metavar="N", help="how many schedules (default 1000)")
    command.add_argument("--first", type=_count, default=0, metavar="N", help="seed of the first (default 0)")
    command.add_argument("--seed", type=_count, metavar="N", help="this one alone")
    command.add_argument("--trace", action="store_true", help="with --seed: print all that happens in it")
    command.add_argument("--plant", default="", metavar="NAME", help="a bug that must be found; - lists them")
    command.add_argument("--json", action="store_true", help="for programs")
    command.set_defaults(run=_simulate_faults)


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser("bench", help="measures what this machine or network can do")
    kinds = bench.add_subparsers(dest="kind", required=True, metavar="WHAT")
    command = kinds.add_parser("link", help="what a network link gives; start it with --listen at the other end first")
    command.add_argument("address", nargs="?", metavar="HOST:PORT", help="where the other one listens")
    command.add_argument("--listen", metavar="HOST:PORT", help="be the end that sends, e.g. 0.0.0.0:5051")
    command.add_argument("--seconds", type=float, default=0.5, metavar="S", help="for each figure (default 0.5)")
    command.add_argument("--rounds", type=_positive, default=3, metavar="N", help="medians of so many (default 3)")
    command.add_argument("--token", help=f"the same at both ends (default: ${TOKEN}, which other users cannot see)")
    command.add_argument("--json", action="store_true", help="for programs")
    command.set_defaults(run=_bench_link)


def _add_listening(command: argparse.ArgumentParser, port: int) -> None:
    command.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1; others need a token)"
    )
    shown = str(port) if port else "any that is free"
    command.add_argument("--port", type=_port, default=port, metavar="N", help=f"port to listen on (default {shown})")
    command.add_argument("--token", help=f"that peers must present (default: ${TOKEN}, which other users cannot see)")


def _add_process(command: argparse.ArgumentParser) -> None:
    command.add_argument("--log-level", default="warning", choices=("debug", "info", "warning", "error"))
    command.add_argument("--parent-pipe", action="store_true", help="end when standard input is closed")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _count(text: str) -> int:
    value = _whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def _positive(text: str) -> int:
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _size(text: str) -> int:
    units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
    digits = text.rstrip(string.ascii_letters + " ")
    unit = text[len(digits) :].strip().lower().removesuffix("b")
    try:
        return int(float(digits) * units[unit])
    except (ValueError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500MB, 20GiB or 1000000") from None


def _port(text: str) -> int:
    value = _whole(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 65535")
    return value


# -- commands ----------------------------------------------------------------------------------------------------------


def _dispatcher(options: argparse.Namespace) -> int:
    import asyncio

    if options.recover and options.work_dir is None:
        raise PipelineError("--recover needs --work-dir: without one nothing was journalled")
    if (options.cache_dir is None) != (options.cache_bytes is None):
        raise PipelineError("--cache-dir and --cache-bytes go together: where blocks are kept, and how much of them")
    asyncio.run(_dispatch(options))
    return 0


async def _dispatch(options: argparse.Namespace) -> None:
    import asyncio

    from millrace.clusters.subprocesses import LocalCluster

    token = _token(options)
    cluster = LocalCluster(
        lambda: dispatcher.address,
        host=options.host,
        token=token,
        threads=options.threads,
        buffer_bytes=options.buffer_bytes,
        shared_memory=options.shared_memory,
    )
    cluster.prepare(options.local_workers)

    from millrace.dispatcher.service import Dispatcher
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
        _watch_parent(lambda reason: loop.call_soon_threadsafe(over.set))
    dispatcher = Dispatcher(
        format_address(options.host, options.port),
        token,
        cluster=cluster if options.local_workers else None,
        workers=options.local_workers,
        heartbeat_s=options.heartbeat,
        work_dir=options.work_dir,
        cache_dir=absolute(options.cache_dir) if options.cache_dir else "",
        cache_bytes=options.cache_bytes or 0,
        recover=options.recover,
    )
    address = f"grpc://{await dispatcher.start()}"
    try:
        if options.parent_pipe:
            print(json.dumps({"address": address, "pid": os.getpid()}), flush=True)
        else:
            print(f"millrace dispatcher listens at {address}; end it with Ctrl-C", flush=True)
        await over.wait()
    finally:
        await dispatcher.stop()


def _worker(options: argparse.Namespace) -> int:
    from millrace.worker.worker import Worker

    dispatcher: str = options.dispatcher
    if dispatcher == "-":
        for module in _FOR_TASKS:
            importlib.import_module(module)
        dispatcher = sys.stdin.readline().strip()
        if not dispatcher:
            return 0  # whoever would have said it has ended
    # Each piece of shared memory takes a file descriptor; often there are 1024.
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(few, min(most, _DESCRIPTORS)), most))
    worker = Worker(
        dispatcher,
        token=_token(options),
        host=options.host,
        port=options.port,
        advertise=options.advertise,
        threads=options.threads,
        buffer_bytes=options.buffer_bytes,
        shared_memory=options.shared_memory,
        name=options.name,
        drain_timeout=options.drain_timeout,
    )
    _end_with(worker.stop, parent_pipe=options.parent_pipe)
    try:
        worker.run()
    finally:
        _last_chance()
    return 0


def _status(options: argparse.Namespace) -> int:
    from millrace.client.status import fetch_status
    from millrace.observe import status

    found = fetch_status(options.service, _token(options))
    if options.json:
        print(status.as_json(found))
    else:
        status.show(found)
    return 0


def _cache(options: argparse.Namespace) -> int:
    from millrace.client.status import fetch_status, remove_blocks
    from millrace.observe import cache, status

    found = fetch_status(options.service, _token(options))
    if options.kind == "rm":
        points = cache.chosen(found, options.points, everything=options.all)
        size = remove_blocks(options.service, points, _token(options))
        print(f"{cache.size(size)} of {len(points)} points are deleted as soon as nobody reads them")
    elif options.json:
        print(status.as_json(cache.of(found)))
    elif options.kind == "ls":
        cache.show_points(found)
    else:
        cache.show_stats(found)
    return 0


def _simulate_faults(options: argparse.Namespace) -> int:
    from millrace.simulation import campaign
    from millrace.simulation.plants import PLANTS, planted
    from millrace.simulation.town import play

    if options.plant and options.plant not in PLANTS:
        for name, plant in PLANTS.items():
            print(f"{name:24} {plant.__doc__}")
        return 0 if options.plant == "-" else 2
    if options.trace:
        if options.seed is None:
            print("millrace simulate faults: --trace needs --seed", file=sys.stderr)
            return 2
        with planted(options.plant):
            violation = play(options.seed, print).violation
        print(violation or "Nothing was violated.")
        return 1 if violation else 0
    seeds = range(options.first, options.first + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    report, first = campaign.run(campaign.watched(seeds), options.plant)
    if options.json:
        print(campaign.as_json(report))
    else:
        campaign.show(report, first)
    return 1 if first is not None else 0


def _bench_link(options: argparse.Namespace) -> int:
    import msgspec

    from millrace.observe import link
    from millrace.wire.address import parse_address
    from millrace.wire.link import measure_link, serve_link

    if (options.address is None) == (options.listen is None):
        print("millrace bench link: either --listen HOST:PORT, or the HOST:PORT where another listens", file=sys.stderr)
        return 2
    if options.listen is None:
        report = measure_link(options.address, _token(options), options.seconds, options.rounds)
        if options.json:
            print(json.dumps(msgspec.to_builtins(report), indent=2))
        else:
            link.show(report)
        return 0
    over = threading.Event()
    _end_with(lambda reason: over.set(), parent_pipe=False)
    with serve_link(*parse_address(options.listen), _token(options)) as server:
        print(f"listens at {server.address}; measure with `millrace bench link` there; end it with Ctrl-C", flush=True)
        over.wait()
    return 0


def _demo(options: argparse.Namespace) -> int:
    from millrace import demo

    demo.main()
    return 0


def _token(options: argparse.Namespace) -> str | None:
    token: str | None = options.token or os.environ.get(TOKEN) or None
    return token


# -- ends --------------------------------------------------------------------------------------------------------------


def _end_with(stop: Callable[[str], None], *, parent_pipe: bool) -> None:
    """Has SIGTERM and SIGINT call ``stop`` (a second one again, which ends at once), and the parent's end likewise."""
    # Not by a Python handler. Only the main thread runs those, it waits in a lock, and nothing wakes it if the kernel
    # gives the signal to another thread (one that is just starting takes it). What C writes here wakes its reader.
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    os.register_at_fork(after_in_child=_without_signals)

    def listen() -> None:
        while True:
            for number in os.read(heard, 16):
                stop(signal.Signals(number).name)

    threading.Thread(target=listen, name="millrace-signals", daemon=True).start()

    def ended(reason: str) -> None:
        stop(reason)
        stop(reason)
        _last_chance()

    if parent_pipe:
        _watch_parent(ended)


def _without_signals() -> None:
    """A process that user code forks ends by itself, as any does: its signals are not this process's."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _watch_parent(ended: Callable[[str], object]) -> None:
    def watch() -> None:
        while os.read(0, 4096):  # nothing is ever sent; the end of it is the message
            pass
        # Whoever could have read what is ready is gone as well: no need to wait for them.
        ended("the parent has ended")

    threading.Thread(target=watch, name="millrace-parent", daemon=True).start()


def _last_chance() -> None:
    """Ends the process in a while, whatever still runs in it: user code can't be interrupted otherwise."""
    timer = threading.Timer(LAST_CHANCE_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
