"""Command that groups small files into tar shards."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator

from millrace.cli.options import add_json, count, size
from millrace.sources.packs.pack_plan import SHARD_BYTES


def add_pack(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace pack``."""
    command = commands.add_parser("pack", help="groups small files into tar shards with an index (WebDataset)")
    command.add_argument("patterns", nargs="*", metavar="PATTERN", help="files, URLs or globs, as for from_files")
    command.add_argument("folder", metavar="FOLDER", help="path or URL of the folder for the shards and their index")
    command.add_argument(
        "--shard-bytes",
        type=size,
        default=SHARD_BYTES,
        metavar="N",
        help="at which a shard ends, e.g. 256MiB (default 64MiB)",
    )
    command.add_argument(
        "--seed",
        type=count,
        metavar="N",
        help="of a random order of the samples (default: in the order of their paths)",
    )
    command.add_argument("--overwrite", action="store_true", help="replace another pack that FOLDER holds")
    command.add_argument(
        "--verify", action="store_true", help="read every shard and compare it with the index; alone or after packing"
    )
    add_json(command)
    command.set_defaults(run=_pack)


def _pack(options: argparse.Namespace) -> int:
    from millrace.policies.figures import data_size
    from millrace.sources.packs.packer import pack, verify

    if not options.patterns and not options.verify:
        print("millrace pack: name what to pack, and behind it the folder; or a folder with --verify", file=sys.stderr)
        return 2
    said: dict[str, object] = {}
    if options.patterns:
        with _progress("packing") as (seen, packed):
            made = pack(
                options.patterns,
                options.folder,
                shard_bytes=options.shard_bytes,
                seed=options.seed,
                overwrite=options.overwrite,
                seen=seen,
                packed=packed,
            )
        said |= made._asdict()
        if not options.json:
            kept = f"; {made.shards - made.made} of them were there already" if made.made < made.shards else ""
            print(
                f"{made.samples} samples of {made.files} files lie in {made.shards} shards, {data_size(made.bytes)}"
                f"{kept}"
            )
    wrong: list[str] = []
    if options.verify:
        with _progress("verifying") as (_, verified):
            report = verify(options.folder, verified)
        wrong = report.wrong
        said |= {"verified": report.samples, "wrong": wrong}
        if not options.json:
            print("\n".join(wrong) or f"all {report.samples} samples in {report.shards} shards are as the index says")
    if options.json:
        print(json.dumps(said, indent=2))
    return 1 if wrong else 0


@contextlib.contextmanager
def _progress(what: str) -> Iterator[tuple[Callable[[int], None], Callable[[int, int], None]]]:
    """Show on a terminal how far a command is: callbacks for files that were listed, and for shards."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("listing", total=None)
        files, lock = 0, threading.Lock()

        def seen(more: int) -> None:
            nonlocal files
            with lock:
                files += more
            bar.update(shown, description=f"listing: {files} files")

        def done(shards: int, all_of_them: int) -> None:
            bar.update(
                shown, description=f"{what}: shard {shards} of {all_of_them}", total=all_of_them, completed=shards
            )

        yield seen, done
