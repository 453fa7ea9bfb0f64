"""What a consumer tells of its reading, by two threads: the one that reads, and the one that beats."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millrace.client.job_session import Conversation
from millrace.client.notices import Notices
from millrace.client.read_rate import Rates
from millrace.client.rerun_check import Reruns
from millrace.protocol.messages import BeginEpoch, ConsumerReport, EpochBegun, TaskProgress
from millrace.protocol.reports import Flow

READ = [TaskProgress(4, 70, complete=True)]


class Session:
    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)


class Feed:
    """The reader goes on to the next epoch after the beating thread took what was read, before that was sent."""

    arrived = (70, True)
    came = (Flow(), Flow())

    def __init__(self, conversation, reader):
        self._conversation, self._reader = conversation, reader
        self.asked = []

    def progress(self, *, everything=False):
        def send():
            if self._conversation._sending.acquire(blocking=False):  # nothing keeps it from overtaking
                self._conversation._send(BeginEpoch(1))
                self._conversation._sending.release()

        self._reader.submit(send).result()
        self.asked.append(everything)
        return 0, READ


@pytest.fixture
def conversation():
    conversation: Any = Conversation.__new__(Conversation)
    conversation._sending = threading.RLock()
    conversation._session = Session()
    conversation._reruns, conversation._wanted, conversation.left_out = Reruns(), 0, 0
    conversation._taken = False
    conversation.notices = Notices(lambda error: pytest.fail(str(error)))
    conversation._measures = {0: lambda: (70, Rates())}
    with ThreadPoolExecutor(1) as reader:
        conversation.feed = Feed(conversation, reader)
        yield conversation


def test_leaving_an_epoch_does_not_overtake_what_was_read_of_it(conversation):
    conversation.report()
    (report,) = conversation._session.sent
    assert isinstance(report, ConsumerReport)
    assert report.tasks == READ


def test_what_ctrl_c_kept_from_being_sent_is_told_with_the_next_report(conversation):
    def interrupted():
        raise KeyboardInterrupt

    conversation._measures = {0: interrupted}
    with pytest.raises(KeyboardInterrupt):
        conversation.report()
    conversation._measures = {0: lambda: (70, Rates())}
    conversation.report()
    conversation.report()
    assert conversation.feed.asked == [False, True, False]
    assert [report.tasks for report in conversation._session.sent] == [READ, READ]


class Epochs:
    """What lies ready of the epoch that is read."""

    came = (Flow(), Flow())
    closed = False

    def __init__(self):
        self.number = 0

    def progress(self, *, everything=False):
        return (self.number, READ) if self.number >= 0 else (-1, [])

    @property
    def arrived(self):
        return (100, False) if self.number >= 0 else (0, False)

    def stop(self, epoch):
        assert epoch == self.number
        self.number = -1


@pytest.fixture
def reading(conversation):
    """In epoch 0, of which the reader was dropped, and the thread that is to end it does not run."""
    conversation.feed, conversation._monitor = Epochs(), Shown()
    conversation._lock = threading.RLock()
    conversation._begun = EpochBegun(0, 4)
    conversation._following, conversation._ended, conversation._left = 1, -1, (-1, [])
    conversation._over, conversation._failure = threading.Event(), None

    def waited(condition):
        if not condition():
            conversation.feed.number = conversation._wanted
            conversation._begun = EpochBegun(conversation._wanted, 4)

    conversation._wait = waited
    return conversation


class Shown:
    def __init__(self):
        self.lines = []

    def ended(self, epoch, measure):
        self.lines.append((epoch, measure()[0]))


def test_numbers_of_an_epoch_that_was_dropped_are_not_those_of_the_next_one(reading):
    reading.begin(1, lambda: (3, Rates()))
    reading.end(0)  # as the thread does that hears of it late
    reading.report()
    reports = [message for message in reading._session.sent if isinstance(message, ConsumerReport)]
    assert [(report.epoch, report.batches) for report in reports] == [(0, 70), (1, 3)]
    assert reading._monitor.lines == [(0, 70)]
    assert reading._unused == 0


def test_who_comes_back_says_all_that_was_read_of_the_epoch_before(reading):
    reading.begin(1, lambda: (3, Rates()))
    reading.feed.number = -1  # the dispatcher was lost before it began
    reading.report(everything=True)
    report = reading._session.sent[-1]
    assert (report.epoch, report.tasks, report.batches) == (0, READ, 70)


def test_what_an_epoch_leaves_unused_is_counted_as_it_ends(reading):
    reading.end(0)
    reading.end(0)
    assert reading._unused == 30
    assert reading._monitor.lines == [(0, 70)]
