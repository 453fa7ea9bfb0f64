import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import errors
from millrace.errors import AuthenticationError, ElementError, JobConflictError, ProtocolError, ServiceError
from millrace.protocol.messages import Failure, Notice, SourcesFailed, TaskRef, TaskReturned, WorkerLeaving
from millrace.wire.auth import OWN
from millrace.wire.control import rpc


@pytest.mark.parametrize("kind", [JobConflictError, ProtocolError, errors.PipelineError, errors.SourceNotFoundError])
def test_errors_arrive_as_they_left(kind):
    _, line, trailers = rpc.trailers_of(kind("first line\nsecond line"))
    arrived = rpc.error_in(trailers)
    assert type(arrived) is kind
    assert str(arrived) == "first line\nsecond line"
    assert line == "first line"


def test_element_errors_keep_what_they_hold():
    error = ElementError("bad", operator="map(f)", where="a.jpg", user_traceback="Traceback")
    arrived = rpc.error_in(rpc.trailers_of(error)[2])
    assert isinstance(arrived, ElementError)
    assert (arrived.operator, arrived.where, arrived.user_traceback) == ("map(f)", "a.jpg", "Traceback")


def test_other_tools_see_the_right_code():
    assert rpc.trailers_of(AuthenticationError("no"))[0] is grpc.StatusCode.UNAUTHENTICATED
    assert rpc.trailers_of(JobConflictError("no"))[0] is grpc.StatusCode.ABORTED


def test_long_errors_lose_their_middle():
    arrived = rpc.error_in(rpc.trailers_of(ServiceError("a" * 9_000 + "b" * 9_000))[2])
    text = str(arrived)
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    assert "characters left out" in text
    assert len(text) < 8_100


def test_foreign_trailers():
    assert rpc.error_in(None) is None
    assert rpc.error_in([("grpc-something", "x")]) is None
    arrived = rpc.error_in([("millrace-failure-bin", b"\xc1")])
    assert type(arrived) is ServiceError


def test_identity_travels_in_headers():
    headers = dict(rpc.IDENTITY)
    assert rpc.identity_of(headers) == OWN
    for broken in ({}, {**headers, "millrace-protocol": "one"}):
        with pytest.raises(ProtocolError, match="no valid millrace-protocol"):
            rpc.identity_of(broken)


@given(st.integers(0, 40))
def test_frames_add_up(size):
    whole = bytes(range(size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rpc, "FRAME_BYTES", 8)
        frames = list(rpc.cut(whole))
    assert b"".join(frames) == whole
    assert all(len(frame) <= 8 for frame in frames)


def test_bounds():
    rpc.check_call_size(rpc.MAX_CALL_BYTES, "x")
    with pytest.raises(
        ProtocolError, match=r"the request PutBundle takes 1\.50 GiB or more, and .* at most 1 GiB at once"
    ):
        rpc.check_call_size(3 << 29, "the request PutBundle")
    with pytest.raises(rpc.UnsendableError, match=r"the message bytes takes 16,777,222 bytes; .* at most 16,777,216"):
        rpc.encode_message(b"." * (16 << 20) + b".")


@pytest.mark.parametrize("field", ["\udc80", 1 << 64, object()])
def test_what_cannot_be_encoded_is_refused_as_what_is_too_large(field):
    with pytest.raises(rpc.UnsendableError, match="the message Notice cannot be encoded: "):
        rpc.encode_message(Notice(field))


def test_which_job_a_message_is_about():
    assert rpc.about_job(TaskReturned(TaskRef("job", 0, 1), 2)) == "job"
    assert rpc.about_job(SourcesFailed("job", Failure("", ""))) == "job"
    assert rpc.about_job(WorkerLeaving()) == ""
