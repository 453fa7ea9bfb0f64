"""What ends a session as it begins is said in words that its user can do something about."""

import pytest

from millrace.client.joining import join
from millrace.errors import PipelineError
from millrace.wire.control.rpc import UnsendableError


class TooSmall:
    """A channel whose sessions take no message."""

    address = "here:1"

    def open_session(self, _messages):
        return self

    def send(self, _message):
        raise UnsendableError("the message JoinJob takes 17 MB")

    def close(self):
        pass


def test_a_pipeline_that_cannot_be_sent():
    with pytest.raises(PipelineError, match=r"the pipeline cannot be sent: .* JoinJob takes 17 MB; keep what is large"):
        join(TooSmall(), None, 1.0)  # type: ignore[arg-type]
