"""A listing in process that takes long says what is waited for, and how many files it has looked at."""

import pytest

import millrace as mr
from millrace.engine.run import slow_listing


@pytest.fixture
def over_at(monkeypatch):
    """The time is over as a timer is started, or as it is stopped: before the listing, or when it has ended."""

    def choose(when):
        class Timer:
            def __init__(self, seconds, function):
                assert seconds == slow_listing.FIRST_S
                self.function = function

            def start(self):
                if when == "start":
                    self.function()

            def cancel(self):
                if when == "end":
                    self.function()

            def join(self):
                pass

        monkeypatch.setattr("threading.Timer", Timer)

    return choose


@pytest.mark.parametrize(("when", "so_far"), [("start", ""), ("end", ": 300 files so far")])
def test_what_is_waited_for_is_said_once(over_at, when, so_far, tmp_path, caplog):
    for number in range(300):
        (tmp_path / f"{number:03}").touch()
    over_at(when)
    dataset = mr.Dataset.from_files(f"{tmp_path}/*").batch(100)
    for _ in range(2):
        assert len(dataset) == 3
    words = f" has waited 10 s for its sources to be listed{so_far}"
    assert [record.getMessage() for record in caplog.records] == [f"{dataset}{words}"]


def test_a_listing_that_ends_in_time_says_nothing(over_at, tmp_path, caplog):
    over_at("never")
    (tmp_path / "a").touch()
    assert len(mr.Dataset.from_files(f"{tmp_path}/*")) == 1
    assert not caplog.records
