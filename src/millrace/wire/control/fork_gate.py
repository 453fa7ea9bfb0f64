"""Gate between forks of this process and its use of gRPC: docs/design/0015-forks.md."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc._cython import cygrpc

_SENT_S = 1.0
"""Seconds that a fork waits for messages to be sent, as a dispatcher that takes none must not hold it up."""

_UNSUPPORTED = (
    "gRPC's support of forks is off, so it cannot be used here. Set GRPC_ENABLE_FORK_SUPPORT=1 before anything imports"
    " grpc (`import millrace` does unless it is set already)"
)


class ForkGate:
    """Watch on forks: a process forked in the middle of gRPC's use can't use it, unless gRPC was told to expect it.

    In a forked child gRPC cancels the parent's calls, and takes locks for that. It lets none of its own threads hold
    one as the process forks; other threads are ours to see to. They use gRPC with ``gate`` held, which a fork waits
    for once gRPC's threads rest, and close channels, which needs gRPC's threads, with ``closing`` held, which a fork
    waits for before that. The thread that sends a call's messages is gRPC's, and may rest with its call's lock
    held until the message is sent: none is on its way as a fork begins, unless that takes more than a second.

    Attributes:
        stranded: why gRPC can't be used in this process, which was forked in the middle of its use; "": it can be.
    """

    def __init__(self) -> None:
        self.open_channels = 0
        self.stranded = ""
        self.calls = weakref.WeakSet[Any]()
        self.gate, self.closing = threading.RLock(), threading.RLock()
        self._under_way: set[threading.Lock] = set()
        self._expects = False
        os.register_at_fork(before=self.gate.acquire, after_in_parent=self.gate.release, after_in_child=self._forked)

    def open(self, target: str, options: Any, credentials: grpc.ChannelCredentials | None = None) -> grpc.Channel:
        """Open a channel, with TLS if there are credentials; with it gRPC registers what it does at forks."""
        with self.gate:
            if credentials is None:
                channel = grpc.insecure_channel(target, options=options)
            else:
                channel = grpc.secure_channel(target, credentials, options=options)
            self.open_channels += 1
            if not self._expects:  # handlers are called in the reverse order before a fork
                self._expects, release = True, self.closing.release
                os.register_at_fork(before=self._expected, after_in_parent=release, after_in_child=self._ready)
                _hold_threads()
            return channel

    def close(self, channel: grpc.Channel) -> None:
        """Close a channel."""
        with self.closing:
            channel.close()
        with self.gate:
            self.open_channels -= 1

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Send a message of a call in this block: it begins in no fork, and a fork waits until it is over."""
        message = threading.Lock()
        message.acquire()
        with self.closing:
            self._under_way.add(message)
        try:
            yield
        finally:  # in whichever thread forgets the sender, so that it must not wait for a lock
            self._under_way.discard(message)
            message.release()

    def _expected(self) -> None:
        """Let channels be closed and messages be sent; then none is until the fork is over."""
        self.closing.acquire()
        until = time.monotonic() + _SENT_S
        for message in tuple(self._under_way):
            message.acquire(timeout=max(0, until - time.monotonic()))

    def _ready(self) -> None:
        """Go on in a child, in which gRPC has made its state anew, unless its threads did not come to rest."""
        if getattr(cygrpc, "_fork_handler_failed", False):  # gRPC says it to a log that nobody sees
            self.stranded = "its threads did not come to rest, so it cannot be used here. Fork before it is in use"
        _hold_threads()
        self._under_way.clear()
        self.closing.release()

    def _forked(self) -> None:
        for call in self.calls:  # whoever waits for its answer looks at it now and then, with its lock held
            call._state.reset_postfork_child()  # noqa: SLF001 (as gRPC does where its own threads wait)
        self.calls.clear()
        self.gate.release()
        if self.open_channels > 0 and not cygrpc.is_fork_support_enabled():
            self.stranded = _UNSUPPORTED
        self.open_channels = 0


def _hold_threads() -> None:
    """Have gRPC's threads rest until the process forks no more.

    By themselves they go on after one fork. If the next one begins before they run, it takes them to be at rest still,
    and they are in gRPC's core as the process forks.
    """
    state = getattr(cygrpc, "_fork_state", None)
    if state is None:  # a gRPC that does it another way
        return
    condition: Any = state.fork_in_progress_condition

    def wait(timeout: float | None = None) -> bool:
        woken = True
        while woken and state.fork_in_progress:
            woken = threading.Condition.wait(condition, timeout)
        return woken

    condition.wait = wait


forks = ForkGate()


class GatedCall:
    """Handle of a call in gRPC's core that is not used while the process forks."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._through, getattr(self._call, name))

    def _through(self, method: Callable[..., Any], *args: Any) -> Any:
        with forks.gate:
            return method(*args)
