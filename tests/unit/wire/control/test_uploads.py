"""Requests while they arrive, without a network."""

import asyncio
import tempfile

import grpc.aio
import pytest

from millrace.errors import ProtocolError, ServiceError, ServiceUnreachableError
from millrace.wire.control import uploads
from millrace.wire.control.uploads import Uploads

HERE, THERE = "ipv4:10.0.0.1:41234", "ipv6:[::1]:41234"


def frames(*given):
    """A read() that gives these frames, and then the end, or waits for ever if the last is None."""
    left = [*given]

    async def read():
        frame = left.pop(0) if left else grpc.aio.EOF
        return await asyncio.Event().wait() if frame is None else frame

    return read


async def received(wanted, *given, peer=HERE, most_bytes=1 << 30):
    async with wanted.receive("Put", peer, frames(*given), most_bytes) as encoded:
        return encoded


@pytest.mark.parametrize("size", [0, 10, uploads.SPOOLED_BYTES, uploads.LARGE_BYTES + 5])
def test_a_request_comes_whole(size):
    data = bytes(range(256)) * (size // 256 + 1)
    whole = asyncio.run(received(Uploads(), data[:100], data[100:]))
    assert whole == data


def test_what_has_come_or_failed_counts_no_more(monkeypatch):
    monkeypatch.setattr(uploads, "STALL_S", 0.01)
    wanted = Uploads()

    async def several():
        await received(wanted, b"abc")
        with pytest.raises(ProtocolError, match="takes over 6 bytes; at most 5"):
            await received(wanted, b"abc", b"def", most_bytes=5)
        with pytest.raises(ProtocolError, match="the request Put came too slowly"):
            await received(wanted, b"abc", None)

    asyncio.run(several())
    assert not wanted.bytes
    assert not wanted.requests


def test_an_address_has_a_budget_of_its_own(monkeypatch):
    monkeypatch.setattr(uploads, "PEER_BYTES", 10)
    monkeypatch.setattr(uploads, "ALL_BYTES", 25)
    wanted = Uploads()

    async def several():
        async with wanted.receive("Put", HERE, frames(b"x" * 8), 100):
            with pytest.raises(ServiceUnreachableError, match="of this host"):
                await received(wanted, b"123", peer=HERE)
            assert await received(wanted, b"123", peer=THERE) == b"123"
            async with wanted.receive("Put", "ipv4:10.0.0.2:4", frames(b"x" * 9), 100):
                with pytest.raises(ServiceUnreachableError, match="of all hosts"):
                    await received(wanted, b"x" * 9, peer=THERE)

    asyncio.run(several())
    assert not wanted.bytes


def test_an_address_has_so_many_requests_at_a_time(monkeypatch):
    monkeypatch.setattr(uploads, "PEER_REQUESTS", 1)
    wanted = Uploads()

    async def several():
        async with wanted.receive("Put", HERE, frames(b""), 100):
            with pytest.raises(ServiceUnreachableError, match="of this host"):
                await received(wanted, peer=HERE)
            await received(wanted, peer=THERE)

    asyncio.run(several())


def test_a_disk_without_room_is_said(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    with pytest.raises(ServiceError, match=r"cannot be kept in .*: No space left on device"):
        asyncio.run(received(Uploads(), b"abc"))
