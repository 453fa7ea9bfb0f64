import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.data.test_frames import DECODER, Head, Pipe

from millrace.errors import ProtocolError
from millrace.wire.data import compression
from millrace.wire.data.compression import BLOCK_BYTES, CODES, restore, store
from millrace.wire.data.frames import PREFIX_BYTES, receive_frame, send_frame

NOISE = np.random.default_rng(0).integers(0, 256, 3 * BLOCK_BYTES, np.uint8).tobytes()
ZEROS = bytes(3 * BLOCK_BYTES)

both = pytest.mark.parametrize("name", list(CODES))
buffers = st.lists(
    st.tuples(st.sampled_from([NOISE, ZEROS]), st.sampled_from([0, 1, 100, 4095, 4096, 50_000, BLOCK_BYTES + 1])),
    max_size=6,
)


@both
@given(buffers)
def test_what_was_stored_is_restored(name, buffers):
    sent = [memoryview(source)[:size] for source, size in buffers]
    stream = bytearray(b"".join(part for block in store(CODES[name], sent) for part in block))
    target = bytearray(sum(view.nbytes for view in sent))
    restore(CODES[name], reading(stream), memoryview(target))
    assert target == b"".join(sent)


def reading(stream):
    def receive(view):
        view[:] = stream[: view.nbytes]  # raises if there is less
        del stream[: view.nbytes]

    return receive


@both
def test_a_compressed_frame_is_small_and_comes_whole_between_plain_ones(name):
    pipe = Pipe(sizes=[1000] * 50)
    tokens = (np.arange(500_000, dtype=np.int32) % 1000).tobytes()
    for payload in (b"x", tokens, NOISE):
        assert send_frame(pipe, Head("a"), [payload], name) == len(payload)
    assert len(pipe.data) < 0.7 * len(tokens) + 1.01 * len(NOISE)
    for payload in (b"x", tokens, NOISE):
        assert receive_frame(pipe, DECODER)[1].tobytes() == payload


def test_small_payloads_are_plain():
    plain, compressed = Pipe(), Pipe()
    for pipe, name in ((plain, None), (compressed, "lz4")):
        send_frame(pipe, Head("a"), [ZEROS[:1000], ZEROS[:3000]], name)
    assert plain.data == compressed.data


def test_what_does_not_shrink_is_tried_once_and_sent_as_it_lies():
    blocks = list(store(CODES["lz4"], [memoryview(NOISE), memoryview(ZEROS)]))
    assert [stored.nbytes == BLOCK_BYTES for _, stored in blocks] == [True] * 3 + [False] * 3
    assert blocks[0][1].obj is NOISE


def test_runs_of_small_buffers_share_a_block():
    blocks = list(store(CODES["zstd"], [memoryview(b"ab" * 50)] * 1000))
    assert len(blocks) == 1
    assert blocks[0][1].nbytes < 10_000


def test_limits_count_bytes_after_decompression():
    pipe = Pipe()
    send_frame(pipe, Head("a"), [ZEROS], "zstd")
    assert len(pipe.data) < 10_000
    with pytest.raises(ProtocolError, match=f"a payload of {len(ZEROS)} bytes; at most {len(ZEROS) - 1} are accepted"):
        receive_frame(pipe, DECODER, lambda size: pytest.fail("allocated"), limit=len(ZEROS) - 1)


@pytest.mark.parametrize(
    ("raw", "stored"), [(0, 0), (10_001, 10), (10, 11), (10, 0), (2**32 - 1, 2**32 - 1), (BLOCK_BYTES + 1, 1)]
)
def test_blocks_that_cannot_be_are_refused_before_anything_is_read(raw, stored):
    stream = bytearray(struct.pack("<II", raw, stored))
    with pytest.raises(ProtocolError, match=f"a compressed block of {stored} bytes for {raw}, where at most 10000"):
        restore(1, reading(stream), memoryview(bytearray(10_000)))


@both
@given(st.binary(min_size=1, max_size=300), st.integers(301, 10_000))
def test_garbage_is_refused_or_fills_the_payload(name, garbage, size):
    stream = bytearray(struct.pack("<II", size, len(garbage)) + garbage)
    target = bytearray(b"." * (size + 50))
    with contextlib.suppress(ProtocolError):
        restore(CODES[name], reading(stream), memoryview(target)[:size])
    assert target[size:] == b"." * 50


def test_the_end_of_the_connection_is_no_garbage():
    def ended(view):
        raise EOFError("the peer closed the connection")

    with pytest.raises(EOFError):
        restore(1, ended, memoryview(bytearray(10)))


def test_unknown_compressions_are_refused():
    pipe = Pipe()
    send_frame(pipe, Head("a"), [ZEROS], "zstd")
    pipe.data[6] = 9
    with pytest.raises(ProtocolError, match=r"compressed in a way \(9\) that this process does not know"):
        receive_frame(pipe, DECODER)
    assert PREFIX_BYTES < pipe.position < len(pipe.data)


def test_an_expansion_shorter_than_announced_is_refused(monkeypatch):
    class Codec:
        def decompress(self, stored, size):
            return b"1234"

    with pytest.raises(ProtocolError, match="of 4 bytes and announced 5"):
        compression._expanded(Codec(), memoryview(b""), 5)
