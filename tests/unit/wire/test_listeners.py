"""Who listens at a port, from answers and tables as Linux writes them."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys

import pytest

from millrace.wire import listeners

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:13BA 00000000:0000 0A 00000000:00000000 00:00000000 00000000  4241        0 1145 1 00000000a75f69ac
   1: 0100007F:13BB 00000000:0000 0A 00000000:00000000 00:00000000 00000000  4242        0 1146 1 00000000a75f69ac
   2: 0100007F:13BA 0100007F:8D63 01 00000000:00000000 00:00000000 00000000  4243        0 1147 1 00000000a75f69ac
"""
ROW = "   0: {local}:13BA 00000000:0000 0A 00000000:00000000 00:00000000 00000000  4242        0 1145 1 0"
LOCAL = {
    "127.0.0.1": "0100007F",
    "10.0.0.7": "0700000A",
    "0.0.0.0": "00000000",
    "::": "0" * 32,
    "::1": "0" * 24 + "01000000",
    "::ffff:127.0.0.1": "0000000000000000FFFF00000100007F",
}
little = pytest.mark.skipif(sys.byteorder == "big", reason="the table is as a little-endian machine writes it")


DONE = struct.pack("=i", 0)


def message(kind: int, body: bytes, flags: int = 2) -> bytes:
    padded = body + bytes(-len(body) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + padded


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that isn't to be asked."""

    def refused(*arguments: object) -> socket.socket:
        raise OSError("no such protocol")

    monkeypatch.setattr(socket, "socket", refused)


def test_answers_are_read_up_to_the_last_one():
    """Several come in a part, and the last one in a part of its own."""
    parts = iter([message(20, b"one") + message(20, b"second"), message(20, b"third"), message(3, DONE)])
    assert list(listeners._answers(lambda _: next(parts))) == [b"one", b"second", b"third"]


@pytest.mark.parametrize("kind", [2, 3])
def test_a_refusal_is_an_error_with_the_kernels_reason(kind):
    """Also as the end of an answer: so it comes where the kernel knows the question, and not this kind of sockets."""
    refusal = message(kind, struct.pack("=i", -2) + bytes(16))
    with pytest.raises(FileNotFoundError):
        list(listeners._answers(lambda _: refusal))


@pytest.mark.parametrize(
    "answer",
    [b"", b"short", message(3, b""), message(3, DONE, flags=0x12), message(20, b"one", flags=0x12), message(9, b"one")],
    ids=["nothing", "short", "no code", "interrupted", "interrupted before", "something else"],
)
def test_what_may_lack_some_is_no_answer(answer):
    with pytest.raises((OSError, struct.error)):
        list(listeners._answers(lambda _: answer))


@little
def test_where_the_kernel_does_not_answer_its_tables_are_read_as_far_as_listeners_go(tmp_path, monkeypatch, silent):
    (tmp_path / "tcp").write_text(TABLE + "no row\n" * 100)
    monkeypatch.setattr(listeners, "TABLES", (str(tmp_path / "tcp"), str(tmp_path / "not there")))
    here = ipaddress.ip_address("127.0.0.1")
    assert listeners.listeners(5050) == {(here, 4241)}
    assert listeners.listeners(5051) == {(here, 4242)}
    assert listeners.listeners(5052) == set()


@little
@pytest.mark.parametrize("address", LOCAL)
def test_addresses_in_tables(tmp_path, monkeypatch, silent, address):
    (tmp_path / "tcp").write_text(f"  sl  local_address\n{ROW.format(local=LOCAL[address])}\n")
    monkeypatch.setattr(listeners, "TABLES", (str(tmp_path / "tcp"),))
    assert listeners.listeners(5050) == {(ipaddress.ip_address(address), 4242)}


def test_a_system_that_says_nothing_has_nobody(monkeypatch, silent):
    monkeypatch.setattr(listeners, "TABLES", (os.devnull,))
    assert listeners.listeners(5050) == set()
