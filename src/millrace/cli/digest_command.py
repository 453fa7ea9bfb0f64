"""Command that makes the digest of a data set."""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
from collections.abc import Callable, Iterator

from millrace.cli.options import add_json

_KINDS = ("auto", "file", "member", "record", "chunk")


def add_digest(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace digest``."""
    command = commands.add_parser("digest", help="lists the content hash of every item of a data set")
    command.add_argument(
        "patterns", nargs="+", metavar="PATTERN", help="files, URLs or globs, as for from_files, or folders"
    )
    command.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="path or URL of the digest; if it is there, files that have not changed since are not read again",
    )
    command.add_argument(
        "--items",
        choices=_KINDS,
        default="auto",
        help="of the files: each as a whole, members of tar shards, TFRecords, column chunks of Parquet (default: by"
        " each file's name)",
    )
    command.add_argument(
        "--columns",
        metavar="NAME,...",
        type=lambda text: tuple(text.split(",")),
        help="of Parquet files, those that are read (default: all)",
    )
    add_json(command)
    command.set_defaults(run=_digest)


def _digest(options: argparse.Namespace) -> int:
    from millrace.engine.run.pooled_reads import PooledReads
    from millrace.policies.figures import data_size
    from millrace.sources.digests.digest_file import ItemKind
    from millrace.sources.digests.digest_maker import make_digest

    kind = None if options.items == "auto" else ItemKind[options.items.upper()]
    with _progress() as (seen, listed, hashed), contextlib.closing(PooledReads()) as pooled:
        made = make_digest(
            options.patterns,
            options.output,
            pooled.reads,
            kind=kind,
            columns=options.columns,
            seen=seen,
            listed=listed,
            hashed=hashed,
        )
    if options.json:
        print(json.dumps(made._asdict(), indent=2))
    else:
        print(
            f"{made.items} items of {made.files} files, {data_size(made.bytes)}; of these {made.read_files} files,"
            f" {data_size(made.read_bytes)}, were read"
        )
    return 0


_Counted = Callable[[int, int], None]


@contextlib.contextmanager
def _progress() -> Iterator[tuple[Callable[[int], None], _Counted, _Counted]]:
    """Show on a terminal how far it is: callbacks for files seen, for what there is to hash, and what was hashed."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("listing", total=None)
        lock, files, done, every = threading.Lock(), 0, 0, 0

        def seen(more: int) -> None:
            nonlocal files
            with lock:
                files += more
            bar.update(shown, description=f"listing: {files} files")

        def listed(count: int, size: int) -> None:
            nonlocal every
            every = count
            bar.update(shown, description=f"hashing: 0 of {every} files", total=max(size, 1), completed=0)

        def hashed(count: int, size: int) -> None:
            nonlocal done
            with lock:
                done += count
            bar.update(shown, description=f"hashing: {done} of {every} files", advance=size)

        yield seen, listed, hashed
