"""Connections on one host: real Unix sockets, real shared memory; the other side is a thread or a process."""

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from array import array
from typing import Any

import msgspec
import numpy as np
import pytest

from millrace.elements import codec, file_mapping, shared
from millrace.elements.file_mapping import OpenFile
from millrace.elements.scattered_buffer import ScatteredBuffer
from millrace.elements.shared import Arena
from millrace.errors import AuthenticationError, ProtocolError, ServiceUnreachableError
from millrace.wire.data import fd_passing
from millrace.wire.data.data_connection import DataServer, open_data_connection
from millrace.wire.data.data_keys import of_token
from millrace.wire.data.fd_passing import FdChannel, Preamble
from millrace.wire.data.frames import LAYOUT, MAGIC, ReadAhead
from millrace.wire.data.handshake import exchange_hello

pytestmark = pytest.mark.skipif(not shared.AVAILABLE, reason="this platform cannot pass memory")

MIB = 1 << 20
PROMPTLY_S = 10.0


class Note(msgspec.Struct, frozen=True, tag=True):
    number: int = 0


NOTE = msgspec.msgpack.Decoder(Note)


class Giver:
    """A server that sends batches of its arena; ``answer`` makes the buffers for a number that the client sends.

    ``shared``: others are sent the same.
    """

    def __init__(self, answer, limit=64 * MIB, *, shared=False, **options):
        self.arena = Arena(limit)
        self.shared = shared
        self.answer = answer
        self.notes = []
        self.server = DataServer("127.0.0.1", self.serve, arena=self.arena, **options)

    def serve(self, connection):
        while True:
            note, _ = connection.receive(NOTE)
            self.notes.append(note)
            connection.send(note, self.answer(self.arena, note.number), shared=self.shared)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.close()


def ask(connection, number):
    connection.send(Note(number))
    header, payload = connection.receive(NOTE)
    assert header.number == number
    return payload


def batch(arena, number, size=MIB):
    x = arena.allocate((size,), np.dtype(np.uint8))
    x[:] = number % 251
    return codec.encode([{"x": x, "n": number}])


def memory_at(pid, address):
    """(inode, offset in it) of the shared memory that is mapped at an address of a process."""
    inode, offset, name = file_at(pid, address)
    assert name == ["/memfd:millrace", "(deleted)"]
    return inode, offset


def file_at(pid, address):
    """(inode, offset in it, words of its name) of the file that is mapped at an address of a process."""
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            span, _, offset, _, inode, *name = line.split()
            start, stop = (int(each, 16) for each in span.split("-"))
            if start <= address < stop:
                return int(inode), int(offset, 16) + address - start, name
    return pytest.fail(f"nothing is mapped at {address:#x}")


def test_what_the_client_sees_is_the_servers_memory():
    made = []

    def answer(arena, number):
        made.append(arena.allocate((MIB,), np.dtype(np.uint8)))
        return codec.encode([{"x": made[-1]}])

    with Giver(answer) as giver, open_data_connection(giver.server.address) as connection:
        for number in range(3):
            (element,) = codec.decode(ask(connection, number))
            theirs = memory_at(os.getpid(), made[-1].ctypes.data)
            assert memory_at(os.getpid(), element["x"].ctypes.data) == theirs
            made[-1][7] = 100 + number
            assert element["x"][7] == 100 + number
            assert element["x"].flags.writeable


def test_small_messages_are_sent_as_they_are():
    elements = [5, "text"]
    with (
        Giver(lambda arena, number: codec.encode(elements)) as giver,
        open_data_connection(giver.server.address) as connection,
    ):
        payload = ask(connection, 5)
        assert not isinstance(payload, ScatteredBuffer)
        assert codec.decode(payload) == elements
    assert giver.arena.bytes == 0


def test_what_lies_elsewhere_is_copied_once_and_aligned():
    elements = [{"a": np.arange(40_000.0) + i, "b": np.full((3, 100, 70), i, np.float32), "c": i} for i in range(5)]
    with (
        Giver(lambda arena, number: codec.encode(elements)) as giver,
        open_data_connection(giver.server.address) as connection,
    ):
        for number in range(4):
            decoded = codec.decode(ask(connection, number))
            assert decoded[0]["a"].ctypes.data % 64 == 0
            for ours, theirs in zip(decoded, elements, strict=True):
                assert ours["c"] == theirs["c"]
                for key in "ab":
                    assert (ours[key] == theirs[key]).all()
                    assert ours[key].flags.aligned
                    assert memory_at(os.getpid(), ours[key].ctypes.data)


def test_batches_that_are_kept_never_change():
    with Giver(batch, limit=6 * MIB) as giver, open_data_connection(giver.server.address) as connection:
        kept = []
        for number in range(60):
            (element,) = codec.decode(ask(connection, number))
            assert element["n"] == number
            if number % 3 == 0:
                kept.append((element["x"][100:], number))
        assert giver.arena.bytes <= giver.arena.limit
        for x, number in kept:
            assert (x == number % 251).all()


def test_a_batch_that_was_let_go_makes_room_for_the_next():
    with Giver(batch, limit=2 * MIB) as giver, open_data_connection(giver.server.address) as connection:
        seen = set()
        for number in range(20):
            (element,) = codec.decode(ask(connection, number))
            seen.add(memory_at(os.getpid(), element["x"].ctypes.data))
            del element
        assert len(seen) <= 2


def test_views_outlive_connection_and_server():
    with Giver(batch) as giver:
        with open_data_connection(giver.server.address) as connection:
            kept = [codec.decode(ask(connection, number))[0]["x"] for number in range(5)]
        with open_data_connection(giver.server.address) as connection:
            for number in range(5, 30):
                ask(connection, number)
    for number, x in enumerate(kept):
        assert (x == number).all()
        x[:] = 0


def test_a_message_is_sent_again_as_it_was():
    """To whoever connects anew, though the first one has written into its batch."""
    messages = {}

    def answer(arena, number):
        if number not in messages:
            messages[number] = batch(arena, number)
        return messages[number]

    with Giver(answer) as giver:
        with open_data_connection(giver.server.address) as connection:
            first = codec.decode(ask(connection, 4))[0]["x"]
        with open_data_connection(giver.server.address) as connection:
            second = codec.decode(ask(connection, 4))[0]["x"]
            third = codec.decode(ask(connection, 4))[0]["x"]
            second[:] = 9
            assert (third == 4).all()
            assert (first == 4).all()


def test_many_pieces_at_once():
    def answer(arena, number):
        return codec.encode([[arena.allocate((300_000,), np.dtype(np.uint8)) for _ in range(100)], number])

    with Giver(answer) as giver, open_data_connection(giver.server.address) as connection:
        for number in range(3):
            arrays, told = codec.decode(ask(connection, number))
            assert told == number
            assert [len(array) for array in arrays] == [300_000] * 100


def test_a_server_elsewhere_is_reached_by_tcp():
    """Where the Unix socket that is named can't be seen, as in a container of its own."""
    with Giver(batch) as giver:
        giver.server._local_name = "nobody-listens-here"
        with open_data_connection(giver.server.address) as connection:
            payload = ask(connection, 3)
            assert not isinstance(payload, ScatteredBuffer)
            assert (codec.decode(payload)[0]["x"] == 3).all()


def test_memory_is_not_shared_unless_asked_for():
    with Giver(batch) as giver, open_data_connection(giver.server.address, local=False) as connection:
        assert not isinstance(ask(connection, 3), ScatteredBuffer)


def test_the_token_is_demanded_there_too():
    with Giver(batch, token="secret") as giver:
        with open_data_connection(giver.server.address, "secret") as connection:
            assert isinstance(ask(connection, 3), ScatteredBuffer)
        sock = socket.socket(socket.AF_UNIX)
        with sock:
            sock.connect(f"\0{giver.server._local_name}")
            with pytest.raises(AuthenticationError):
                exchange_hello(sock, of_token("Secret"), time.monotonic() + 5)


CLIENT = """
import json, sys
import numpy as np
import msgspec
from millrace.elements import codec
from millrace.wire.data.data_connection import open_data_connection

class Note(msgspec.Struct, frozen=True, tag=True):
    number: int = 0

kept = []
with open_data_connection(sys.argv[1]) as connection:
    for number in range(3):
        connection.send(Note(number))
        _, payload = connection.receive(msgspec.msgpack.Decoder(Note))
        kept.append(codec.decode(payload)[0]["x"])
    print(json.dumps([x.ctypes.data for x in kept]), flush=True)
    sys.stdin.readline()
"""


def test_a_client_that_is_killed_gives_everything_back():
    with Giver(batch, limit=4 * MIB) as giver:
        for _ in range(3):
            client = subprocess.Popen(
                [sys.executable, "-c", CLIENT, giver.server.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert client.stdout is not None
            assert memory_at(client.pid, json.loads(client.stdout.readline())[0])
            client.send_signal(signal.SIGKILL)
            client.communicate()
            # The server hears of it a moment later, by the socket's end.
            deadline = time.monotonic() + PROMPTLY_S
            while any(part is None for part in [giver.arena.take(MIB) for _ in range(3)]):
                assert time.monotonic() < deadline
                threading.Event().wait(0.01)
        with open_data_connection(giver.server.address) as connection:
            held = [codec.decode(ask(connection, number))[0]["x"] for number in range(3)]
            assert len({memory_at(os.getpid(), x.ctypes.data) for x in held}) == 3


def test_a_forked_child_keeps_what_it_saw():
    with Giver(batch, limit=3 * MIB) as giver, open_data_connection(giver.server.address) as connection:
        (element,) = codec.decode(ask(connection, 7))
        go, done = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:  # it must end here whatever happens
            try:
                os.read(go[0], 1)
                fine = bool((element["x"] == 7).all())
            except BaseException:
                fine = False
            os.write(done[1], b"y" if fine else b"n")
            os._exit(0)
        del element
        for number in range(8, 20):
            ask(connection, number)
        os.write(go[1], b"x")
        assert os.read(done[0], 1) == b"y"
        os.waitpid(child, 0)
        for each in (*go, *done):
            os.close(each)


# -- garbage -----------------------------------------------------------------------------------------------------------


def preamble_of(**fields):
    encoded = msgspec.msgpack.encode(Preamble(**fields))
    return struct.pack("<I", len(encoded)) + encoded


def received(data, descriptors=()):
    """What a client makes of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
        ours.sendmsg([data], rights)
        ours.shutdown(socket.SHUT_WR)
        with contextlib.closing(FdChannel(theirs)) as end:
            return end.receive(NOTE, bytearray, 1 << 20)


FRAME = struct.pack("<4sHHIQ", MAGIC, LAYOUT, 0, len(msgspec.msgpack.encode(Note(1))), 0) + msgspec.msgpack.encode(
    Note(1)
)


def test_a_frame_without_a_payload():
    assert received(preamble_of() + FRAME)[0] == Note(1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<I", 1 << 30), "preamble of"),
        (struct.pack("<I", 3) + b"abc", "malformed preamble"),
        (preamble_of(segments=[(0, 4096)]) + FRAME, "file descriptors"),
        (preamble_of(ranges=[(0, 0, 4096)]) + FRAME, "file descriptors"),
        (preamble_of(loans=[(0, 5)], parts=[(0, 0, 10)]) + FRAME, "segment 5"),
        (preamble_of(parts=[(0, 0, 10)]) + FRAME, "did not pass"),
        (preamble_of(parts=[(-1, 0, 10)]) + FRAME, "did not pass"),
        (preamble_of(parts=[(-1, 0, 1 << 40)]) + FRAME, "over"),
        (preamble_of(returned=[3]) + FRAME, "gave back loan 3"),
    ],
)
def test_what_cannot_be_is_refused(data, message):
    with pytest.raises(ProtocolError, match=message):
        received(data)


@pytest.mark.parametrize("fields", [{"segments": [(0, MIB)]}, {"ranges": [(0, 0, MIB)]}, {}])
def test_whoever_lends_memory_maps_none_of_a_peer(fields):
    """A client passed a worker segments without end, which it mapped."""
    fd = os.memfd_create("theirs", os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, MIB)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    before = len(os.listdir("/proc/self/fd"))
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.closing(FdChannel(theirs, Arena(MIB))) as worker:
        ours.sendmsg([preamble_of(**fields) + FRAME], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))])
        with pytest.raises(ProtocolError, match="borrows none"):
            worker.receive(NOTE, bytearray, 0)
    assert len(os.listdir("/proc/self/fd")) <= before
    os.close(fd)


class CountingSocket(socket.socket):
    """Counts the calls that send and receive."""

    calls = 0

    def sendmsg(self, *arguments):
        self.calls += 1
        return super().sendmsg(*arguments)

    def recvmsg_into(self, *arguments):
        self.calls += 1
        return super().recvmsg_into(*arguments)

    def recv_into(self, *arguments):
        self.calls += 1
        return super().recv_into(*arguments)


def test_a_frame_that_brings_little_or_nothing_of_its_own_takes_one_call_at_each_end():
    arena = Arena(64 << 20)
    ours, theirs = (CountingSocket(fileno=each.detach()) for each in socket.socketpair())
    with (
        ours,
        theirs,
        contextlib.closing(FdChannel(ours, arena)) as end,
        contextlib.closing(FdChannel(theirs)) as other,
    ):
        lent = arena.allocate((1 << 19,), np.dtype(np.uint8))
        payloads: tuple[list[Any], ...] = ([], [lent], [b"head", lent], [])
        for number, buffers in enumerate(payloads):
            end.send(Note(number), buffers)
            note, payload = other.receive(NOTE, bytearray, 1 << 20)
            assert note == Note(number)
            assert (ours.calls, theirs.calls) == (number + 1, number + 1)
            del payload


def test_descriptors_that_nobody_announced_are_closed():
    mine = os.open("/dev/null", os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProtocolError, match="1 file descriptors came that"):
        received(preamble_of() + FRAME, [mine])
    assert len(os.listdir("/proc/self/fd")) <= before
    os.close(mine)


def test_a_peer_that_goes_on_passing_descriptors_is_cut_off():
    mine = os.open("/dev/null", os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    ours, theirs = socket.socketpair()
    end = FdChannel(theirs)
    with ours, theirs:
        ours.sendall(struct.pack("<I", 1000))
        for _ in range(5):
            ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [mine] * 50))])
        with pytest.raises(ProtocolError, match="more file descriptors"):
            end.receive(NOTE, bytearray, 1 << 20)
        end.close()
    assert len(os.listdir("/proc/self/fd")) <= before
    os.close(mine)


@pytest.mark.parametrize("size", [5, 37, 700, 4096])
def test_preambles_and_descriptors_find_each_other_however_they_arrive(size):
    """Frames with and without segments, of which a read gives so many bytes at most."""
    arena = Arena(64 << 20)
    ours, theirs = socket.socketpair()
    sending, receiving = FdChannel(ours, arena), FdChannel(theirs)
    receiving._ahead = ReadAhead(theirs, receiving._fetch, size)
    rng = np.random.default_rng(0)
    with ours, theirs:
        sent = []
        for number in range(40):
            batch = arena.allocate((1 << 19,), np.dtype(np.uint8)) if rng.random() < 0.5 else np.empty(300, np.uint8)
            batch[:] = number
            sending.send(Note(number), [batch])
            sent.append(batch)
        held = []
        for number, batch in enumerate(sent):
            note, payload = receiving.receive(NOTE, bytearray, 1 << 20)
            assert note == Note(number)
            start = payload.view(0, 300) if isinstance(payload, ScatteredBuffer) else payload[:300]
            assert bytes(start) == batch[:300].tobytes()
            held.append(payload)
        assert arena.bytes > 1 << 20, "segments were passed"
    held.clear()
    receiving.close()
    sending.close()


@pytest.fixture
def block(tmp_path):
    """A file of some blocks' size that is mapped here."""
    path = tmp_path / "block"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, 4 * MIB, np.uint8).tobytes())
    return OpenFile(os.open(path, os.O_RDONLY))


@pytest.mark.skipif(not file_mapping.AVAILABLE, reason="only newer Linux can tell whether a page is there")
def test_what_lies_in_a_file_is_mapped_by_the_client(block, tmp_path):
    data = np.fromfile(tmp_path / "block", np.uint8)

    def answer(_, number):
        x = file_mapping.snapshot(block, MIB // 2, 3 * MIB)
        assert x is not None
        if number:
            x[number:] = 7  # as a function that a user wrote may do
        return codec.encode([{"x": x, "y": np.arange(MIB)}])

    with Giver(answer) as giver, open_data_connection(giver.server.address) as connection:
        kept = []
        for number in (0, 1000, 0):
            (element,) = codec.decode(ask(connection, number))
            expected = data[MIB // 2 : 3 * MIB].copy()
            expected[number or len(data) :] = 7
            assert np.array_equal(element["x"], expected)
            assert np.array_equal(element["y"], np.arange(MIB))
            inode, *_ = file_at(os.getpid(), element["x"].ctypes.data)
            assert (inode == os.fstat(block.fd).st_ino) == (number == 0)
            element["x"][:] = 1  # is one's own
            kept.append(element)
        assert np.array_equal(np.fromfile(tmp_path / "block", np.uint8), data)


def ends(sending=socket.socket, receiving=socket.socket):
    """Both ends of a connection, with sockets of these kinds."""
    ours, theirs = socket.socketpair()
    one = sending(fileno=ours.detach())
    other = receiving(fileno=theirs.detach())
    return FdChannel(one, Arena(64 * MIB)), FdChannel(other), one, other


@pytest.mark.skipif(not file_mapping.AVAILABLE, reason="only newer Linux can tell whether a page is there")
@pytest.mark.parametrize("count", [3, 12, 80])
def test_files_and_segments_together_are_not_more_than_a_frame_can_have(block, monkeypatch, count):
    monkeypatch.setattr(file_mapping, "_SHOWN_BYTES", 20 << 10)
    x = file_mapping.snapshot(block, 0, 4 * MIB)
    assert x is not None
    sending, receiving, one, other = ends()
    with one, other:
        parts = [x[at : at + (24 << 10)] for at in range(0, count * (48 << 10), 48 << 10)][::-1]
        own = np.arange(MIB)
        thread = threading.Thread(target=sending.send, args=(Note(1), [*parts, own]))
        thread.start()
        _, payload = receiving.receive(NOTE, bytearray, 64 * MIB)
        thread.join()
        whole = np.concatenate([*parts, own.view(np.uint8)])
        assert np.array_equal(payload.view(0, payload.nbytes), whole)
        receiving.close()
        sending.close()


@pytest.mark.parametrize(("most", "lent"), [(100, 0), (4000, 10)])
def test_more_pieces_than_a_preamble_may_name_go_with_the_frame(monkeypatch, most, lent):
    monkeypatch.setattr(fd_passing, "MAX_PREAMBLE_BYTES", most)
    sending, receiving, one, other = ends()
    with one, other:
        parts = [sending._arena.allocate((MIB,), np.dtype(np.uint8)) for _ in range(10)]
        for number, part in enumerate(parts):
            part[:] = number
        thread = threading.Thread(target=sending.send, args=(Note(1), parts))
        thread.start()
        _, payload = receiving.receive(NOTE, bytearray, 64 * MIB)
        thread.join()
        whole = payload.view(0, payload.nbytes) if lent else np.frombuffer(payload, np.uint8)
        assert np.array_equal(whole, np.concatenate(parts))
        assert len(sending._lent) == lent
        receiving.close()
        sending.close()


class CrowdedSocket(socket.socket):
    """Others have as many descriptors waiting as the system allows."""

    refused = 0

    def sendmsg(self, buffers, ancillary=(), *rest):
        if any("memfd:" not in os.readlink(f"/proc/self/fd/{each}") for *_, data in ancillary for each in data):
            self.refused += 1
            raise OSError(errno.ETOOMANYREFS, "too many references")
        return super().sendmsg(buffers, ancillary, *rest)


@pytest.mark.skipif(not file_mapping.AVAILABLE, reason="only newer Linux can tell whether a page is there")
def test_files_are_copied_while_the_system_passes_no_more(block, tmp_path):
    x = file_mapping.snapshot(block, 0, 2 * MIB)
    sending, receiving, one, other = ends(sending=CrowdedSocket)
    with one, other:
        own = np.arange(MIB)
        for _ in range(2):
            thread = threading.Thread(target=sending.send, args=(Note(1), [x, own]))
            thread.start()
            _, payload = receiving.receive(NOTE, bytearray, 64 * MIB)
            thread.join()
            assert np.array_equal(payload.view(0, 2 * MIB), np.fromfile(tmp_path / "block", np.uint8, 2 * MIB))
            assert np.array_equal(payload.view(2 * MIB, 10 * MIB).view(np.int64), own)
        assert isinstance(one, CrowdedSocket)
        assert one.refused == 2
        receiving.close()
        sending.close()


class FullSocket(socket.socket):
    """Of a process that can have no more descriptors."""

    def recvmsg_into(self, buffers, *rest):
        received, _, flags, address = super().recvmsg_into(buffers, *rest)
        return received, [], flags | socket.MSG_CTRUNC, address


def test_a_process_without_a_free_descriptor_is_told_so():
    sending, receiving, one, other = ends(receiving=FullSocket)
    with one, other:
        sending.send(Note(1))
        with pytest.raises(OSError, match="not all file descriptors") as caught:
            receiving.receive(NOTE, bytearray, MIB)
        assert caught.value.errno == errno.EMFILE


def test_ranges_far_larger_than_what_may_come_are_refused(block):
    with pytest.raises(ProtocolError, match="far more"):
        received(preamble_of(ranges=[(5, 0, 3 * MIB)], parts=[(5, 0, 20)]) + FRAME, [block.fd])


@pytest.mark.parametrize(("start", "size"), [(3 * MIB + 1, MIB), (4 * MIB, 1), (-1, 10), (0, -1), (0, 0)])
def test_a_range_that_the_file_has_not_is_refused(block, start, size):
    with pytest.raises(ProtocolError, match="does not hold"):
        received(preamble_of(ranges=[(5, start, size)], parts=[(5, 0, 10)]) + FRAME, [block.fd])


def test_parts_outside_a_range_are_refused(block):
    with pytest.raises(ProtocolError, match="did not pass"):
        received(preamble_of(ranges=[(5, 0, 100)], parts=[(5, 90, 20)]) + FRAME, [block.fd])


def test_memory_that_is_none_is_refused():
    mine = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises((ProtocolError, OSError)):
        received(preamble_of(segments=[(0, 4096)]) + FRAME, [mine])
    os.close(mine)


@pytest.mark.parametrize("stop", [0, 2, 5, 12])
def test_a_peer_that_ends_in_the_middle(stop):
    with pytest.raises(EOFError, match="closed the connection"):
        received((preamble_of(returned=[1, 2, 3, 4, 5, 6, 7, 8]) + FRAME)[:stop])


def test_close_wakes_both_ends():
    with Giver(batch) as giver:
        connection = open_data_connection(giver.server.address)
        waiting = threading.Event()

        def receive():
            waiting.set()
            with pytest.raises(ServiceUnreachableError):
                connection.receive(NOTE)

        thread = threading.Thread(target=receive)
        thread.start()
        waiting.wait(PROMPTLY_S)
        connection.close()
        thread.join(PROMPTLY_S)
        assert not thread.is_alive()


# -- several readers of the same bytes ---------------------------------------------------------------------------------

READER = """
import sys
import msgspec
from millrace.elements import codec
from millrace.wire.data.data_connection import open_data_connection

class Note(msgspec.Struct, frozen=True, tag=True):
    number: int = 0

decoder, held = msgspec.msgpack.Decoder(Note), []
with open_data_connection(sys.argv[1]) as connection:
    for line in sys.stdin:
        word, number = line.split()
        if word == "read":
            connection.send(Note(int(number)))
            _, payload = connection.receive(decoder)
            held = codec.decode(payload)
            del payload
        elif word == "write":
            held[0]["x"][:] = int(number)
        elif word == "drop":
            held = []
            connection.send(Note(-1))
            connection.receive(decoder)
        print(*(int(each["x"].min()) + int(each["x"].max()) for each in held), flush=True)
"""


class OtherProcess:
    """A reader in a process of its own, which says the sum of the least and the largest byte that it sees."""

    def __init__(self, address):
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def does(self, word, number=0):
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word} {number}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_what_one_process_writes_into_shared_bytes_no_other_one_sees():
    made: list[Any] = []

    def answer(arena, number):
        while number >= len(made):
            made.append(batch(arena, 10 * len(made) + 10))
        return made[number] if number >= 0 else []

    with (
        Giver(answer, shared=True) as giver,
        OtherProcess(giver.server.address) as one,
        OtherProcess(giver.server.address) as two,
    ):
        assert one.does("read", 0) == "20"
        assert one.does("write", 99) == "198"
        assert two.does("read", 0) == "20", "the other one writes before this one reads"
        assert two.does("write", 50) == "100"
        assert one.does("write", 98) == "196", "and both at a time"
        assert two.does("look") == "100"
        used = giver.arena.bytes
        assert used < 2 * MIB, "they have the same memory"

        made[0] = None
        assert one.does("drop") == ""
        answer(giver.arena, 1)
        assert giver.arena.bytes > used, "the other one still looks at it"
        assert two.does("drop") == ""
        before = giver.arena.bytes
        assert one.does("read", 2) == two.does("read", 2) == "60", "memory that both wrote to holds another batch"
        assert giver.arena.bytes == before
