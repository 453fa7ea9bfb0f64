"""Who is let in, where one listens, and what happens when somebody dies."""

import contextlib
import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tests.integration.own_host import OWN_HOST
from tests.integration.wire.conftest import PEER
from tests.integration.wire.wire_messages import PROMPTLY_S, Ping, works

from millrace.errors import (
    AddressInUseError,
    AuthenticationError,
    ServiceError,
    ServiceUnreachableError,
    ShippingError,
    VersionMismatchError,
)
from millrace.protocol.messages import PROTOCOL
from millrace.wire.auth import OWN, Identity
from millrace.wire.control import challenges, rpc
from millrace.wire.control import control_client as channel_module
from millrace.wire.control.challenges import Challenged, Challenges
from millrace.wire.control.control_client import ControlChannel
from millrace.wire.control.control_server import CallHandler, ControlServer

# -- who is let in -----------------------------------------------------------------------------------------------------


def test_tokens(serving):
    with serving(token="secret") as dispatcher:
        works(dispatcher.address, token="secret")
        for token in (None, "wrong"):
            with ControlChannel(dispatcher.address, token) as channel:
                for use in (channel.connect, functools.partial(channel.open_session, Ping)):
                    with pytest.raises(AuthenticationError, match="refused the token: MILLRACE_TOKEN"):
                        use()


def test_strangers_are_logged_and_who_asks_whether_somebody_listens_is_not(serving, caplog):
    with serving() as dispatcher:
        with ControlChannel(dispatcher.address) as channel:
            channel.connect()  # it asks without its token first, as it tells that to nobody but this user
        assert not caplog.records
        with ControlChannel(dispatcher.address, "wrong") as channel, pytest.raises(AuthenticationError):
            channel.connect()
        assert "refused ipv4:127.0.0.1:" in caplog.text


def test_whoever_listens_in_its_place_is_told_nothing_and_believed_nothing(serving, monkeypatch):
    """It was told the token, and could give workers code."""
    heard = []

    def route(self, details):
        heard.extend(details.invocation_metadata)
        return real(self, details)

    real = ControlServer._route
    monkeypatch.setattr(ControlServer, "_route", route)
    monkeypatch.setattr(Challenges, "answer", lambda self, asked: Challenged(bytes(40), bytes(32)))
    with serving(token="another") as impostor, ControlChannel(impostor.address, "secret") as channel:
        for use in (channel.connect, functools.partial(channel.call, "Code", None, bytes)):
            with pytest.raises(ServiceUnreachableError, match="does not know the token, and was not told it"):
                use()
    assert {name for name, _ in heard if name.startswith("millrace")} == {name for name, _ in rpc.IDENTITY}
    assert not any(b"secret" in (value if isinstance(value, bytes) else value.encode()) for _, value in heard)


def test_whoever_takes_its_place_later_answers_nothing_for_it(serving, monkeypatch):
    with serving(token="secret") as dispatcher, ControlChannel(dispatcher.address, "secret") as channel:
        channel.connect()
        kept = dispatcher.server._challenges
        check = kept.check
        monkeypatch.setattr(kept, "check", lambda *asked: (check(*asked)[0], ()))
        session = channel.open_session(Ping)
        session.send(Ping(7))
        for use in (functools.partial(channel.call, rpc.HELLO, None, Identity), functools.partial(next, session)):
            with pytest.raises(ServiceUnreachableError, match="does not know the token"):
                use()
        assert not list(session)


def test_who_hears_a_call_cannot_make_it_again(serving):
    with serving(token="secret") as dispatcher, ControlChannel(dispatcher.address, "secret") as channel:
        channel.connect()
        method = rpc.CALL_PREFIX + rpc.HELLO
        headers = channel.headers(method)
        hello = channel._channel.unary_stream(method)
        assert list(hello(rpc.encode(None), metadata=headers))
        for again in (hello, channel._channel.unary_stream(rpc.SESSION_METHOD)):
            with pytest.raises(grpc.RpcError) as caught:
                list(again(rpc.encode(None), metadata=headers))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_dispatcher_that_was_exchanged_is_proven_to_anew(serving):
    with serving(token="secret") as dispatcher, ControlChannel(dispatcher.address, "secret") as channel:

        def exchange():
            dispatcher.server._challenges = Challenges(dispatcher.server._registry.find)

        channel.connect()
        exchange()
        assert isinstance(channel.call(rpc.HELLO, None, Identity), Identity)
        exchange()
        with pytest.raises(ServiceUnreachableError, match="started again since this process was let in"):
            next(channel.open_session(Ping))
        with channel.open_session(Ping) as session:
            session.send(Ping(7))
            assert next(session) == Ping(7)


def test_a_public_address_without_a_token(serving):
    with pytest.raises(AuthenticationError, match=r"refused to listen on 0.0.0.0:0 without a token"):
        serving("0.0.0.0:0")
    with pytest.raises(ServiceError, match=r"refused to listen on 0.0.0.0:0 without TLS"):
        serving("0.0.0.0:0", token="secret")
    with serving("0.0.0.0:0", token="secret", insecure=True) as dispatcher:
        works(dispatcher.address.replace("0.0.0.0", "127.0.0.1"), token="secret")


def test_other_protocols_are_refused(dispatcher, monkeypatch):
    monkeypatch.setattr(rpc, "IDENTITY", (("millrace-protocol", "99"), *rpc.IDENTITY[1:]))
    monkeypatch.setattr(challenges, "OWN", Identity(99))
    refused = pytest.raises(VersionMismatchError, match=rf"speaks protocol {PROTOCOL} .* this process protocol 99")
    with ControlChannel(dispatcher.address) as channel, refused:
        channel.connect()


def test_foreign_grpc_clients_get_a_plain_status(dispatcher):
    with grpc.insecure_channel(dispatcher.address) as foreign, pytest.raises(grpc.RpcError) as caught:
        foreign.unary_unary("/other.Service/Method")(b"", timeout=PROMPTLY_S)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_garbage_does_not_hurt_the_dispatcher(dispatcher):
    host, port = dispatcher.address.split(":")
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 4096,
        os.urandom(4096),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff",
    ):
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(garbage)
    works(dispatcher.address)


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_nobody_answers():
    started = time.monotonic()
    with (
        ControlChannel("grpc://127.0.0.1:1", timeout=0.5) as channel,
        pytest.raises(ServiceUnreachableError) as caught,
    ):
        channel.connect()
    assert 0.5 <= time.monotonic() - started < PROMPTLY_S
    assert str(caught.value) == (
        "no dispatcher answered at 127.0.0.1:1 within 0.5 s (connection refused): is `millrace dispatcher`"
        " running there? Check the address, and that no firewall is between"
    )


def test_something_else_answers():
    def answer(listener):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with (
            ControlChannel(address, timeout=0.5) as channel,
            pytest.raises(ServiceUnreachableError, match=f"no dispatcher answered at {address} within 0.5 s"),
        ):
            channel.connect()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_dispatcher_that_starts_late_is_waited_for(serving):
    with socket.create_server((OWN_HOST, 0)) as reserved:
        address = f"{OWN_HOST}:{reserved.getsockname()[1]}"
    with ControlChannel(address) as channel, ThreadPoolExecutor() as pool:
        connected = pool.submit(channel.connect)
        with serving(address):
            assert connected.result(PROMPTLY_S) == OWN


def test_ports_in_use(dispatcher, serving):
    with pytest.raises(
        AddressInUseError, match=f"cannot listen on {dispatcher.address}: another process does. Stop it"
    ):
        serving(dispatcher.address)
    with pytest.raises(ServiceError, match=r"cannot listen on 192.0.2.1:5050: "):
        serving("192.0.2.1:5050", token="secret", insecure=True)


def test_ipv6(serving):
    try:
        dispatcher = serving("[::1]:0")
    except ServiceError as error:
        pytest.skip(str(error))
    with dispatcher:
        works(dispatcher.address)


# -- death -------------------------------------------------------------------------------------------------------------


def test_a_killed_dispatcher_is_noticed(peer):
    with (
        peer("dispatcher", f"{OWN_HOST}:0") as (process, address),
        ControlChannel(address) as channel,
        ThreadPoolExecutor() as pool,
    ):
        session = channel.open_session(Ping)
        session.send(Ping(1))
        assert next(session) == Ping(1)
        waiting = pool.submit(next, session)
        process.kill()
        with pytest.raises(ServiceUnreachableError, match=f"lost the dispatcher at {address}"):
            waiting.result(PROMPTLY_S)
        with pytest.raises(ServiceUnreachableError, match="lost"):
            session.send(Ping(2))
        with pytest.raises(ServiceUnreachableError, match="lost"):
            channel.call("Hello", None, Identity)
        with peer("dispatcher", address):
            assert channel.connect() == OWN
            works(address)


def test_a_dispatcher_that_hangs_is_noticed(peer, monkeypatch):
    hurried = {**dict(channel_module._OPTIONS), "grpc.keepalive_time_ms": 1_000, "grpc.keepalive_timeout_ms": 500}
    hurried["grpc.http2.ping_timeout_ms"] = 500
    monkeypatch.setattr(channel_module, "_OPTIONS", tuple(hurried.items()))
    with peer("dispatcher") as (process, address), ControlChannel(address) as channel, ThreadPoolExecutor() as pool:
        session = channel.open_session(Ping)
        session.send(Ping(1))
        assert next(session) == Ping(1)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(ServiceUnreachableError, match=r"lost the dispatcher at .* \(.*timeout\)"):
            pool.submit(next, session).result(2 * PROMPTLY_S)


def test_a_stopped_dispatcher_says_so(serving):
    with serving() as dispatcher, ControlChannel(dispatcher.address) as channel, ThreadPoolExecutor() as pool:
        session = channel.open_session(Ping)
        session.send(Ping(1))
        assert next(session) == Ping(1)
        waiting = pool.submit(next, session)
        dispatcher.do(dispatcher.server.stop(1.0))
        with pytest.raises(ServiceUnreachableError, match="the dispatcher was stopped"):
            waiting.result(PROMPTLY_S)


def test_a_killed_peer_ends_its_session(serving, peer):
    ended = threading.Event()

    async def watch(session):
        async for message in session:
            session.send(message)
        ended.set()

    with serving(on_session=watch) as dispatcher, peer("interrupted_reading", dispatcher.address) as (process, line):
        assert line == "1"
        process.kill()
        assert ended.wait(PROMPTLY_S)


@pytest.mark.parametrize("role", ["careless", "interrupted_connecting", "interrupted_reading"])
def test_processes_end_without_closing_anything(dispatcher, role, peer):
    address = "127.0.0.1:1" if role == "interrupted_connecting" else dispatcher.address
    with peer(role, address) as (process, line):
        assert line
        if role != "careless":
            process.send_signal(signal.SIGINT)
        assert process.wait(PROMPTLY_S) == (0 if role == "careless" else -signal.SIGINT)


def test_forked_children_open_channels_of_their_own(dispatcher, peer):
    with peer("forking", dispatcher.address) as (process, line):
        said = [line, *process.stdout.read().splitlines()]
    refusals = [words for words in said if "This ControlChannel".lower() in words.lower()]
    assert len(refusals) == 3
    assert "forked from it: open another one here" in refusals[0]
    assert said[3:] == ["child got 3", "parent got 4"]


def test_children_that_are_forked_while_other_threads_use_grpc_do_not_hang(dispatcher, peer):
    with peer("forking_often", dispatcher.address) as (_, line):
        assert line == "over"


def test_children_that_are_forked_in_a_row_find_grpcs_threads_at_rest(dispatcher, peer):
    with peer("forking_in_a_row", dispatcher.address) as (_, line):
        assert line == "b'' [0, 0, 0, 0, 0]"


def test_children_that_are_forked_while_a_message_is_sent_may_use_grpc(dispatcher, peer):
    with peer("forking_while_sending", dispatcher.address) as (_, line):
        assert line == "0 1"


async def length(request, caller):
    return len(request)


def test_children_that_are_forked_while_a_large_call_is_sent_may_use_grpc(serving, peer):
    with (
        serving(calls={"Length": CallHandler(bytes, length, 16 << 20)}) as dispatcher,
        peer("forking_while_calling", dispatcher.address) as (_, line),
    ):
        assert line == f"0 {8 << 20}"


AFTER_GRPC = """
import grpc, runpy, sys

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_children_may_use_grpc_though_it_was_imported_first_if_the_variable_was_set(dispatcher, peer):
    command = [sys.executable, "-c", AFTER_GRPC, str(PEER), "forking", dispatcher.address]
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "1"}
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert found.stdout.splitlines()[3:] == ["child got 3", "parent got 4"]


def test_forks_that_grpc_does_not_support_are_refused(dispatcher, peer):
    with peer("forking_late", dispatcher.address, GRPC_ENABLE_FORK_SUPPORT="0") as (_, line):
        assert "was forked while gRPC was in use" in line
        assert "multiprocessing_context='spawn'" in line


def test_a_child_of_a_process_whose_grpc_did_not_rest_is_told_so_instead_of_waiting(dispatcher, peer):
    with peer("forking_restless", dispatcher.address) as (_, line):
        assert "its threads did not come to rest, so it cannot be used here" in line
        assert "multiprocessing_context='spawn'" in line


def test_connections_cannot_be_pickled(dispatcher):
    with ControlChannel(dispatcher.address) as channel, channel.open_session(Ping) as session:
        for thing in (channel, session):
            with pytest.raises(ShippingError, match="cannot be pickled: send"):
                pickle.dumps(thing)
