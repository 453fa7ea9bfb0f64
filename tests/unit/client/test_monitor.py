import io
import logging

import pytest

from millrace.client.monitor import Monitor
from millrace.client.read_rate import Rates
from millrace.engine.run.slow_listing import FIRST_S
from millrace.protocol.reports import Pace


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Reading:
    """A monitor under a clock of its own, and what it asked and said."""

    def __init__(self, out=None, answers=("no worker is there",), **options):
        self.now, self.asked, self.out = 100.0, 0, out or io.StringIO()
        self._answers = list(answers)
        self.monitor = Monitor("a", self.why, clock=lambda: self.now, out=self.out, **options)

    def why(self):
        self.asked += 1
        return self._answers[min(self.asked, len(self._answers)) - 1]

    def look(self, seconds=0.0, *, epoch=-1, handed=0, came=False):
        self.now += seconds
        pace = Pace(handed, 2.0, 0.5) if handed else Pace()
        self.monitor.look(epoch, lambda: (handed, Rates(pace=pace)), came=came)


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_what_is_waited_for_is_said_once_after_a_while(said):
    reading = Reading()
    reading.monitor.wanted()
    reading.look(FIRST_S - 0.1)
    assert said() == []
    reading.look(0.1)
    reading.look(100.0)
    assert said() == ["job a has had no element for 10 s: no worker is there"]
    assert reading.asked == 1


def test_nothing_is_said_once_an_element_has_come(said):
    reading = Reading()
    reading.monitor.wanted()
    reading.look(1.0, epoch=0, came=True)
    reading.look(100.0, epoch=1)
    assert (said(), reading.asked) == ([], 0)


def test_nothing_is_said_while_nobody_wants_anything(said):
    reading = Reading()
    reading.look(100.0)
    reading.monitor.wanted()
    reading.look(FIRST_S - 0.1)
    assert said() == []


def test_a_dispatcher_that_does_not_answer_is_said_to_be_so(said):
    reading = Reading(answers=[""])
    reading.monitor.wanted()
    reading.look(FIRST_S)
    assert said() == ["job a has had no element for 10 s: the dispatcher did not say why; `millrace status` may"]


def test_it_is_looked_again_when_there_is_something_to_say():
    reading = Reading()
    assert reading.monitor.pause(5.0) == 5.0
    reading.monitor.wanted()
    reading.now += FIRST_S - 2.0
    assert reading.monitor.pause(5.0) == 2.0
    assert Reading(progress=True).monitor.pause(5.0) == 0.5


def test_progress_is_one_line_an_epoch_where_there_is_no_terminal():
    reading = Reading(progress=True)
    reading.monitor.wanted()
    reading.look(1.0, epoch=0, handed=100, came=True)
    reading.monitor.ended(0, lambda: (3000, Rates(pace=Pace(3000, 2.0, 0.5))))
    reading.monitor.ended(1, lambda: (0, Rates()))
    assert reading.out.getvalue().splitlines() == [
        "epoch 0: 3,000 elements in 2 s, 1,500 a second, waited 25 % of the time",
        "epoch 1: 0 elements",
    ]


@pytest.mark.parametrize(
    ("missed", "members", "end"),
    [
        (0, 0, ""),
        (0, 1, ""),
        (0, 4, ", computed once for 4 jobs"),
        (1234, 2, ", computed once for 2 jobs, 1,234 missed"),
    ],
)
def test_the_closing_line_says_what_was_shared_and_missed(missed, members, end):
    reading = Reading(progress=True)
    reading.monitor.ended(0, lambda: (30, Rates()), missed, members)
    assert reading.out.getvalue() == f"epoch 0: 30 elements{end}\n"


def test_progress_is_alive_on_a_terminal_and_says_what_is_waited_for():
    reading = Reading(Terminal(), ["its sources are listed", "no worker is there"], progress=True)
    reading.monitor.wanted()
    for _ in range(6):
        reading.look(0.5)
    reading.look(0.5, epoch=0, handed=100, came=True)
    reading.look(0.1, epoch=0, handed=101, came=True)
    reading.monitor.ended(0, lambda: (102, Rates()))
    shown = reading.out.getvalue().split("\r\x1b[2K")
    assert shown[1:] == [
        *["its sources are listed"] * 4,
        *["no worker is there"] * 2,
        "epoch 0: 100 elements in 2 s, 50 a second, waited 25 % of the time",
        "epoch 0: 102 elements\n",
    ]
    assert reading.asked == 2


def test_the_end_of_a_long_line_is_shown_as_the_count_of_files_stands_there():
    why = f"job a waits for its sources to be listed by worker {'0a9b4ce' * 5}: 277,760 files so far"
    reading = Reading(Terminal(), [why], progress=True)
    reading.monitor.wanted()
    reading.look(0.5)
    line = reading.out.getvalue().removeprefix("\r\x1b[2K")
    assert len(line) == 100
    assert "its sources to be listed" in line
    assert line.endswith(": 277,760 files so far")


def test_without_progress_nothing_is_written():
    reading = Reading(Terminal())
    reading.monitor.wanted()
    reading.look(1.0, epoch=0, handed=100, came=True)
    reading.monitor.ended(0, lambda: (102, Rates()))
    assert reading.out.getvalue() == ""


class Broken(Terminal):
    """A terminal that went away."""

    def write(self, text):
        raise BrokenPipeError("nobody looks on")


def closed():
    out = Terminal()
    out.close()
    return out


class Told(Terminal):
    def isatty(self):
        raise ValueError("I/O operation on closed file")


@pytest.mark.parametrize("make", [Broken, closed, Told], ids=["broken", "closed", "nothing to ask"])
def test_where_nothing_can_be_written_reading_goes_on(make):
    reading = Reading(make(), progress=True)
    reading.look(1.0, epoch=0, handed=100, came=True)
    reading.monitor.ended(0, lambda: (102, Rates()))


def test_a_process_without_standard_error_reads_all_the_same(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    monitor = Monitor("a", lambda: "", progress=True)
    monitor.look(0, lambda: (100, Rates()), came=True)
    monitor.ended(0, lambda: (102, Rates()))
