"""Options of several commands, and the types of their values."""

from __future__ import annotations

import argparse
import math
import os
import string
from typing import TYPE_CHECKING

from millrace.errors import PipelineError

if TYPE_CHECKING:
    from millrace.wire.tls_files import TlsFiles

LOOPBACK = "127.0.0.1"
SERVICE = "MILLRACE_SERVICE"
DEFAULT_SERVICE = "grpc://localhost:5050"
TOKEN = "MILLRACE_TOKEN"  # noqa: S105 (the name of a variable)
TLS = "MILLRACE_TLS"
ZONE = "MILLRACE_ZONE"
_LONGEST_ZONE = 63


def add_memory(command: argparse.ArgumentParser) -> None:
    """Add the options about memory of workers."""
    command.add_argument(
        "--buffer-bytes",
        type=size,
        default=256 << 20,
        metavar="N",
        help="of a worker, for elements not yet read, e.g. 1GiB (default 256MiB)",
    )
    command.add_argument(
        "--no-shared-memory",
        dest="shared_memory",
        action="store_false",
        help="send batches over TCP even to consumers on a worker's own host",
    )


def add_cache(command: argparse.ArgumentParser) -> None:
    """Add the options about the cache."""
    command.add_argument(
        "--cache-dir",
        metavar="PATH",
        help="folder (or s3://, gs://, az:// prefix) that all workers reach, where they keep what is expensive to make",
    )
    command.add_argument(
        "--cache-bytes",
        type=size,
        metavar="N",
        help="that this may take, e.g. 50GiB (default: half of what is free where a folder is)",
    )
    command.add_argument(
        "--cache-compression",
        choices=("lz4", "zstd"),
        help="of what is kept; pays if the store is slow (default: none)",
    )


def add_source_cache(command: argparse.ArgumentParser) -> None:
    """Add the options about a cache server beside the dispatcher."""
    command.add_argument(
        "--source-cache",
        metavar="DIR",
        help="folder of this machine in which a cache server keeps what workers read from stores, with --cluster ray of"
        " each node that has workers (default: none)",
    )
    command.add_argument(
        "--source-cache-bytes",
        type=size,
        metavar="N",
        help="that each may take, e.g. 500GB (default: half of what is free where the folder is)",
    )


def add_scaling(command: argparse.ArgumentParser) -> None:
    """Add the options about how many workers jobs get."""
    command.add_argument(
        "--scaling-policy",
        choices=("millrace", "cachew", "cachew-released", "hpa"),
        default="millrace",
        help="that finds out how many workers a job needs: millrace's own, or for comparison Cachew's rules, as"
        " published or as in its released code, or those of Kubernetes' HPA at 80 %% CPU (default millrace)",
    )
    command.add_argument(
        "--prices",
        metavar="FILE",
        help="TOML, or aws, azure or gcp: what workers and training hosts cost, for jobs that want to be cheap and for"
        " `millrace cost` (docs/cost.md)",
    )


def add_listening(command: argparse.ArgumentParser, port: int, host: str = LOOPBACK) -> None:
    """Add the options about where to listen: at ``host`` if nothing is said."""
    command.add_argument(
        "--host", help=f"address to listen on (default {host}); others than loopback need a token and --tls"
    )
    shown = str(port) if port else "any that is free"
    command.add_argument(
        "--port", type=port_number, default=port, metavar="N", help=f"port to listen on (default {shown})"
    )
    command.add_argument("--token", help=f"that peers must present (default: ${TOKEN}, or on loopback your own)")
    add_certificates(command)
    command.add_argument(
        "--insecure", action="store_true", help="listen beyond loopback without certificates: nobody else hears that"
    )
    command.add_argument(
        "--mtls", action="store_true", help="demand a certificate of the same authority from whoever connects"
    )


def add_certificates(command: argparse.ArgumentParser) -> None:
    """Add the option about certificates."""
    command.add_argument(
        "--tls",
        default=os.environ.get(TLS, ""),
        metavar="DIR",
        help=f"encrypt, with the certificates in this folder, of `millrace tls init` (default: ${TLS}, or not)",
    )


def tls_of(options: argparse.Namespace) -> TlsFiles | None:
    """Open the certificates of who listens, if any were given."""
    from millrace.wire.tls_files import TlsFiles

    if options.mtls and not options.tls:
        raise PipelineError(f"--mtls is about certificates: say where they are, too, with --tls or {TLS}")
    return TlsFiles(options.tls, demands=options.mtls) if options.tls else None


def add_zone(command: argparse.ArgumentParser, what: str) -> None:
    """Add the option about a zone, which is ``what``."""
    command.add_argument(
        "--zone",
        type=zone_name,
        default=os.environ.get(ZONE, ""),
        metavar="NAME",
        help=f"{what} (default: ${ZONE}, or none)",
    )


def add_process(command: argparse.ArgumentParser) -> None:
    """Add the options of every process of a service."""
    command.add_argument("--log-level", default="warning", choices=("debug", "info", "warning", "error"))
    command.add_argument("--parent-pipe", action="store_true", help="end when standard input is closed")


def add_json(command: argparse.ArgumentParser | argparse._MutuallyExclusiveGroup, default: bool | str = False) -> None:
    """Add the option by which a command answers in JSON.

    Args:
        command: the command, or a group of its options.
        default: :data:`argparse.SUPPRESS` where the command above has it, too, and may have been given it.
    """
    command.add_argument("--json", action="store_true", default=default, help="for programs")


def token_of(options: argparse.Namespace) -> str | None:
    """Return the token that was given, else that of the environment."""
    token: str | None = options.token or os.environ.get(TOKEN) or None
    return token


def count(text: str) -> int:
    """Parse a whole number from 0 on."""
    return _whole(text, 0)


def positive(text: str) -> int:
    """Parse a whole number from 1 on."""
    return _whole(text, 1)


def count_or_range(text: str) -> tuple[int, int]:
    """Parse ``4`` or ``1-16``: at least and at most so many."""
    least, dash, most = text.partition("-") if text[:1] != "-" else (text, "", "")
    found = count(least), count(most if dash else least)
    if found[0] > found[1]:
        raise argparse.ArgumentTypeError(f"at least {least} and at most {most} cannot be")
    return found


def amount(text: str) -> float:
    """Parse a number from 0 on, with or without a fraction."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


def seconds(text: str) -> float:
    """Parse a number above 0, with or without a fraction."""
    value = amount(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def named_amount(text: str) -> tuple[str, float]:
    """Parse ``NAME=AMOUNT``."""
    name, separator, much = text.rpartition("=")
    if not (separator and name):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=AMOUNT, e.g. accelerator_host=1")
    return name, amount(much)


def size(text: str) -> int:
    """Parse a number of bytes, 1 or more, with or without a unit."""
    units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
    digits = text.rstrip(string.ascii_letters + " ")
    unit = text[len(digits) :].strip().lower().removesuffix("b")
    try:
        value = int(float(digits) * units[unit])
    except (ValueError, KeyError, OverflowError):
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500MB, 20GiB or 1000000")
    return value


def quota(text: str) -> tuple[str, int]:
    """Parse ``TENANT=N``: a tenant and how many workers or jobs it may have, 1 or more."""
    tenant, found, number = text.rpartition("=")
    if not (tenant and found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a tenant and a number, such as vision=8")
    return tenant, positive(number)


def quota_bytes(text: str) -> tuple[str, int]:
    """Parse ``TENANT=BYTES``: a tenant and the bytes that it may have, 1 or more."""
    tenant, found, much = text.rpartition("=")
    if not (tenant and found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a tenant and a size, such as vision=200GiB")
    return tenant, size(much)


def trust(text: str) -> tuple[str, list[str]]:
    """Parse ``TENANT=OTHER,...``: a tenant and those whom it trusts, one or more."""
    reader, _, writers = text.partition("=")
    names = writers.split(",")
    if not (reader and all(names)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a tenant and whom it trusts, such as vision=speech,ads")
    return reader, names


def zone_name(text: str) -> str:
    """Parse the name of a zone; empty: none."""
    if len(text) > _LONGEST_ZONE or not text.isprintable() or " " in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the name of a zone, of {_LONGEST_ZONE} characters at most and without spaces"
        )
    return text


def port_number(text: str) -> int:
    """Parse a port, or 0."""
    value = _whole(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 65535")
    return value


def _whole(text: str, least: float = -math.inf) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} is less than {least}")
    return value
