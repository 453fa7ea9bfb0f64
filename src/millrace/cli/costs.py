"""Commands about costs: what a training will cost, and what one has cost."""

from __future__ import annotations

import argparse

from millrace.cli.options import add_json, amount, count, positive, seconds, size, token_of
from millrace.cli.queries import add_service


def add_cost(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace cost`` and ``millrace cost estimate``."""
    command = commands.add_parser("cost", help="what each epoch of each job has cost so far, or what a training will")
    add_service(command)
    _add_prices(command, "those of the service")
    command.add_argument(
        "--estimate",
        metavar="FILE",
        help="what `millrace cost estimate --json` wrote, to be set beside what was counted",
    )
    command.add_argument(
        "--samples",
        metavar="FOLDER",
        help="with --estimate: of a SampleCache, whose counts are set beside it; no service is asked then",
    )
    add_json(command)
    command.set_defaults(run=_cost)
    kinds = command.add_subparsers(dest="kind", metavar="estimate")
    _add_estimate(kinds)


def _add_prices(command: argparse.ArgumentParser, default: str, value: str | None = None) -> None:
    command.add_argument(
        "--prices",
        metavar="FILE",
        default=value,
        help=f"TOML (docs/cost.md), or aws, azure or gcp for those that come with millrace; default: {default}",
    )


def _add_estimate(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = kinds.add_parser(
        "estimate", help="what a training costs that reads disks, a bucket, packs or a service, and how long it waits"
    )
    data = command.add_argument_group("what is read")
    data.add_argument("data", nargs="*", metavar="PATTERN", help="paths, URLs or patterns, which are listed")
    data.add_argument("--objects", type=positive, metavar="N", help="their number, where nothing is to be listed")
    data.add_argument("--bytes", type=size, metavar="N", help="of all of them together, e.g. 150GB")
    data.add_argument("--epochs", type=positive, default=1, metavar="N", help="passes (default 1)")
    training = command.add_argument_group("the training")
    speed = training.add_mutually_exclusive_group(required=True)
    speed.add_argument(
        "--compute", type=amount, metavar="S", help="seconds that it computes in an epoch, without waiting"
    )
    speed.add_argument("--rate", type=seconds, metavar="N", help="samples a second that it takes, if it never waits")
    training.add_argument("--hosts", type=positive, default=1, metavar="N", help="training hosts (default 1)")
    training.add_argument("--accelerators", type=count, default=1, metavar="N", help="of each host (default 1)")
    training.add_argument(
        "--preprocess", type=amount, default=0.0, metavar="S", help="seconds of one core for one sample (default 0)"
    )
    # What was given before "estimate" is not to be lost.
    _add_prices(command, "those of the provider that a listed URL names, else aws", argparse.SUPPRESS)
    _add_conditions(command.add_argument_group("what is assumed"))
    add_json(command, argparse.SUPPRESS)
    command.set_defaults(run=_estimate)


def _add_conditions(assumed: argparse._ArgumentGroup) -> None:
    assumed.add_argument("--latency", type=amount, metavar="S", help="from a request to its answer (default 0.05)")
    assumed.add_argument("--link", type=size, metavar="N", help="bytes a second that reach a host (default 1GiB)")
    assumed.add_argument("--disk", type=size, metavar="N", help="bytes a second of a host's disk (default 125MiB)")
    assumed.add_argument("--loaders", type=count, metavar="N", help="num_workers of a host's DataLoader (default 4)")
    assumed.add_argument(
        "--requests", type=positive, metavar="N", help="at once, of a prefetching sampler (default 16)"
    )
    assumed.add_argument("--reads", type=positive, metavar="N", help="at once, of a worker or a pipeline (default 64)")
    assumed.add_argument("--cache", type=size, metavar="N", help="of a host, for prefetching (default 2GiB)")
    assumed.add_argument("--piece", type=size, metavar="N", help="that one request reads of a pack (default 4MiB)")
    assumed.add_argument("--months", type=amount, metavar="N", help="that the data is stored (default 1)")
    assumed.add_argument("--outside", action="store_true", help="the hosts are outside the bucket's region")
    assumed.add_argument(
        "--workers", type=positive, metavar="N", help="of a service (default: as many as are cheapest)"
    )


def _cost(options: argparse.Namespace) -> int:
    from millrace.client.status_query import fetch_status
    from millrace.display import cost, estimate, status

    if options.samples is not None:
        return _samples(options)
    known = estimate.read(options.estimate) if options.estimate else None
    table = cost.read_prices(options.prices) if options.prices else None
    found = fetch_status(options.service, token_of(options), tls=options.tls)
    rows, shared = cost.costs(found, table), cost.dispatcher(found, table)
    beside = estimate.beside_service(known, found, rows) if known is not None else []
    if options.json:
        extra = {"beside": beside} if known is not None else {}
        print(status.as_json({"epochs": rows, "dispatcher": shared, **extra}))
    else:
        prices = found["prices"] or {"currency": ""}
        cost.show(rows, table.currency if table is not None else prices["currency"], shared=shared)
        if known is not None:
            print()
            estimate.show_beside(beside)
    return 0


def _samples(options: argparse.Namespace) -> int:
    from millrace.blocks.samples.sample_cache import folder_stats
    from millrace.display import estimate, status
    from millrace.errors import PipelineError

    if not options.estimate:
        raise PipelineError("--samples needs --estimate FILE, which `millrace cost estimate --json` writes")
    beside = estimate.beside_samples(estimate.read(options.estimate), folder_stats(options.samples))
    if options.json:
        print(status.as_json({"beside": beside}))
    else:
        estimate.show_beside(beside)
    return 0


def _estimate(options: argparse.Namespace) -> int:
    from millrace.display import cost, estimate, status
    from millrace.policies.cost_estimate import Training

    objects, nbytes, provider = estimate.measure(options.data, options.objects, options.bytes)
    table = cost.read_prices(options.prices or provider)
    training = Training(
        objects=objects,
        nbytes=nbytes,
        epochs=options.epochs,
        compute_s=objects / options.rate if options.rate is not None else options.compute,
        hosts=options.hosts,
        accelerators=options.accelerators,
        preprocessing_s=objects * options.preprocess,
    )
    report = estimate.make(training, table, estimate.conditions(options), options.workers)
    if options.json:
        print(status.as_json(estimate.as_dict(report)))
    else:
        estimate.show(report)
    return 0
