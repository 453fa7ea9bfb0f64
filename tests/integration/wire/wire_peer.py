"""Processes for the tests beside it: ``python wire_peer.py ROLE ADDRESS``; each prints a line when it is ready."""

import asyncio
import contextlib
import os
import select
import signal
import sys
import tempfile
import threading

import msgspec
from grpc import _common
from grpc._cython import cygrpc

from millrace.errors import ServiceError
from millrace.wire.control.control_client import ControlChannel
from millrace.wire.control.control_server import ControlServer
from millrace.wire.data.data_connection import DataServer, open_data_connection


class Ping(msgspec.Struct, frozen=True, tag=True):
    number: int
    data: bytes = b""


def say(*words):
    print(*words, flush=True)


async def _echo(session):
    async for message in session:
        session.send(message)


async def _dispatcher(address):
    server = ControlServer(address, on_session=_echo, message=Ping)
    say(await server.start())
    await asyncio.Event().wait()


def dispatcher(address):
    asyncio.run(_dispatcher(address))


def _serve(connection):
    connection.receive(msgspec.msgpack.Decoder(Ping))
    connection.send(Ping(1), [b"x" * 10])
    connection.receive(msgspec.msgpack.Decoder(Ping))


def bulk_server(_):
    server = DataServer("127.0.0.1", _serve)
    say(server.address)
    threading.Event().wait()


def careless(address):
    """Ends without closing anything."""
    channel = ControlChannel(address)
    channel.connect()
    session = channel.open_session(Ping)
    session.send(Ping(1))
    say(next(session).number)
    waiting = threading.Thread(target=next, args=(session,), daemon=True)
    waiting.start()


def interrupted_connecting(address):
    with ControlChannel(address, timeout=0.1) as first, contextlib.suppress(ServiceError):
        first.connect()  # whatever is imported on the way has been: a signal in an import is lost
    channel = ControlChannel(address, timeout=60)
    say("connecting")
    channel.connect()


def interrupted_reading(address):
    channel = ControlChannel(address)
    session = channel.open_session(Ping)
    session.send(Ping(1))
    say(next(session).number)
    next(session)


def interrupted_bulk(address):
    connection = open_data_connection(address)
    connection.send(Ping(1))
    connection.receive(msgspec.msgpack.Decoder(Ping))
    say("reading")
    connection.receive(msgspec.msgpack.Decoder(Ping))


def forking(address):
    """A child says what becomes of its parent's channel and opens one of its own; the parent's goes on."""
    channel = ControlChannel(address)
    session = channel.open_session(Ping)
    session.send(Ping(1))
    next(session)
    pid = os.fork()
    if pid == 0:
        try:
            for use in (channel.connect, lambda: session.send(Ping(2)), lambda: next(session)):
                try:
                    use()
                except ServiceError as error:
                    say(error)
            session.close()
            channel.close()
            with ControlChannel(address, timeout=20) as own:
                own.connect()
                with own.open_session(Ping) as inner:
                    inner.send(Ping(3))
                    say("child got", next(inner).number)
        except BaseException as error:  # a forked child must not go on as its parent
            say("child failed:", repr(error))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    session.send(Ping(4))
    say("parent got", next(session).number)
    channel.close()


def forking_late(address):
    """As forking, but somebody imported grpc before; started with GRPC_ENABLE_FORK_SUPPORT=0."""
    channel = ControlChannel(address)
    channel.connect()
    pid = os.fork()
    if pid == 0:
        try:
            ControlChannel(address)
        except ServiceError as error:
            say(error)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    channel.close()


def forking_restless(address):
    """As forking, while a thread of gRPC's doesn't come to rest."""
    channel = ControlChannel(address)
    channel.connect()
    cygrpc._AWAIT_THREADS_TIMEOUT_SECONDS = 0.2
    cygrpc._fork_state.active_thread_count.increment()
    pid = os.fork()
    if pid == 0:
        try:
            ControlChannel(address)
        except ServiceError as error:
            say(error)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    cygrpc._fork_state.active_thread_count.decrement()
    channel.close()


def forking_often(address):
    """Forks while other threads ask the dispatcher again and again, and says which children never came to anything."""
    over = threading.Event()

    def ask():
        with ControlChannel(address, timeout=60) as channel:
            while not over.is_set():
                channel.connect()

    with ControlChannel(address, timeout=60) as first:  # gRPC says what it does at forks as the first one opens
        first.connect()
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        if not select.select([os.pidfd_open(pid)], [], [], 20)[0]:
            say("a child hangs")
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    over.set()
    for thread in threads:
        thread.join()
    say("over")


def forking_in_a_row(address):
    """Fork children right after one another, letting other threads run before each, and say how they and gRPC fare."""

    def yield_often():
        for _ in range(100):
            select.select([], [], [], 0)

    os.register_at_fork(before=yield_often)  # as no channel is open yet, it is called behind what gRPC does
    with tempfile.TemporaryFile() as complaints:
        os.dup2(complaints.fileno(), sys.stderr.fileno())
        with ControlChannel(address) as first, ControlChannel(address) as second:
            sessions = [channel.open_session(Ping) for channel in (first, second)]
            children = []
            for _ in range(5):
                pid = os.fork()
                if pid == 0:
                    with ControlChannel(address, timeout=20) as own:
                        own.connect()
                    os._exit(0)
                children.append(pid)
            statuses = [os.waitpid(pid, 0)[1] for pid in children]
            for session in sessions:
                session.send(Ping(1))
                next(session)
        complaints.seek(0)
        say(complaints.read(), statuses)


def _fork_as_it_is_sent(address, send):
    """Fork while gRPC's thread that sends a message is about to see that it is sent; what the child exits with.

    That thread looks whether there is a fork each time that it is woken, with the call's lock held.
    """
    sending, begun = threading.Event(), threading.Event()
    wait = _common.wait
    threads = cygrpc._fork_state.active_thread_count
    await_threads = threads.await_zero_threads

    def await_threads_of_a_fork(seconds):
        begun.set()
        return await_threads(seconds)

    def woken_late(wait_function, is_done, timeout=None, spin_cb=None):
        if spin_cb is not None:
            sending.set()
            begun.wait(0.3)
            spin_cb()
        return wait(wait_function, is_done, timeout, spin_cb)

    _common.wait, threads.await_zero_threads = woken_late, await_threads_of_a_fork
    sender = threading.Thread(target=send)
    sender.start()
    sending.wait()
    pid = os.fork()
    if pid == 0:
        _common.wait = wait
        signal.alarm(20)  # ends a child that hangs
        with ControlChannel(address, timeout=15) as own:
            own.connect()
        os._exit(0)
    _common.wait = wait
    status = os.waitpid(pid, 0)[1]
    sender.join()
    return status


def forking_while_sending(address):
    """Fork while a message of a session is sent, and say how the child fares and what is answered."""
    with ControlChannel(address) as channel, channel.open_session(Ping) as session:
        say(_fork_as_it_is_sent(address, lambda: session.send(Ping(1))), next(session).number)


def forking_while_calling(address):
    """Fork while a call of many frames is sent, and say how the child fares and what is answered."""
    answers: list[int] = []
    with ControlChannel(address) as channel:
        say(_fork_as_it_is_sent(address, lambda: answers.append(channel.call("Length", bytes(8 << 20), int))), *answers)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
