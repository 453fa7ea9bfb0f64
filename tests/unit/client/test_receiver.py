"""What a reader may use of an epoch, and when it is told of a failure."""

from __future__ import annotations

import pytest

from millrace.client.receiver import Feed
from millrace.errors import JobFailedError, ServiceError


@pytest.fixture
def feed() -> Feed:
    feed = Feed("job", 0, "client", token=None, buffer_bytes=1 << 20, wake=lambda: None)
    feed.begin(0, in_order=False)
    return feed


def test_what_came_before_a_failure_may_be_used(feed: Feed) -> None:
    feed.fail(JobFailedError("the sources are gone"))
    assert feed.usable(0, 3) is None


def test_of_what_is_held_until_all_have_as_much_what_was_allowed_may_be_used_before_a_failure() -> None:
    feed = Feed("job", 0, "client", token=None, buffer_bytes=1 << 20, wake=lambda: None)
    feed.begin(0, in_order=False, held=True)
    feed.allow(0, 5, last=False)
    feed.fail(JobFailedError("the sources are gone"))
    assert feed.usable(0, 3) == 5
    with pytest.raises(JobFailedError, match="the sources are gone"):
        feed.usable(0, 5)


def test_nothing_may_be_used_of_one_that_was_closed(feed: Feed) -> None:
    feed.close()
    with pytest.raises(ServiceError, match="the session was closed"):
        feed.usable(0, 3)


def test_one_that_was_closed_after_a_failure_says_why_it_failed(feed: Feed) -> None:
    feed.fail(JobFailedError("the sources are gone"))
    feed.close()
    with pytest.raises(JobFailedError, match="the sources are gone"):
        feed.usable(0, 3)
