"""Targets: every decoder that sees bytes from elsewhere, with valid messages and the errors that it may raise."""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from tests.fuzz.samples import packed

from millrace.blocks.block_format import MAGIC as BLOCK_MAGIC
from millrace.blocks.block_format import TRAILER, VERSION, Index, decode_index, encode_index
from millrace.blocks.block_keys import KEY_BYTES
from millrace.blocks.block_reader import BlockIndex, BlockReader
from millrace.control.journal.replay import AnyEvent
from millrace.control.journal.snapshot import Snapshot, load
from millrace.control.state.settings import Settings
from millrace.control.state.state import State
from millrace.dispatcher.journal_file import decode_events
from millrace.elements import codec
from millrace.errors import (
    AuthenticationError,
    CacheError,
    CodecError,
    ProtocolError,
    ServiceUnreachableError,
    ShippingError,
    VersionMismatchError,
)
from millrace.functions import bundles
from millrace.graph import nodes, serialize
from millrace.graph.operator_graph import Graph
from millrace.message_budget import MALFORMED, check_containers
from millrace.planning.columns import integers
from millrace.planning.item_hashes import ItemHashes
from millrace.planning.split_table import Split, files_table, pack_tables, positions_table, splits_table, unpack_tables
from millrace.protocol import data_messages, source_cache_messages
from millrace.protocol import messages as msg
from millrace.protocol.bounds import checker
from millrace.protocol.cache_server_messages import FromCacheServer
from millrace.protocol.caller import ADMINISTRATOR
from millrace.sources.digests.digest_file import DigestAbout, DigestReader, DigestRows, write_digest
from millrace.wire.auth import OWN
from millrace.wire.broker import broker_messages
from millrace.wire.broker.store_broker import decode_request
from millrace.wire.control import challenges, rpc
from millrace.wire.data import data_keys, handshake
from millrace.wire.data.fd_passing import FdChannel, Preamble
from millrace.wire.data.frames import encode_head, receive_frame, send_frame
from millrace.wire.token_keys import keys_of
from millrace.wire.token_registry import TokenEntry

_LIMIT = 1 << 16


class Target(NamedTuple):
    """A decoder.

    Attributes:
        corpus: valid messages.
        decode: the decoder.
        allowed: what it may raise.
    """

    corpus: Callable[[], Sequence[bytes]]
    decode: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...]


_OF_DATA = data_messages.ToServer | data_messages.ToReader
_OF_CACHES = source_cache_messages.CacheRequest | source_cache_messages.CacheAnswer
_FRAMES = msgspec.msgpack.Decoder(_OF_DATA | _OF_CACHES)


class Stream:
    """A socket that a message comes from, and then its end."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def recv_into(self, buffer: Any, nbytes: int, _flags: int = 0, /) -> int:
        count = min(nbytes, len(self._data))
        memoryview(buffer).cast("B")[:count] = self._data[:count]
        self._data = self._data[count:]
        return count

    def recvmsg_into(self, buffers: list[memoryview], *_: int) -> tuple[int, list[Any], int, None]:
        return self.recv_into(buffers[0], buffers[0].nbytes), [], 0, None


class Sent:
    """A socket that keeps what is sent."""

    def __init__(self) -> None:
        self.data = b""

    def sendmsg(self, buffers: Any, /) -> int:
        before = len(self.data)
        self.data += b"".join(buffers)
        return len(self.data) - before


# -- the wire ----------------------------------------------------------------------------------------------------------


def _frames() -> list[bytes]:
    found = []
    for compression in (None, "lz4", "zstd"):
        sent = Sent()
        header = data_messages.Delivery(1, 2, 3, 4, 5)
        send_frame(sent, header, [bytes(5000), b"x" * 100], compression)
        found.append(sent.data)
    encoded = packed(_OF_DATA) + packed(_OF_CACHES)
    empty = encode_head(data_messages.Credit(1), 0)
    size = len(msgspec.msgpack.encode(data_messages.Credit(1)))
    return found + [empty[: -size - 12] + len(each).to_bytes(4, "little") + bytes(8) + each for each in encoded]


def _frame(data: bytes) -> None:
    receive_frame(Stream(data), _FRAMES, limit=_LIMIT)


def _preambles() -> list[bytes]:
    frame = _frames()[-1]
    encoded = [*packed(Preamble), msgspec.msgpack.encode(Preamble()), msgspec.msgpack.encode(Preamble([], [], [], [1]))]
    return [len(each).to_bytes(4, "little") + each + frame for each in encoded]


def _preamble(data: bytes) -> None:
    channel: Any = FdChannel(Stream(data))  # type: ignore[arg-type]
    channel.receive(_FRAMES, bytearray, _LIMIT)
    channel.close()


def _greetings() -> list[bytes]:
    return packed(handshake.Hello) + packed(handshake.Welcome) + packed(handshake.Answer) + packed(data_messages.Open)


def _greeting(data: bytes) -> None:
    head = encode_head(data_messages.Credit(1), 0)
    size = len(msgspec.msgpack.encode(data_messages.Credit(1)))
    framed = head[: -size - 12] + len(data).to_bytes(4, "little") + bytes(8) + data
    decoders: list[Any] = [handshake._hello_decoder, handshake._welcome_decoder, handshake._answer_decoder]
    for decoder in decoders:
        with contextlib.suppress(ProtocolError):
            receive_frame(Stream(framed), decoder, limit=0, header_limit=16 << 10)
    data_keys.read_claims(data)


_TOKEN = TokenEntry(keys_of("token"), ADMINISTRATOR)
_SERVICE = challenges.Challenges(lambda name: _TOKEN)


def _proof(data: bytes) -> None:
    shown = challenges.read_proof({challenges.PROOF: data})
    with contextlib.suppress(AuthenticationError, ServiceUnreachableError):
        _SERVICE.check("method", OWN, shown)


_FROM_PEERS = msg.FromWorker | msg.FromConsumer | FromCacheServer
_TO_DISPATCHER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_FROM_PEERS)
_FROM_DISPATCHER = msgspec.msgpack.Decoder(msg.ToWorker), msgspec.msgpack.Decoder(msg.ToConsumer)
_check = checker(_FROM_PEERS)


def _control(data: bytes) -> None:
    check_containers(data, "a message")
    _check(_TO_DISPATCHER.decode(data))


def _answers() -> list[bytes]:
    return packed(msg.ToWorker) + packed(msg.ToConsumer)


def _answer(data: bytes) -> None:
    decoders: list[Any] = [*_FROM_DISPATCHER]
    for decoder in decoders:
        with contextlib.suppress(*MALFORMED):
            decoder.decode(data)
    rpc.error_in([(rpc._FAILURE_KEY, data)])


# -- data --------------------------------------------------------------------------------------------------------------


def _elements() -> list[bytes]:
    mixed: list[list[Any]] = [
        [{"image": np.arange(12, dtype=np.uint8).reshape(3, 4), "label": 3}] * 2,
        [np.arange(6.0)],
        [np.zeros(2), np.zeros(3)],
        [1, 2.5, None, "text", b"bytes", True, 1j, 1 << 80, "\udc80"],
        [{}, {"a": [(), [1]]}, {"b": np.float32(1), "c": np.str_("x"), "d": np.bytes_(b"y")}],
        [np.zeros(2, [("a", "i4"), ("b", "U2", (2,))]), np.array(["ab", "c"]), np.datetime64("2020-01-01")],
        [[None] * 5] * 3,
    ]
    return [b"".join(codec.encode(each)) for each in mixed]


def _element(data: bytes) -> None:
    own = data[-1:] > b"\x80"
    codec.decode(bytearray(data), own=own)
    codec.decode(data, 1, 2)
    codec.row_layout(np.frombuffer(data, np.uint8))


def _tables() -> list[bytes]:
    splits = [Split("a/b", 0, 10, 0, 5, 10, "v"), Split("a/c", 3, -1, -1, -1, 7)]
    placed = ItemHashes(bytes(96), *map(integers, ([0, 1], [1, 2], [0, 3, 5], [2, 1, 1])))
    tables = [
        {0: positions_table(1000)},
        {0: files_table((f"dir/file-{number:03d}", number, str(number)) for number in range(40))},
        {1: splits_table(splits), 4: positions_table(0)},
        {2: msgspec.structs.replace(splits_table(splits), items=placed)},
    ]
    before = [{0: {"cheap": False, "count": 5, "splits": splits}}, {1: {"cheap": True, "count": 1, "locations": ["a"]}}]
    return [pack_tables(each) for each in tables] + [msgspec.msgpack.encode(each) for each in before]


def _table(data: bytes) -> None:
    for table in unpack_tables(data).values():
        assert len(list(table.splits)) == len(table.splits)
        assert len(list(table.names)) == len(table.names)


def _digests() -> list[bytes]:
    hashed = np.arange(96, dtype=np.uint8).reshape(3, 32)
    kinds, sizes, stamps = np.array([0, 1], np.uint8), np.array([3, 90]), np.array([7, 0], np.uint64)
    places = np.array([0, 1, 3]), np.array([0, 12, 40]), np.array([3, 20, 50])
    rows = DigestRows([b"/data/a", b"s3://b/c.tar"], kinds, sizes, stamps, *places, hashed)
    found = []
    for columns, parts in ((None, [rows]), (("x", "y"), [rows, rows])):
        file = io.BytesIO()
        write_digest(file, DigestAbout(columns, 2 * len(parts), 3 * len(parts)), parts)
        found.append(file.getvalue())
    return found


def _digest(data: bytes) -> None:
    for rows in DigestReader(io.BytesIO(data), len(data)):
        assert len(rows.hashes) == len(rows.offsets) == rows.firsts[-1]


class _Block:
    def __init__(self, data: bytes) -> None:
        self._data, self.name, self.location, self.nbytes = data, "", "memory", len(data)

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        return [np.frombuffer(bytearray(self._data[start:stop]), np.uint8) for start, stop in ranges]

    def version(self) -> int:
        return 1


_PAYLOAD = b"".join(_elements()[:1])
_PAYLOAD += bytes(-len(_PAYLOAD) % 64)


def _indexes() -> list[bytes]:
    column = np.array([2], "<u4").tobytes()
    checksum = np.array([zlib.crc32(_PAYLOAD)], "<u4").tobytes()
    size, none = (np.array([value], "<u8").tobytes() for value in (len(_PAYLOAD), 0))
    whole = Index(bytes(2 * KEY_BYTES), np.array([1, 1], "<u4").tobytes(), column, size, none, checksum)
    return [encode_index(whole), encode_index(msgspec.structs.replace(whole, compression="lz4", writer="red"))]


def _index(data: bytes) -> None:
    """Read a block with this index, under the name and with the checksum that it takes to be looked at."""
    trailer = TRAILER.pack(BLOCK_MAGIC, VERSION, zlib.crc32(data), len(data))
    block: Any = _Block(_PAYLOAD + data + trailer)
    try:
        block.name = BlockIndex(decode_index(data)).name
    except (msgspec.MsgspecError, ValueError):
        block.name = "none"
    reader = BlockReader(block)
    reader.read(range(min(len(reader.index), 10)))


# -- what the dispatcher keeps -----------------------------------------------------------------------------------------


def _events() -> list[bytes]:
    return [b"\x91" + each for each in packed(AnyEvent)]


def _snapshots() -> list[bytes]:
    from tests.unit.control.control_driver import FakePlan, Service

    service = Service(FakePlan(8))
    service.add_worker("w0")
    service.join("c")
    for _ in range(3):
        service.work()
    from millrace.control.journal.snapshot import dump

    return [dump(service.state), dump(State(Settings("1", "3"))), *packed(Snapshot)]


def _snapshot(data: bytes) -> None:
    load(State(Settings("1", "3")), data)


def _graphs() -> list[bytes]:
    few = nodes.Take(inputs=(nodes.Range(start=0, stop=10, step=1),), count=3)
    files = nodes.FromFiles(patterns=("a", "b*"))
    mapped = nodes.Map(inputs=(files,), fn=nodes.Opaque(len, "len", "here"), num_parallel_calls=3)
    padded = nodes.PaddedBatch(inputs=(mapped,), batch_size=4, padded_shapes={"a": (None, 3)}, padding_values=0.5)
    both = nodes.WithOptions(inputs=(nodes.Zip(inputs=(padded, files), keys=("x", "y")),), on_error="skip")
    return [serialize.pack(Graph(each))[0] for each in (few, both)]


def _graph(data: bytes) -> None:
    serialize.unpack(data)


def _bundles() -> list[bytes]:
    return [bundles.pack([1, "a"], ["one", "two"])]


TARGETS = {
    "frames": Target(_frames, _frame, (ProtocolError, VersionMismatchError, EOFError)),
    "preambles": Target(_preambles, _preamble, (ProtocolError, VersionMismatchError, EOFError)),
    "greetings": Target(_greetings, _greeting, (ProtocolError,)),
    "proofs": Target(lambda: packed(challenges.Proof), _proof, (ProtocolError,)),
    "control messages": Target(lambda: packed(_FROM_PEERS), _control, (*MALFORMED, ProtocolError)),
    "answers": Target(_answers, _answer, ()),
    "elements": Target(_elements, _element, (CodecError,)),
    "tables": Target(_tables, _table, (ProtocolError,)),
    "digests": Target(_digests, _digest, (ValueError,)),
    "blocks": Target(_indexes, _index, (CacheError,)),
    "journal": Target(_events, decode_events, MALFORMED),
    "snapshots": Target(_snapshots, _snapshot, (ProtocolError,)),
    "graphs": Target(_graphs, _graph, (ProtocolError,)),
    "broker": Target(lambda: packed(broker_messages.Request), decode_request, (*MALFORMED, ProtocolError)),
    "bundles": Target(_bundles, bundles._open, (ShippingError, VersionMismatchError)),
}
