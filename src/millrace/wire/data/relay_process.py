"""Relay process: speaks TLS for another process, which has its bytes through a pair of Unix sockets.

It is started by :mod:`millrace.wire.data.relays` and is one thread around one epoll. Its standard input is a Unix
socket from its parent, over which come three descriptors for each connection: a TCP socket, one end of a pair for the
bytes, and one of a pair for what is said about the connection (:mod:`millrace.wire.data.relay_passage`). It ends with
its standard input, however its parent does. Nothing is imported but the standard library and what needs that alone, so
it has started when a tenth of a second of a core is over; and no thread of it waits for the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import ssl
import sys
import time
from typing import Any, NoReturn

from millrace.wire.data.relay_passage import PIECE_BYTES, Asked, Passage
from millrace.wire.tls_contexts import client_context, server_context

READY = b"r"
"""What a relay says first."""
DESCRIPTORS = 3
LINGER_S = 2.0
"""Seconds that a peer has to take what was sent before its connection was closed."""

_CONTEXTS = 4


def _open_context(asked: Asked) -> ssl.SSLContext:
    authority = asked.authority.encode()
    context = client_context(authority) if asked.host else server_context(authority, demands=asked.demands)
    if asked.chain:
        # OpenSSL's Python takes files alone; this one has no name, and is gone at the end.
        with open(os.memfd_create("certificate"), "wb") as file:
            file.write(f"{asked.chain}\n{asked.key}".encode())
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")
    return context


class RelayLoop:
    """All connections of a relay process.

    Args:
        control: from the parent.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._epoll = select.epoll()
        self._passages: dict[int, Passage] = {}
        self._lingering: dict[Passage, float] = {}
        self._contexts: dict[tuple[Any, ...], ssl.SSLContext] = {}
        self._ending = False
        self.scratch = memoryview(bytearray(PIECE_BYTES))
        self.waiting_bytes = 0

    def run(self) -> None:
        """Serve until the parent hangs up."""
        self._epoll.register(self._control, select.EPOLLIN)
        self._control.send(READY)
        while not self._ending or self._passages:
            found = self._epoll.poll(self._patience())
            told = False
            for number, event in found:
                if number == self._control.fileno():
                    told = True
                elif number in self._passages:  # else it was closed a moment ago
                    self._go_on(self._passages[number], number, event)
            now = time.monotonic()
            for passage in [each for each, until in self._lingering.items() if until <= now]:
                passage.end()
            if told:  # last: numbers of descriptors closed above come again
                self._hear()

    def _go_on(self, passage: Passage, number: int, event: int) -> None:
        try:
            passage.ready(number, event)
        except Exception:  # noqa: BLE001 (it is shown)
            sys.excepthook(*sys.exc_info())  # what one peer brings about ends no other's connection
            passage.end()

    def _patience(self) -> float | None:
        return max(0.0, min(self._lingering.values()) - time.monotonic()) if self._lingering else None

    def _hear(self) -> None:
        """Take a connection from the parent."""
        try:
            word, numbers, _, _ = socket.recv_fds(self._control, 1, DESCRIPTORS)
        except ConnectionError:
            word, numbers = b"", []
        if not word:
            self._ending = True
            self._epoll.unregister(self._control)
            for passage in set(self._passages.values()):
                passage.hang_up()
        elif len(numbers) == DESCRIPTORS:
            tcp, data, side = (socket.socket(fileno=number) for number in numbers)
            Passage(self, tcp, data, side)
        else:  # no descriptor was left for them; who waits for an answer sees it end
            for number in numbers:
                os.close(number)

    def context(self, asked: Asked) -> ssl.SSLContext:
        """Find the context for a connection, or make it."""
        found = self._contexts.pop(asked.context, None) or _open_context(asked)
        self._contexts[asked.context] = found  # as the last one: that used longest ago goes first
        if len(self._contexts) > _CONTEXTS:
            del self._contexts[next(iter(self._contexts))]
        return found

    def watch(self, passage: Passage, sock: socket.socket, mask: int, before: int | None) -> None:
        """Have a passage told of a socket's events."""
        if before is None:
            self._epoll.register(sock, mask)
            self._passages[sock.fileno()] = passage
        elif mask != before:
            self._epoll.modify(sock, mask)

    def ignore(self, sock: socket.socket) -> None:
        """Have nobody told of a socket any more."""
        self._epoll.unregister(sock)
        del self._passages[sock.fileno()]

    def linger(self, passage: Passage) -> None:
        """End a passage in a while."""
        self._lingering.setdefault(passage, time.monotonic() + LINGER_S)

    def forget(self, passage: Passage) -> None:
        """End no passage that has ended."""
        self._lingering.pop(passage, None)


def main() -> NoReturn:
    """Be a relay process."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    control = socket.socket(fileno=os.dup(0))
    RelayLoop(control).run()
    os._exit(0)
