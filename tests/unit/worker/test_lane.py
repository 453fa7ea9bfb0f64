"""What runs leases for one consumer."""

import threading
from types import SimpleNamespace

from millrace.protocol.data_messages import Credit, Read
from millrace.protocol.messages import LeaseTask, TaskRef
from millrace.worker.consumer_lane import Lane
from millrace.worker.outbox import Message


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


def test_messages_are_as_large_as_the_consumer_has_room_for_a_few():
    mib = 1 << 20
    lane = Lane("a", 0, 64 * mib, 64 * mib, in_order=False, run=lambda *_: None)
    outlets = [SimpleNamespace(close=lambda: None) for _ in range(2)]

    def after(share: int) -> int:
        lane.told(outlets[0], Credit(1, share))
        return lane.message_bytes

    lane.attach(outlets[0])
    assert lane.message_bytes == mib, "nothing is known of it yet"
    assert [after(share) for share in (128 * mib, 12 * mib, mib, 0)] == [4 * mib, 3 * mib, mib, mib]
    assert after(16 * mib) == 4 * mib
    lane.resize(2 * mib)
    assert lane.message_bytes == mib // 2, "a few have to fit here, too"
    lane.resize(64 * mib)
    lane.attach(outlets[1])
    assert lane.message_bytes == mib, "another consumer may have another share"
    lane.close()
    assert lane.join(10)
