"""Beginning of a consumer's session with the dispatcher."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable

from millrace.client.age import refused
from millrace.errors import JobFailedError, PipelineError, ServiceUnreachableError
from millrace.protocol.messages import JobFailed, JobJoined, JoinJob, Notice, ToConsumer
from millrace.wire.control.client_session import ClientSession
from millrace.wire.control.control_client import ControlChannel
from millrace.wire.control.rpc import UnsendableError
from millrace.wire.error_codec import error_of

_logger = logging.getLogger(__name__)


def join(channel: ControlChannel, who: JoinJob, timeout: float) -> tuple[ClientSession, JobJoined]:
    """Join a job by a session of its own, and return what the dispatcher says to that.

    Raises:
        ServiceUnreachableError: nobody answered in so many seconds.
        MillraceError: the dispatcher does not let this process in.
    """
    session = channel.open_session(ToConsumer)
    hurry = _after(timeout, session.close)
    try:
        _say_first(session, who)
        for message in session:
            if isinstance(message, JobJoined):
                return session, message
            if isinstance(message, Notice):  # the dispatcher has answered: others are to come first
                hurry.cancel()
                hurry = _after(timeout, functools.partial(_logger.warning, "%s", message.text))
            if isinstance(message, JobFailed):
                raise error_of(message.failure)  # noqa: TRY301 (whatever ends this closes the session)
    except BaseException as error:
        session.close()
        if isinstance(error, JobFailedError):
            refused(who.spec.name)
        raise
    finally:
        hurry.cancel()
        hurry.join()
    session.close()
    raise ServiceUnreachableError(f"the dispatcher at {channel.address} did not let this process join in time")


def _after(seconds: float, function: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    return timer


def _say_first(session: ClientSession, message: JoinJob) -> None:
    try:
        session.send(message)
    except UnsendableError as error:
        raise PipelineError(
            f"the pipeline cannot be sent: {error}; keep what is large in the functions that use it, or in files"
        ) from error
