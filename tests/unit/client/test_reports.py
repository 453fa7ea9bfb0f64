"""What a consumer tells of its reading, by two threads: the one that reads, and the one that beats."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millrace.client.conversation import Conversation
from millrace.client.meter import Rates
from millrace.client.notices import Notices
from millrace.client.purity import Reruns
from millrace.control.messages import BeginEpoch, ConsumerReport, TaskProgress
from millrace.control.reports import Flow

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
    conversation._measure = lambda: (70, Rates())
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

    conversation._measure = interrupted
    with pytest.raises(KeyboardInterrupt):
        conversation.report()
    conversation._measure = lambda: (70, Rates())
    conversation.report()
    conversation.report()
    assert conversation.feed.asked == [False, True, False]
    assert [report.tasks for report in conversation._session.sent] == [READ, READ]
