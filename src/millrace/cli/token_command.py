"""Command that draws tokens for a service's file of tokens."""

from __future__ import annotations

import argparse
import os
import sys

from millrace.errors import ServiceError
from millrace.protocol.caller import UNSAID_TENANT


def add_token(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace token``."""
    token = commands.add_parser("token", help="draw tokens, for --tokens of a dispatcher")
    kinds = token.add_subparsers(dest="kind", required=True, metavar="WHAT")
    command = kinds.add_parser(
        "new",
        help="draw a token: it goes to standard error or --out, its entry for the file of tokens to standard output",
    )
    command.add_argument("name", metavar="NAME", help="of the person or machine that is to have it")
    command.add_argument(
        "--tenant", default=UNSAID_TENANT, metavar="TENANT", help=f"whose jobs are its (default {UNSAID_TENANT})"
    )
    command.add_argument("--out", metavar="FILE", help="file to make for the token, which nobody else can read")
    kind = command.add_mutually_exclusive_group()
    kind.add_argument("--worker", action="store_true", help="of workers, which are sent everybody's functions")
    kind.add_argument("--admin", action="store_true", help="of who may do everything")
    command.set_defaults(run=_new)


def _new(options: argparse.Namespace) -> int:
    import json

    from millrace.private_folder import private
    from millrace.wire.token_keys import draw_token, keys_of
    from millrace.wire.token_registry import parse_tokens

    token = draw_token()
    rights = ["run = true", 'join = "tenant"', 'control = "own"', 'status = "tenant"']
    if options.worker:
        rights = ["work = true", "run = false", *(f'{each} = "none"' for each in ("join", "control", "status"))]
    if options.admin:
        rights = ["admin = true"]
    written = {"name": options.name, "tenant": options.tenant, "hash": str(keys_of(token))}
    fields = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in written.items()]
    lines = ["[[token]]", *fields, *rights]
    parse_tokens("\n".join(lines))  # before anything is written
    if options.out:
        try:
            with open(options.out, "x", opener=private) as file:
                file.write(f"{token}\n")
        except OSError as error:
            raise ServiceError(f"the token cannot be written to {options.out}: {error.strerror or error}") from error
    print("\n".join(lines), end="\n\n")
    sys.stdout.flush()
    if not options.out:
        print(f"the token of {options.name}, which is not shown again: {token}", file=sys.stderr)
    return os.EX_OK
