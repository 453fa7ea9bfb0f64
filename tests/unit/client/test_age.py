"""How old a process is for a job, which decides whether it may have been part of a run that is over."""

import time
from typing import Any

import pytest

from millrace.client import age, joining
from millrace.errors import JobFailedError
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import Failure, JobFailed, JoinJob

LONG_S = 1e6


class RefusingChannel:
    """A dispatcher that lets nobody in."""

    address = "here:1"

    def open_session(self, _messages):
        return self

    def send(self, _message):
        pass

    def __iter__(self):
        yield JobFailed(Failure("JobFailedError", "this process is too late"))

    def close(self):
        pass


def test_a_process_that_was_refused_is_as_young_as_that_when_it_asks_again(monkeypatch):
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: 2 * LONG_S)
    monkeypatch.setattr(age, "_refused", {})
    assert age.process_age_s("job") > LONG_S
    channel: Any = RefusingChannel()
    with pytest.raises(JobFailedError, match="too late"):
        joining.join(channel, JoinJob(JobSpec("job", b"", "b"), "c"), 10.0)
    assert age.process_age_s("job") == 0
    assert age.process_age_s("another") > LONG_S
