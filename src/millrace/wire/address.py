"""Addresses: ``grpc://host:port``, ``host:port``, ``[v6]:port``, ``:port``."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from typing import Any

from millrace.errors import AddressInUseError, ServiceError

LOOPBACK = "127.0.0.1"
LOOPBACK6 = "::1"
WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 (compared with, not listened on)
"""Hosts to listen on that mean all networks of a machine; nobody can connect to them from another one."""

_ADDRESS = re.compile(r"(?:grpc://)?(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^\[\]:/@\s]*)):(?P<port>[0-9]+)/?")
_FORM = "an address is HOST:PORT or grpc://HOST:PORT, e.g. grpc://dispatcher:5050 or [::1]:5050"


def parse_address(address: str) -> tuple[str, int]:
    """Parse ``address`` into host and port. An IPv6 host stands in brackets; a missing host is 127.0.0.1.

    Raises:
        ServiceError: if it is no address; the message says what is wrong with it.
    """
    given: Any = address  # whatever users say
    if not isinstance(given, str):
        raise ServiceError(f"{given!r} is not an address but of type {type(given).__name__}; {_FORM}")
    match = _ADDRESS.fullmatch(address.strip())
    if match is None:
        raise ServiceError(f"{address!r} is not an address: {_complaint(address.strip())}; {_FORM}")
    port = int(match["port"])
    if port > 65535:
        raise ServiceError(f"{address!r} is not an address: ports end at 65535; {_FORM}")
    if match["v6"] is None:
        return match["host"] or LOOPBACK, port
    try:
        return str(ipaddress.IPv6Address(match["v6"])), port
    except ValueError as error:
        raise ServiceError(f"{address!r} is not an address: {match['v6']!r} is not IPv6; {_FORM}") from error


def _complaint(address: str) -> str:
    scheme, separator, rest = address.rpartition("://")
    if separator and scheme != "grpc":
        return f"the scheme is grpc://, not {scheme}://"
    if rest.count(":") > 1 and "[" not in rest:
        return "an IPv6 host stands in brackets"
    if not re.search(r":[0-9]+/?$", rest):
        return "the port is missing" if ":" not in rest or rest.endswith((":", "]")) else "the port is not a number"
    return "the host is malformed"


def dialled(address: str) -> str:
    """Address to connect to, as ``host:port``: on this host where somebody listens on all networks.

    Raises:
        ServiceError: ``address`` is malformed.
    """
    host, port = parse_address(address)
    if host in WILDCARDS:
        host = LOOPBACK6 if ":" in host else LOOPBACK
    return format_address(host, port)


def format_address(host: str, port: int) -> str:
    """Format ``host:port``, with an IPv6 host in brackets, for :func:`parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``. A name other than ``localhost`` is taken to be public."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def own_host(peer: str) -> str:
    """Find the address of this host that connections to ``peer`` come from, e.g. ``10.0.0.7``. Nothing is sent.

    Raises:
        ServiceError: if ``peer`` is no address, or its host is not known or cannot be reached from here.
    """
    host, port = parse_address(peer)
    try:
        (family, *_, resolved), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(resolved)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ServiceError(f"{peer} cannot be reached from this host: {error.strerror or error}") from error


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens at ``host:port`` (0: any free port), with close-on-exec.

    Raises:
        AddressInUseError: another process listens there.
        ServiceError: it is no address of this machine, or the port needs privileges.
    """
    where = format_address(host, port)
    try:
        (family, *_, resolved), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # create_server sets SO_REUSEADDR, so that a restart needn't wait for old connections to time out.
        both = host == "::" and socket.has_dualstack_ipv6()  # all networks, as gRPC takes it
        return socket.create_server(resolved[:2], family=family, backlog=1024, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"cannot listen on {where}: another process does. Stop it (`ss -ltnp 'sport = :{port}'` names it),"
                f" choose another port, or port 0 for any that is free"
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM}:
            raise ServiceError(f"cannot listen on {where}: not permitted; use a port above 1023") from error
        raise ServiceError(
            f"cannot listen on {where}: {error.strerror or error}. Use an address of this machine, e.g. 127.0.0.1, or"
            f" 0.0.0.0 for all of its networks"
        ) from error


def refuses(address: str, timeout: float) -> bool:
    """Whether the host at ``address`` says within ``timeout`` seconds that nobody listens there."""
    try:
        socket.create_connection(parse_address(address), timeout).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def answers(address: str, timeout: float) -> bool:
    """Whether anything takes connections at ``address`` within ``timeout`` seconds."""
    try:
        socket.create_connection(parse_address(address), timeout).close()
    except OSError:
        return False
    return True
