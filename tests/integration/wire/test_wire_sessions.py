"""Sessions: streams of messages between a dispatcher and its peers."""

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration.wire.wire_messages import PROMPTLY_S, Ping, works

from millrace.errors import (
    JobConflictError,
    ProtocolError,
    ServiceError,
    ServiceUnreachableError,
)
from millrace.wire.auth import OWN
from millrace.wire.control import client_session, rpc
from millrace.wire.control.control_client import ControlChannel

# -- sessions ----------------------------------------------------------------------------------------------------------


def test_messages_arrive_in_order(dispatcher):
    with ControlChannel(dispatcher.address) as channel:
        assert channel.connect() == OWN
        with channel.open_session(Ping) as session:
            for number in range(1000):
                session.send(Ping(number))
            assert [next(session).number for _ in range(1000)] == list(range(1000))


def test_a_message_may_have_16_mib(dispatcher):
    with ControlChannel(dispatcher.address) as channel, channel.open_session(Ping) as session:
        large = Ping(1, b"." * (rpc.MAX_MESSAGE_BYTES - 100))
        session.send(large)
        assert next(session) == large
        with pytest.raises(ProtocolError, match="is at most 16,777,216 bytes long"):
            session.send(Ping(1, b"." * rpc.MAX_MESSAGE_BYTES))
        session.send(Ping(2))
        assert next(session) == Ping(2)


def test_what_was_sent_before_close_arrives(serving, monkeypatch):
    monkeypatch.setattr(client_session, "CLOSE_S", 60.0)  # for which it goes on sending
    got = []

    async def collect(session):
        got.extend([message.number async for message in session])

    with serving(on_session=collect) as dispatcher, ControlChannel(dispatcher.address) as channel:
        session = channel.open_session(Ping)
        for number in range(500):
            session.send(Ping(number))
        session.close()
        assert got == list(range(500))
        assert list(session) == []
        with pytest.raises(ServiceError, match="is closed"):
            session.send(Ping(1))


def test_the_dispatcher_ends_a_session(serving):
    async def three(session):
        for number in range(3):
            session.send(Ping(number))

    with serving(on_session=three) as dispatcher, ControlChannel(dispatcher.address) as channel:
        session = channel.open_session(Ping)
        assert [message.number for message in session] == [0, 1, 2]


def test_the_dispatcher_ends_a_session_with_an_error(serving):
    async def refuse(session):
        session.send(Ping(1))
        session.close(JobConflictError("job 'a' exists\nwith another pipeline"))

    with serving(on_session=refuse) as dispatcher, ControlChannel(dispatcher.address) as channel:
        session = channel.open_session(Ping)
        assert next(session) == Ping(1)
        for attempt in (session.__next__, session.__next__, lambda: session.send(Ping(2))):
            with pytest.raises(JobConflictError, match="job 'a' exists\nwith another pipeline"):
                attempt()


def test_a_bug_in_the_dispatcher_ends_one_session(caplog, serving):
    async def fail_on_13(session):
        async for message in session:
            if message.number == 13:
                raise KeyError("oops")
            session.send(message)

    with serving(on_session=fail_on_13) as dispatcher, ControlChannel(dispatcher.address) as channel:
        session = channel.open_session(Ping)
        session.send(Ping(13))
        with pytest.raises(ServiceError, match="the dispatcher failed: KeyError: 'oops'; see its log"):
            next(session)
        works(dispatcher.address)
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("message", [{"type": "Ping"}, {"type": "Pong", "number": 1}, Ping("1"), 5, b"\xff"])  # type: ignore[arg-type]
def test_a_malformed_message_ends_one_session(dispatcher, message):
    with ControlChannel(dispatcher.address) as channel:
        bystander, session = channel.open_session(Ping), channel.open_session(Ping)
        session.send(message)
        with pytest.raises(ProtocolError, match="the dispatcher got a malformed message: "):
            next(session)
        bystander.send(Ping(2))
        assert next(bystander) == Ping(2)


def test_a_malformed_message_from_the_dispatcher(serving):
    async def nonsense(session):
        session.send({"type": "Ping", "number": "one"})
        async for _ in session:
            pass

    with serving(on_session=nonsense) as dispatcher, ControlChannel(dispatcher.address) as channel:
        session = channel.open_session(Ping)
        for _ in range(2):
            with pytest.raises(ProtocolError, match="sent a malformed message: Expected `int`, got `str`"):
                next(session)


def test_close_wakes_the_thread_that_waits(dispatcher):
    with ControlChannel(dispatcher.address) as channel, ThreadPoolExecutor() as pool:
        session = channel.open_session(Ping)
        session.send(Ping(1))
        assert next(session) == Ping(1)
        waiting = pool.submit(list, session)
        session.close()
        assert waiting.result(PROMPTLY_S) == []


def test_close_does_not_wait_for_a_dispatcher_that_does_not_listen(serving):
    async def deaf(session):
        session.send(Ping(1))
        await asyncio.Event().wait()

    with serving(on_session=deaf) as dispatcher, ControlChannel(dispatcher.address) as channel:
        session = channel.open_session(Ping)
        assert next(session) == Ping(1)
        started = time.monotonic()
        session.close()
        assert time.monotonic() - started < PROMPTLY_S


def test_a_session_that_is_closed_reads_nothing_more(serving):
    got = []

    async def close_at_1(session):
        async for message in session:
            got.append(message.number)
            if message.number == 1:
                session.close()

    with serving(on_session=close_at_1) as dispatcher, ControlChannel(dispatcher.address) as channel:
        session = channel.open_session(Ping)
        with contextlib.suppress(ServiceError):  # it may be closed by then
            for number in range(3):
                session.send(Ping(number))
        assert list(session) == []
    assert got == [0, 1]


def test_whatever_serves_a_session_ends_when_it_is_closed(serving):
    cancelled = threading.Event()

    async def wait(session):
        asyncio.get_running_loop().call_soon(session.close, JobConflictError("no more"))
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with serving(on_session=wait) as dispatcher, ControlChannel(dispatcher.address) as channel:
        session = channel.open_session(Ping)
        with pytest.raises(JobConflictError, match="no more"):
            next(session)
        assert cancelled.wait(PROMPTLY_S)


def test_a_peer_that_does_not_read_is_given_up(monkeypatch, serving):
    monkeypatch.setattr(rpc, "MAX_OUTBOX_BYTES", 4 << 20)
    sessions = []

    async def flood(session):
        sessions.append(session)
        while not session.closed:
            session.send(Ping(1, b"." * 100_000))
            await asyncio.sleep(0)

    with serving(on_session=flood) as dispatcher, ControlChannel(dispatcher.address) as channel:
        session = channel.open_session(Ping)
        assert next(session).number == 1
        with pytest.raises(ServiceError, match=r"left \d{7} bytes of messages unread and was given up"):
            list(session)  # comes too late
        assert "left" in str(sessions[0].error)


def test_a_dispatcher_that_does_not_read_is_given_up(monkeypatch, serving):
    monkeypatch.setattr(rpc, "MAX_OUTBOX_BYTES", 4 << 20)

    async def deaf(_):
        await asyncio.Event().wait()

    with serving(on_session=deaf) as dispatcher, ControlChannel(dispatcher.address) as channel:
        session = channel.open_session(Ping)
        with pytest.raises(ServiceUnreachableError, match=r"left \d{7} bytes of messages unread and was given up"):
            for _ in range(10_000):
                session.send(Ping(1, b"." * 100_000))


def test_hundreds_of_sessions(dispatcher):
    with contextlib.ExitStack() as stack:
        channels = [stack.enter_context(ControlChannel(dispatcher.address)) for _ in range(8)]
        sessions = [channel.open_session(Ping) for channel in channels for _ in range(40)]
        for _ in range(3):
            for number, session in enumerate(sessions):
                session.send(Ping(number))
            assert [next(session).number for session in sessions] == list(range(320))
    works(dispatcher.address)
