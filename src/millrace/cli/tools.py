"""Commands that try something out: the demonstration, measurements, simulations."""

from __future__ import annotations

import argparse
import json
import sys
import threading

from millrace.cli.options import TOKEN, add_json, count, positive, seconds, token_of
from millrace.cli.shutdown import end_with


def add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace simulate``."""
    simulate = commands.add_parser("simulate", help="plays in virtual time what could happen to a service")
    kinds = simulate.add_subparsers(dest="kind", required=True, metavar="WHAT")
    command = kinds.add_parser(
        "faults", help="whatever dies, hangs or is cut off: nothing is lost, nothing comes twice"
    )
    command.add_argument("--seeds", type=positive, default=1000, metavar="N", help="how many schedules (default 1000)")
    command.add_argument("--first", type=count, default=0, metavar="N", help="seed of the first (default 0)")
    command.add_argument("--seed", type=count, metavar="N", help="this one alone")
    command.add_argument("--trace", action="store_true", help="with --seed: print all that happens in it")
    command.add_argument("--plant", default="", metavar="NAME", help="a bug that must be found; - lists them")
    add_json(command)
    command.set_defaults(run=_simulate_faults)
    _add_autoscale(kinds)


def _add_autoscale(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = kinds.add_parser("autoscale", help="how many workers jobs get, beside the fewest that would do")
    command.add_argument("--seeds", type=positive, default=1000, metavar="N", help="how many jobs (default 1000)")
    command.add_argument(
        "--policy",
        default="",
        help="this one alone: millrace, cachew, cachew-released, hpa or cheapest (default: all)",
    )
    add_json(command)
    command.set_defaults(run=_simulate_autoscale)


def add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace bench``."""
    bench = commands.add_parser("bench", help="measures what this machine or network can do")
    kinds = bench.add_subparsers(dest="kind", required=True, metavar="WHAT")
    command = kinds.add_parser("link", help="what a network link gives; start it with --listen at the other end first")
    command.add_argument("address", nargs="?", metavar="HOST:PORT", help="where the other one listens")
    command.add_argument("--listen", metavar="HOST:PORT", help="be the end that sends, e.g. 0.0.0.0:5051")
    command.add_argument("--seconds", type=seconds, default=0.5, metavar="S", help="for each figure (default 0.5)")
    command.add_argument("--rounds", type=positive, default=3, metavar="N", help="medians of so many (default 3)")
    command.add_argument("--token", help=f"the same at both ends (default: ${TOKEN}, which other users cannot see)")
    add_json(command)
    command.set_defaults(run=_bench_link)


def add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace demo``."""
    command = commands.add_parser("demo", help="real pictures, a service with two workers, a model that learns")
    command.set_defaults(run=_demo)


def _simulate_autoscale(options: argparse.Namespace) -> int:
    from millrace.policies.scaling import scaling_policies
    from millrace.simulation import full_cluster, scaling

    if options.policy and options.policy not in scaling_policies.KINDS:
        print(f"millrace simulate autoscale: --policy is one of {', '.join(scaling_policies.KINDS)}", file=sys.stderr)
        return 2
    kinds = [kind for kind in scaling_policies.KINDS if options.policy in {"", kind}]
    reports: dict[str, scaling.ScalingReport] = {kind: scaling.run(range(options.seeds), kind) for kind in kinds}
    full: dict[str, full_cluster.FullClusterReport] = {
        kind: full_cluster.run(range(options.seeds), kind) for kind in kinds
    }
    if options.json:
        print(full_cluster.as_json(reports, full))
    else:
        scaling.show(reports)
        full_cluster.show(full)
    return 0


def _simulate_faults(options: argparse.Namespace) -> int:
    from millrace.simulation import runner
    from millrace.simulation.mutants import MUTANTS, planted
    from millrace.simulation.simulated_cluster import play

    if options.plant and options.plant not in MUTANTS:
        for name, mutant in MUTANTS.items():
            print(f"{name:24} {mutant.says}")
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
    report, first = runner.run(runner.watched(seeds), options.plant)
    if options.json:
        print(runner.as_json(report))
    else:
        runner.show(report, first)
    return 1 if first is not None else 0


def _bench_link(options: argparse.Namespace) -> int:
    import msgspec

    from millrace.display import link
    from millrace.wire.address import parse_address
    from millrace.wire.data.link_benchmark import measure_link, serve_link

    if (options.address is None) == (options.listen is None):
        print("millrace bench link: either --listen HOST:PORT, or the HOST:PORT where another listens", file=sys.stderr)
        return 2
    if options.listen is None:
        report = measure_link(options.address, token_of(options), options.seconds, options.rounds)
        if options.json:
            print(json.dumps(msgspec.to_builtins(report), indent=2))
        else:
            link.show(report)
        return 0
    over = threading.Event()
    end_with(lambda reason: over.set(), parent_pipe=False)
    with serve_link(*parse_address(options.listen), token_of(options)) as server:
        print(f"listens at {server.address}; measure with `millrace bench link` there; end it with Ctrl-C", flush=True)
        over.wait()
    return 0


def _demo(options: argparse.Namespace) -> int:
    from millrace import demo

    demo.main()
    return 0
