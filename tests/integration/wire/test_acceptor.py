"""Acceptor of connections whose process has no descriptor left."""

import errno
import socket
from typing import Any

from millrace.wire.data import acceptor
from millrace.wire.data.acceptor import Acceptor


class Short:
    """A listener of a process without descriptors, as long as it has ``failures`` left.

    Args:
        listener: the real one.
        failures: of accepting, that are to come.
    """

    def __init__(self, listener, failures):
        self.listener, self.failures = listener, failures

    def fileno(self):
        return self.listener.fileno()

    def setblocking(self, flag):
        self.listener.setblocking(flag)

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self.listener.accept()


def test_listeners_that_fail_in_one_moment_are_listened_to_again(monkeypatch):
    monkeypatch.setattr(acceptor, "_PAUSE_S", 0.01)
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        listeners: list[Any] = [Short(one, 1), Short(other, 1)]
        began = []
        for listener in (one, other):
            began.append(socket.create_connection(listener.getsockname(), 10))
            began[-1].send(b"x")

        def begin(newcomer):
            heard.append(newcomer.sock.recv(1))
            newcomer.hang_up()

        accepting = Acceptor(listeners, begin, 10.0, "accept", "here")
        accepting.start()
        for peer in began:
            peer.settimeout(10)
            assert peer.recv(1) == b""  # it was let in, and hung up on
            peer.close()
        assert heard == [b"x", b"x"]
        assert [listener.failures for listener in listeners] == [0, 0]
        assert accepting.thread.is_alive()
        accepting.close()
