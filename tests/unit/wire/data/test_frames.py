import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import ProtocolError, VersionMismatchError
from millrace.wire.data import frames
from millrace.wire.data.frames import ReadAhead, aligned_buffer, decode_prefix, receive_frame, send_frame


class Head(msgspec.Struct, frozen=True):
    name: str
    number: int = 0


DECODER = msgspec.msgpack.Decoder(Head)


class Pipe:
    """A socket's two ends in memory, which sends and receives as few bytes at a time as ``sizes`` says."""

    def __init__(self, sizes=()):
        self.data = bytearray()
        self.position = 0
        self.sizes = list(sizes)
        self.most_buffers = 0

    def _portion(self, size):
        return min(size, self.sizes.pop()) if self.sizes else size

    def sendmsg(self, buffers, /):
        joined = b"".join(buffers)
        self.most_buffers = max(self.most_buffers, len(buffers))
        count = self._portion(len(joined))
        self.data += joined[:count]
        return count

    def recv_into(self, buffer, nbytes, flags, /):
        count = min(self._portion(nbytes), len(self.data) - self.position)
        memoryview(buffer)[:count] = self.data[self.position : self.position + count]
        self.position += count
        return count


names = st.text(max_size=30)
payloads = st.lists(st.binary(max_size=40), max_size=6)
portions = st.lists(st.integers(1, 30), max_size=60)


@given(st.lists(st.tuples(names, payloads), min_size=1, max_size=4), portions)
def test_frames_arrive_whole_however_they_are_split(sent, sizes):
    pipe = Pipe(sizes)
    for name, buffers in sent:
        assert send_frame(pipe, Head(name), buffers) == sum(map(len, buffers))
    for name, buffers in sent:
        header, payload = receive_frame(pipe, DECODER)
        assert header == Head(name)
        assert payload.tobytes() == b"".join(buffers)
    assert pipe.position == len(pipe.data)


@given(st.lists(st.tuples(names, payloads), min_size=1, max_size=4), portions, st.integers(1, 60))
def test_frames_that_are_read_ahead_are_the_same(sent, sizes, size):
    pipe = Pipe()
    for name, buffers in sent:
        send_frame(pipe, Head(name), buffers)
    pipe.sizes = sizes
    ahead = ReadAhead(pipe, size=size)
    for name, buffers in sent:
        header, payload = receive_frame(ahead, DECODER)
        assert header == Head(name)
        assert payload.tobytes() == b"".join(buffers)
    assert not ahead.waiting
    with pytest.raises(EOFError):
        receive_frame(ahead, DECODER)


@given(st.integers(0, 200))
def test_every_cut_of_a_frame_is_noticed(cut):
    whole = Pipe()
    send_frame(whole, Head("x"), [b"0123456789"])
    cut = cut % len(whole.data)
    pipe = Pipe()
    pipe.data = whole.data[:cut]
    with pytest.raises(EOFError, match="the peer closed the connection" + (r".* \(\d+ of \d+ bytes\)" if cut else "$")):
        receive_frame(pipe, DECODER)


@given(st.binary(max_size=64))
def test_garbage_is_refused_or_too_short(data):
    pipe = Pipe()
    pipe.data = bytearray(data)
    with pytest.raises((ProtocolError, EOFError)):
        receive_frame(pipe, DECODER)


def test_arrays_of_any_shape_and_empty_ones_are_sent_as_they_lie():
    pipe = Pipe()
    matrix = np.arange(6, dtype=np.int32).reshape(2, 3)
    send_frame(pipe, Head("a"), [matrix, np.empty((0, 3)), b"", bytearray(b"z"), memoryview(b"yy")])
    _, payload = receive_frame(pipe, DECODER)
    assert payload.tobytes() == matrix.tobytes() + b"zyy"


def test_an_array_with_gaps_is_refused_before_anything_is_sent():
    pipe = Pipe()
    with pytest.raises(TypeError, match="contiguous"):
        send_frame(pipe, Head("a"), [np.arange(10)[::2]])
    assert not pipe.data


def test_more_buffers_than_the_kernel_takes_at_once(monkeypatch):
    monkeypatch.setattr(frames, "IOV_MAX", 3)
    pipe = Pipe()
    send_frame(pipe, Head("a"), [bytes([i]) for i in range(100)])
    assert receive_frame(pipe, DECODER)[1].tobytes() == bytes(range(100))
    assert pipe.most_buffers == 3


def test_the_payload_lands_in_the_buffer_given():
    pipe = Pipe()
    send_frame(pipe, Head("a"), [b"abc"])
    target = bytearray(b"........")
    _, payload = receive_frame(pipe, DECODER, lambda size: target)
    assert payload is target
    assert target == b"abc....."


def test_limits():
    pipe = Pipe()
    send_frame(pipe, Head("a"), [b"12345"])
    with pytest.raises(ProtocolError, match="a payload of 5 bytes; at most 4 are accepted"):
        receive_frame(pipe, DECODER, limit=4)
    pipe.position = 0
    with pytest.raises(ProtocolError, match="a header of 16 bytes; at most 15 are accepted"):
        receive_frame(pipe, DECODER, header_limit=15)
    with pytest.raises(ProtocolError, match=r"Head is .* at most 1048576: put large parts into the payload"):
        send_frame(pipe, Head("a" * (1 << 20)))


def test_nothing_is_allocated_for_a_payload_over_the_limit():
    pipe = Pipe()
    send_frame(pipe, Head("a"), [b"12345"])
    with pytest.raises(ProtocolError):
        receive_frame(pipe, DECODER, lambda size: pytest.fail("allocated"), limit=4)


def test_a_malformed_header():
    pipe = Pipe()
    send_frame(pipe, Head(3))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match=r"malformed header: Expected `str`, got `int` - at `\$.name`"):
        receive_frame(pipe, DECODER)


def test_foreign_and_other_versions_prefixes():
    with pytest.raises(ProtocolError, match=r"starts? with b'GET ': the peer is not millrace"):
        decode_prefix(b"GET / HTTP/1.1\r\nHost")
    pipe = Pipe()
    send_frame(pipe, Head("a"))
    pipe.data[4] = 9
    with pytest.raises(VersionMismatchError, match="frames of layout 9, this process reads layout 2: install the same"):
        decode_prefix(pipe.data[: frames.PREFIX_BYTES])


@given(st.integers(1, 300))
def test_aligned_buffers(size):
    buffer = aligned_buffer(size)
    assert buffer.shape == (size,)
    assert buffer.dtype == np.uint8
    assert buffer.ctypes.data % 64 == 0
