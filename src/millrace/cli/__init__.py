"""Command line; each command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence

from millrace.cli.cache_server_command import add_cache_server
from millrace.cli.costs import add_cost
from millrace.cli.digest_command import add_digest
from millrace.cli.pack_command import add_pack
from millrace.cli.processes import add_dispatcher, add_worker
from millrace.cli.queries import add_cache_commands, add_status
from millrace.cli.tls_command import add_tls
from millrace.cli.token_command import add_token
from millrace.cli.tools import add_bench, add_demo, add_simulate
from millrace.errors import MillraceError
from millrace.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 fine, 1 an error (one line on stderr), 2 wrong usage."""
    options = parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
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
    """Make the parser of all commands and their options."""
    top = argparse.ArgumentParser(prog="millrace", description="Input data processing for ML training, as a service.")
    top.add_argument("--version", action="version", version=f"millrace {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_dispatcher(commands)
    add_worker(commands)
    add_cache_server(commands)
    add_status(commands)
    add_cache_commands(commands)
    add_cost(commands)
    add_pack(commands)
    add_digest(commands)
    add_token(commands)
    add_tls(commands)
    add_simulate(commands)
    add_bench(commands)
    add_demo(commands)
    return top
