"""Calls: questions of any size to the dispatcher."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc._channel
import msgspec
import numpy as np
import pytest

from millrace.errors import (
    PipelineError,
    ProtocolError,
    ServiceError,
    ServiceUnreachableError,
)
from millrace.host_limits import resident_bytes
from millrace.wire.auth import OWN
from millrace.wire.control import control_server, rpc, uploads
from millrace.wire.control.control_client import ControlChannel
from millrace.wire.control.control_server import CallHandler

PROMPTLY_S = 5.0


class Ping(msgspec.Struct, frozen=True, tag=True):
    number: int
    data: bytes = b""


# -- calls -------------------------------------------------------------------------------------------------------------


async def reverse(request, caller):
    return request[::-1]


async def conflict(request, caller):
    raise PipelineError("take(-1) is negative")


async def bug(request, caller):
    raise ZeroDivisionError("division by zero")


CALLS = {
    "Reverse": CallHandler(bytes, reverse, 1 << 30),
    "Short": CallHandler(bytes, reverse, 1000),
    "Conflict": CallHandler(None, conflict),
    "Bug": CallHandler(None, bug),
}


@pytest.fixture
def channel(serving) -> Iterator[ControlChannel]:
    with serving(calls=CALLS) as dispatcher, ControlChannel(dispatcher.address) as opened:
        yield opened


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 5, 1 << 20, 9_000_001])
def test_calls_of_any_size(channel, size):
    data = np.arange(size, dtype=np.uint8).tobytes()
    assert channel.call("Reverse", data, bytes) == data[::-1]


def test_requests_are_as_large_as_their_call_allows(channel):
    assert channel.call("Short", b"a" * 900, bytes) == b"a" * 900
    with pytest.raises(ProtocolError, match=r"the request Short takes over 2,\d+ bytes; at most 1,000"):
        channel.call("Short", bytes(2000), bytes)
    with pytest.raises(ProtocolError, match="more than 78,036 lists and maps"):
        channel.call("Conflict", [[]] * 100_000, None)


def stalled(channel, size):
    """An upload that stands still after ``size`` bytes."""
    stream = channel._channel.stream_stream(rpc.CALL_PREFIX + "Reverse")
    more, sent = threading.Event(), threading.Event()

    def frames():
        for _ in range(size >> 20):
            yield bytes(1 << 20)
        sent.set()
        more.wait()

    channel.connect()
    replies = stream(frames(), metadata=channel.headers(rpc.CALL_PREFIX + "Reverse"))
    return replies, sent, more


def test_uploads_that_stand_still_block_nobody(serving, monkeypatch):
    """Two of a gibibyte held 2.2 GB, and every request of over 8 KiB was refused."""
    monkeypatch.setattr(uploads, "PEER_BYTES", 48 << 20)
    with serving(calls=CALLS) as dispatcher, ControlChannel(dispatcher.address) as channel:
        before = resident_bytes()
        held = [stalled(channel, 20 << 20) for _ in range(2)]
        assert all(sent.wait(PROMPTLY_S) for _, sent, _ in held)
        with ControlChannel(dispatcher.address) as other:
            assert other.call("Reverse", bytes(4 << 20), bytes) == bytes(4 << 20)
            with pytest.raises(ServiceError, match="busy receiving requests of this host"):
                other.call("Reverse", bytes(40 << 20), bytes)
        assert resident_bytes() - before < 150 << 20
        for replies, _, more in held:
            replies.cancel()
            more.set()


def test_an_upload_that_stands_still_is_given_up(serving, monkeypatch):
    monkeypatch.setattr(uploads, "STALL_S", 0.2)
    with serving(calls=CALLS) as dispatcher, ControlChannel(dispatcher.address) as channel:
        replies, _, more = stalled(channel, 3 << 20)
        with pytest.raises(grpc.RpcError) as refused:
            list(replies)
        assert "came too slowly" in refused.value.details()
        more.set()
        monkeypatch.undo()  # on a busy machine this process takes as long, too
        assert channel.call("Reverse", b"ab", bytes) == b"ba"


def test_errors_of_calls(channel):
    with pytest.raises(PipelineError, match=r"^take\(-1\) is negative$"):
        channel.call("Conflict", None, None)
    with pytest.raises(
        ServiceError, match="the dispatcher failed in Bug: ZeroDivisionError: division by zero; see its log"
    ):
        channel.call("Bug", None, None)
    with pytest.raises(ProtocolError, match=f"millrace {OWN.version} does not know the call 'Nope'"):
        channel.call("Nope", None, None)
    with pytest.raises(ProtocolError, match="the request Reverse is malformed: Expected `bytes`, got `int`"):
        channel.call("Reverse", 3, bytes)
    with pytest.raises(ProtocolError, match="malformed reply to Reverse: Expected `int`, got `bytes`"):
        channel.call("Reverse", b"abc", int)


@pytest.mark.parametrize(
    "use",
    [
        lambda channel: channel.connect(),
        lambda channel: channel.call("Reverse", b"abc", bytes),
        lambda channel: channel.call("Reverse", b"." * 2 * rpc.FRAME_BYTES, bytes),
        lambda channel: channel.open_session(Ping),
    ],
    ids=["connect", "call", "large call", "session"],
)
def test_a_channel_that_another_thread_closes_just_before_it_is_used(channel, monkeypatch, use):
    look = channel.check_usable

    def close_once_looked_at():
        look()
        channel.close()

    monkeypatch.setattr(channel, "check_usable", close_once_looked_at)
    with pytest.raises(ServiceError, match=r"this ControlChannel to .* is closed"):
        use(channel)


@pytest.mark.parametrize("again", [False, True], ids=["first call", "later call"])
def test_an_interrupt_as_a_call_begins_keeps_no_channel_from_closing(serving, monkeypatch, again):
    """gRPC knew of a call then and had no thread that waits for its end, which closing the channel waits for."""
    start = grpc._channel._run_channel_spin_thread

    def interrupted(state):
        signal.raise_signal(signal.SIGINT)
        start(state)

    with serving(calls=CALLS) as dispatcher:
        channel = ControlChannel(dispatcher.address)
        if again:
            assert channel.call("Reverse", b"abc", bytes) == b"cba"
        monkeypatch.setattr(grpc._channel, "_run_channel_spin_thread", interrupted)
        with pytest.raises(KeyboardInterrupt):
            channel.call("Reverse", b"abc", bytes)
        closing = threading.Thread(target=channel.close, daemon=True)
        closing.start()
        closing.join(PROMPTLY_S)
        assert not closing.is_alive()


def test_a_channel_that_closes_does_not_join_threads_whose_calls_ended_at_once(channel, monkeypatch):
    channel.connect()
    begin, joined = channel._begun, []

    class Asking(threading.Thread):  # like one of TensorFlow's, which nobody may join
        def join(self, timeout=None):
            joined.append(self)
            super().join(timeout)

    def begin_and_wait(*args, **options):
        call = begin(*args, **options)
        call.code()  # as soon as it has ended
        return call

    def ask():
        with pytest.raises(PipelineError):
            channel.call("Conflict", None, None)
        asked.set()
        assert closed.wait(PROMPTLY_S)

    monkeypatch.setattr(channel, "_begun", begin_and_wait)
    asked, closed, thread = threading.Event(), threading.Event(), Asking(target=ask)
    thread.start()
    assert asked.wait(PROMPTLY_S)
    channel.close()
    closed.set()
    assert joined == []
    thread.join(PROMPTLY_S)


def test_a_request_over_the_bound_is_not_sent(channel, monkeypatch):
    monkeypatch.setattr(rpc, "MAX_CALL_BYTES", 3 << 20)
    with pytest.raises(ProtocolError, match=r"the request Reverse takes 0\.00 GiB or more") as caught:
        channel.call("Reverse", b"." * (4 << 20), bytes)
    assert caught.traceback[-2].name == "_ask"


def test_the_dispatcher_checks_the_bound_itself(channel, monkeypatch):
    monkeypatch.setattr(rpc, "MAX_CALL_BYTES", 3 << 20)
    method = rpc.CALL_PREFIX + "Reverse"
    ask = channel._channel.stream_stream(method)
    channel.connect()
    with pytest.raises(grpc.RpcError) as caught:
        list(ask((b"." * (1 << 20) for _ in range(10)), metadata=channel.headers(method)))
    error = rpc.error_in(caught.value.trailing_metadata())
    assert isinstance(error, ProtocolError)
    assert "keep large objects in files" in str(error)
    assert channel.call("Reverse", b"ab", bytes) == b"ba"


def test_a_dispatcher_that_does_not_answer(serving):
    async def never(request, caller):
        await asyncio.Event().wait()

    with (
        serving(calls={"Never": CallHandler(None, never)}) as dispatcher,
        ControlChannel(dispatcher.address) as channel,
        pytest.raises(ServiceUnreachableError, match=r"did not answer Never within 0.2 s"),
    ):
        channel.call("Never", None, None, timeout=0.2)


def test_large_replies_are_in_memory_one_after_the_other(serving, monkeypatch):
    """Workers that open a job together all ask for its functions; those that ask for little don't wait for them."""
    monkeypatch.setattr(control_server, "LARGE_REPLIES", 1)
    at_once, most, over = 0, 0, threading.Event()

    async def large(size, caller):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.to_thread(over.wait, 20)
        at_once -= 1
        return bytes(size)

    calls = {"Large": CallHandler(int, large, reply_bytes=lambda size: size), **CALLS}
    size = uploads.LARGE_BYTES + 1
    with (
        serving(calls=calls) as dispatcher,
        ControlChannel(dispatcher.address) as opened,
        ThreadPoolExecutor(3) as pool,
    ):
        found: list[Any] = [pool.submit(opened.call, "Large", size, bytes, 30.0) for _ in range(3)]
        assert opened.call("Reverse", b"ab", bytes) == b"ba"
        over.set()
        assert [len(each.result()) for each in found] == [size] * 3
    assert most == 1
