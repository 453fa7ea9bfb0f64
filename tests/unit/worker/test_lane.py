"""What runs leases for one consumer."""

import threading
from types import SimpleNamespace

from millrace.control.messages import LeaseTask, TaskRef
from millrace.wire.delivery import Read
from millrace.worker.buffers import Message
from millrace.worker.lanes import Lane


def test_who_may_not_send_anything_says_what_there_is_however_little():
    """Else elements that take long lie in the worker until they fill a message, and the consumer waits for them."""
    lease, found, over = LeaseTask(TaskRef("a", 0, 0), 1, 0), [], threading.Event()

    def run(lane: Lane, lease: LeaseTask) -> None:
        lane.begin(lease, 0, "")
        found.append(lane.hungry)  # nobody has asked
        lane.told(outlet, Read(0, 0, 1))
        found.append(lane.hungry)
        lane.put(lease, Message(0, 1, [], 10))
        found.append(lane.hungry)  # one is enough to say so
        over.set()

    lane, outlet = Lane("a", 0, 1000, 1000, in_order=False, run=run), SimpleNamespace(close=lambda: None)
    lane.attach(outlet)
    lane.submit(lease)
    assert over.wait(10)
    lane.close()
    assert lane.join(10)
    assert found == [False, True, False]
