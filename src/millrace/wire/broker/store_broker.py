"""Store broker: opens and publishes blocks for a worker that runs as another user than the store's."""

from __future__ import annotations

import logging
import socket
from contextlib import ExitStack

import msgspec

from millrace.blocks.store_benchmark import POINT
from millrace.blocks.stores.block_store import check_names
from millrace.blocks.stores.file_store import FileDraft, FileStore
from millrace.errors import BlockMissingError, CacheError, MillraceError, ProtocolError, StoreFullError
from millrace.message_budget import MALFORMED, check_containers
from millrace.sources.storage import is_remote, local_path
from millrace.wire.broker import broker_messages as msg

MOST_DRAFTS = 256
"""Most drafts of a worker at a time: each holds a descriptor."""
ERRORS: dict[str, type[CacheError]] = {
    error.__name__: error for error in (BlockMissingError, StoreFullError, CacheError)
}
"""Errors that a worker is told by their names."""

_decoder: msgspec.msgpack.Decoder[msg.Request] = msgspec.msgpack.Decoder(msg.Request)
_logger = logging.getLogger(__name__)


class StoreBroker:
    """Broker of one worker; :meth:`serve` is its whole life, on a thread of its own.

    User code runs in the worker, so whatever comes may be its doing. It gets what the worker itself needs: blocks whose
    names it knows, for reading, and new ones. It changes none that is there, and lists none.

    Args:
        sock: end of a pair of ``SOCK_SEQPACKET`` sockets; closed by the broker.
        scratch: point of which the worker may replace and remove what it has published: that of measurements.
    """

    def __init__(self, sock: socket.socket, scratch: str = POINT) -> None:
        self._sock, self._scratch = sock, scratch
        self._encoder = msgspec.msgpack.Encoder()
        self._store: FileStore | None = None
        self._location: str | None = None
        self._drafts: dict[int, tuple[FileDraft, ExitStack]] = {}
        self._measured: set[str] = set()
        self._next = 0

    def serve(self) -> None:
        """BrokerAnswer until the worker has ended, or says what no worker says; then its drafts are removed."""
        try:
            with self._sock:
                while packet := self._sock.recv(msg.PACKET_BYTES):
                    self._answer(packet)
        except (ConnectionError, ProtocolError, *MALFORMED) as error:
            _logger.warning("hung up on a worker of another user: %s", error)
        finally:
            for _, stack in self._drafts.values():
                stack.close()
            self._drafts.clear()

    def _answer(self, packet: bytes) -> None:
        request = decode_request(packet)
        with ExitStack() as stack:
            descriptors: list[int] = []
            try:
                answer = self._do(request, descriptors, stack)
            except MillraceError as error:
                kind = type(error).__name__
                answer = msg.BrokerAnswer(error=kind if kind in ERRORS else CacheError.__name__, message=str(error))
            socket.send_fds(self._sock, [self._encoder.encode(answer)], descriptors)

    def _do(self, request: msg.Request, descriptors: list[int], stack: ExitStack) -> msg.BrokerAnswer:
        match request:
            case msg.UseStore(location=location):
                self._use(location)
            case msg.FetchBlock(point=point, name=name):
                block = self._there().open(point, name)
                stack.callback(block.close)
                descriptors.append(block.fileno())
                return msg.BrokerAnswer(location=block.location)
            case msg.BeginDraft():
                return msg.BrokerAnswer(self._begin())
            case msg.WriteDraft(draft=number, data=data):
                self._draft(number).write(data)
            case msg.PublishDraft(draft=number, point=point, name=name):
                self._publish(number, point, name)
            case msg.DiscardDraft(draft=number):
                if number in self._drafts:
                    self._drafts.pop(number)[1].close()
            case msg.DeleteBlock(point=point, name=name):
                check_names(point, name)
                if point == self._scratch and name in self._measured:
                    self._there().delete(point, name)
                    self._measured.discard(name)
            case msg.AskRoom():
                free = self._there().free_bytes()
                return msg.BrokerAnswer(-1 if free is None else free)
        return msg.BrokerAnswer()

    def _use(self, location: str) -> None:
        """Take the first location, which comes before any user code; later ones may be user code's."""
        if self._location not in {None, location}:
            raise CacheError("the store of a worker of another user is the first that it was told of, until it ends")
        self._location = location
        if self._store is None and location and not is_remote(location):
            self._store = FileStore(local_path(location))

    def _there(self) -> FileStore:
        if self._store is None:
            raise CacheError("this worker was told of no folder for blocks")
        return self._store

    def _begin(self) -> int:
        if len(self._drafts) == MOST_DRAFTS:
            raise CacheError(f"more than {MOST_DRAFTS} drafts at a time")
        stack = ExitStack()
        draft = stack.enter_context(self._there().draft())
        self._next += 1
        self._drafts[self._next] = draft, stack
        return self._next

    def _publish(self, number: int, point: str, name: str) -> None:
        """Publish a draft; what is there stays, but for what this worker has measured with."""
        draft = self._draft(number)
        if point == self._scratch and name in self._measured:
            draft.publish(point, name)
        elif draft.publish_new(point, name) and point == self._scratch:
            self._measured.add(name)

    def _draft(self, number: int) -> FileDraft:
        if number not in self._drafts:
            raise CacheError(f"there is no draft {number}")
        return self._drafts[number][0]


def decode_request(packet: bytes) -> msg.Request:
    """Decode what may come of user code.

    Raises:
        ProtocolError, msgspec.MsgspecError, UnicodeDecodeError: it is no request.
    """
    check_containers(packet, "a request for the store")
    return _decoder.decode(packet)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Make a pair of sockets: the broker's end, and the worker's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
