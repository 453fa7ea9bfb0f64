"""Errors on their way from one process to another."""

from millrace.errors import ElementTooLargeError
from millrace.wire.error_codec import error_of, failure_of


def test_an_error_of_too_large_an_element_keeps_what_buffer_it_needs():
    error = ElementTooLargeError("too large")
    error.needs = 101
    failure = failure_of(error)
    assert failure.needs == 101
    restored = error_of(failure)
    assert isinstance(restored, ElementTooLargeError)
    assert (str(restored), restored.needs) == ("too large", 101)
