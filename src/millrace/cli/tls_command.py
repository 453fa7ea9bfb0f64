"""Command that makes a private authority, and certificates for hosts."""

from __future__ import annotations

import argparse
import os

from millrace.cli.options import positive


def add_tls(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``millrace tls``."""
    tls = commands.add_parser("tls", help="certificates, for --tls of dispatcher, workers and who asks them")
    kinds = tls.add_subparsers(dest="kind", required=True, metavar="WHAT")
    command = kinds.add_parser(
        "init",
        help="make an authority in a folder, and a folder in it for each host, to be copied there; again: renew them",
    )
    command.add_argument("folder", metavar="DIR", help="of the authority; keep it to yourself")
    command.add_argument(
        "hosts",
        nargs="*",
        metavar="HOST",
        help="name or address of a host, further ones behind commas; millrace-worker is good for any worker (default:"
        " those that are there)",
    )
    command.add_argument(
        "--days", type=positive, default=365, metavar="N", help="that new certificates are valid (default 365)"
    )
    command.set_defaults(run=_init)


def _init(options: argparse.Namespace) -> int:
    from millrace.wire.tls_authority import TlsAuthority

    authority = TlsAuthority(options.folder)
    if authority.made:
        print(f"{authority.folder}: a new authority; whoever reads ca.key there can be any host")
    for host in options.hosts or authority.hosts:
        folder, until, new = authority.issue(host, options.days)
        print(f"{folder}: {'new' if new else 'as it was'}, valid until {until:%Y-%m-%d}")
    return os.EX_OK
