import queue
from typing import Any, cast

import pytest

from millrace.errors import ProtocolError
from millrace.protocol.data_messages import Delivery, Open, Short
from millrace.wire.data.data_keys import consumer_credential
from millrace.worker.delivery_server import PeerConnection, with_end

OUTPUTS = Delivery(0, 3, 7, index=4, count=2, changed="a file")
END = Delivery(0, 3, 7, index=6, count=0, last=True, skipped=5, changed="a file", left_out=2)


def test_the_end_of_a_task_joins_its_last_outputs():
    assert with_end(OUTPUTS, END) == Delivery(0, 3, 7, 4, 2, last=True, skipped=5, changed="a file", left_out=2)


@pytest.mark.parametrize(
    "following",
    [
        Delivery(0, 3, 7, index=6, count=1, last=True),
        Delivery(0, 3, 7, index=7, count=0, last=True),
        Delivery(0, 3, 8, index=6, count=0, last=True),
        Delivery(0, 4, 7, index=6, count=0, last=True),
        Delivery(1, 3, 7, index=6, count=0, last=True),
        Short(100, 1, 0),
    ],
)
def test_nothing_else_joins_them(following):
    assert with_end(OUTPUTS, following) is None
    assert with_end(following, END) is None or following == OUTPUTS


class Wire:
    """A connection that queues what is sent before the sender comes to it."""

    peer = "reader"
    claims = consumer_credential(b"", Open("job", 0)).claims

    def __init__(self):
        self.sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.closed: queue.SimpleQueue[None] = queue.SimpleQueue()

    def send(self, header, buffers, *, shared):
        self.sent.put((header, [*buffers, "shared"] if shared else list(buffers)))

    def receive(self, kinds, limit):
        self.closed.get()
        raise ProtocolError("it is closed")

    def close(self):
        self.closed.put(None)


def test_what_lies_ready_is_sent_in_order_with_ends_joined():
    wire = Wire()
    peer = PeerConnection(cast("Any", wire))
    other = Delivery(0, 5, 9, index=0, count=1)
    for header, buffers in ((OUTPUTS, [b"ab"]), (END, ()), (other, [b"c"]), (Short(100, 1, 0), ()), (END, ())):
        peer.send(header, buffers)
    peer.send(other, [b"d"], shared=True)
    wire.close()
    with pytest.raises(ProtocolError):
        peer.serve(lambda item: None)
    found = [wire.sent.get_nowait() for _ in range(wire.sent.qsize())]
    joined = with_end(OUTPUTS, END)
    assert found == [(joined, [b"ab"]), (other, [b"c"]), (Short(100, 1, 0), []), (END, []), (other, [b"d", "shared"])]
