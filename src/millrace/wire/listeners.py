"""Listeners: who listens at a TCP port of this machine, as Linux knows it."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""Tables in which Linux says whose sockets are, for a kernel that doesn't answer otherwise."""
Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
_LISTENS = b"0A"
_ROWS_BYTES = 512
"""Bytes to read at a time: the kernel writes only what is asked for, and takes longer for a row than Python."""

# Of sock_diag(7) and netlink(7), whose numbers and layouts Linux keeps.
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST, _DUMP = 4, 20, 0x1, 0x300
_ERROR, _DONE, _INTERRUPTED, _LISTEN = 2, 3, 0x10, 10
_HEADER = struct.Struct("=IHHII")
"""Of a message: its length, its type, flags, its number, and the port of who sent it."""
_QUERY = struct.Struct("=BBBxI")
"""Which sockets are asked for: family, protocol, no extensions, a set of states."""
_ADDRESSES = struct.Struct("!HH16s16s4s8s")
"""Of a socket: its port, its peer's, both addresses, its interface, a cookie."""
_ANSWER = struct.Struct(f"=BBBB{_ADDRESSES.size}sIIIII")
"""A socket: family, state, timer, retransmissions, addresses, when it expires, two queues, its user, its inode."""
_ANY_COOKIE = b"\xff" * 8
_ANSWER_S = 1.0
"""For the kernel, which has its answer ready when it has taken the question."""


class Listener(NamedTuple):
    """A socket that listens.

    Attributes:
        ip: address at which it listens.
        uid: the user whose socket it is.
    """

    ip: Ip
    uid: int


def listeners(port: int) -> set[Listener]:
    """Find who listens at a port of this machine; nobody is found where the system doesn't say.

    The kernel is asked for the listeners of that port alone, which takes it microseconds. A kernel that doesn't answer
    (a sandbox, a build without sock_diag) has tables of all its sockets, which take it milliseconds to walk.
    """
    try:
        return set(_asked(port))
    except (OSError, AttributeError, struct.error):  # there is no netlink elsewhere than on Linux
        return set(_from_tables(port))


def _asked(port: int) -> Iterator[Listener]:
    """Ask the kernel, as sock_diag(7) says."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.settimeout(_ANSWER_S)
            query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 1 << _LISTEN)
            query += _ADDRESSES.pack(port, 0, b"", b"", b"", _ANY_COOKIE)
            length = _HEADER.size + len(query)
            kernel.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, 0, 0) + query)
            for answer in _answers(kernel.recv):
                found_family, _, _, _, addresses, *_, uid, _ = _ANSWER.unpack_from(answer)
                at, _, ip, *_ = _ADDRESSES.unpack(addresses)
                if at == port:
                    yield Listener(ipaddress.ip_address(ip[:4] if found_family == socket.AF_INET else ip), uid)


def _answers(receive: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the kernel's answers up to the last one.

    Raises:
        OSError: it refuses, at once or in the end, or what it has said may lack some.
        struct.error: an answer is too short.
    """
    while True:
        part = receive(1 << 16)
        at = 0
        while True:
            length, kind, flags, *_ = _HEADER.unpack_from(part, at)
            body = part[at + _HEADER.size : at + max(length, _HEADER.size)]
            if kind in (_DONE, _ERROR):
                (code,) = struct.unpack_from("=i", body)
                if code or kind == _ERROR:
                    raise OSError(-code, os.strerror(-code))
                if flags & _INTERRUPTED:
                    raise OSError(errno.EINTR, "sockets came or went meanwhile")
                return
            if kind != _SOCK_DIAG_BY_FAMILY or flags & _INTERRUPTED:
                raise OSError(errno.EPROTO, f"an answer of type {kind} and flags {flags:#x}")
            yield body
            at += max(length, _HEADER.size) + -length % 4
            if at >= len(part):
                break


def _from_tables(port: int) -> Iterator[Listener]:
    """Read the kernel's tables.

    They begin with who listens, as the kernel's Documentation/networking/proc_net_tcp.rst says. Who is connected comes
    after that, thousands at times, and is not read.
    """
    for table in TABLES:
        with contextlib.suppress(OSError), open(table, "rb", buffering=_ROWS_BYTES) as rows:
            next(rows, None)
            for row in rows:
                _, local, _, state, *rest = row.split()
                if state != _LISTENS:
                    break
                there, _, at = local.rpartition(b":")
                if int(at, 16) == port:
                    yield Listener(_ip(there), int(rest[3]))


def _ip(digits: bytes) -> Ip:
    """Parse an address as Linux writes it: words of four bytes, each as a number of this machine's byte order."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    return ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
