"""Own token: the token of a user's services on one machine, drawn once, and kept where no other user can read it.

Who listens on loopback without a token of its own demands this one, and who connects there without one has it. So
processes of one user find each other without a word, and those of others are refused.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import secrets
import stat
import tempfile
import uuid

from millrace.errors import AuthenticationError, ServiceError
from millrace.private_folder import ROOT, make_private
from millrace.wire.address import is_loopback, parse_address
from millrace.wire.listeners import Ip, listeners

_DIGITS = 64


def resolve(address: str, token: str | None) -> tuple[str | None, bool]:
    """Resolve the token for a listener at ``address``, or for a peer of it: (token, whether it is the user's own).

    An empty one is as good as none.

    Raises:
        ServiceError: ``address`` is malformed, or the user's token cannot be kept anywhere.
    """
    host, _ = parse_address(address)
    if token or not is_loopback(host):
        return token or None, False
    return own_token(), True


def own_token() -> str:
    """Read this user's token on this machine; draw it if there is none."""
    reasons = []
    for folder in _folders():
        try:
            return _load_or_draw(folder)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
    raise ServiceError(
        f"the token that keeps other users of this machine out cannot be kept ({'; '.join(reasons)}): "
        "set MILLRACE_TOKEN or pass token=..., the same everywhere"
    )


def _folders() -> list[str]:
    """Folders where the token may lie. Not XDG_RUNTIME_DIR: some processes of a user don't know it, or outlive it."""
    states = [os.environ.get("XDG_STATE_HOME", ""), os.path.join(os.path.expanduser("~"), ".local", "state")]
    # One that depends on the current directory is another one for each process (and there may be no home).
    folders = [os.path.join(state, "millrace") for state in states if os.path.isabs(state)][:1]
    return [*folders, os.path.join(tempfile.gettempdir(), f".millrace-{os.geteuid()}")]


def _load_or_draw(folder: str) -> str:
    make_private(folder)
    path = os.path.join(folder, "token")
    while True:
        with contextlib.suppress(FileNotFoundError):
            return _read(path)
        draft = f"{path}.{uuid.uuid4().hex}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(handle, "w") as file:
                file.write(secrets.token_hex(_DIGITS // 2))
            with contextlib.suppress(FileExistsError):  # somebody was faster, and his is read
                os.link(draft, path)
        finally:
            os.unlink(draft)


def _read(path: str) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(handle) as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "the token in it is somebody else's")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(handle, 0o600)
        token = file.read().strip()
    if len(token) != _DIGITS:
        raise OSError(errno.EINVAL, "the token in it is damaged; remove it while no service runs")
    return token


def check_listener(address: str) -> None:
    """Refuse to talk to somebody else, who listens at ``address`` of this machine in a service's place.

    Linux says whose sockets are; elsewhere nothing is checked.

    Raises:
        AuthenticationError: it is another user, other than root.
    """
    host, port = parse_address(address)
    hosts, ours = _listening_addresses(host), {os.geteuid(), ROOT}
    strangers = {each.uid for each in listeners(port) if hosts is None or each.ip in hosts} - ours
    if strangers:
        raise AuthenticationError(
            f"{address} belongs to another user of this machine (uid {min(strangers)}), who is not told your token: "
            "use the address of your service, or set MILLRACE_TOKEN or pass token=... if that is the one you mean"
        )


def _listening_addresses(host: str) -> set[Ip] | None:
    """Addresses to listen on to be reached at ``host``; None: at whichever, as it is a name."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    v4 = ip if ip.version == 4 else ip.ipv4_mapped
    if v4 is None:
        return {ip, ipaddress.IPv6Address("::")}
    alike = [v4, ipaddress.IPv4Address(0)]
    return {*alike, *(ipaddress.IPv6Address(f"::ffff:{each}") for each in alike), ipaddress.IPv6Address("::")}
