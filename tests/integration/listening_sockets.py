"""Sockets that listen, told apart from those of others who may have the same port a moment later."""

from collections.abc import Iterable
from pathlib import Path

_LISTENS = "0A"


def listening(addresses: Iterable[str]) -> set[str]:
    """Inodes of the sockets of this machine that listen at the ports of these addresses."""
    ports = {int(address.rpartition(":")[2]) for address in addresses}
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        for row in path.read_text().splitlines()[1:] if path.exists() else ():
            _, local, _, state, *fields = row.split()
            if state == _LISTENS and int(local.rpartition(":")[2], 16) in ports:
                found.add(fields[5])
    return found
