"""Sessions of the dispatcher's peers, be they there or not, and decisions that wait to be told them."""

from __future__ import annotations

import logging
import secrets
import uuid
from typing import Any, NamedTuple

import msgspec

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.journal.event import Event
from millrace.control.journal.job_events import JobRemoved
from millrace.control.journal.worker_events import WorkerLost
from millrace.control.membership import access
from millrace.control.membership.admission import Refused
from millrace.control.state.state import State, Worker
from millrace.dispatcher.audit_log import AuditLog
from millrace.errors import ProtocolError, ServiceError
from millrace.protocol import messages as msg
from millrace.wire.control import rpc
from millrace.wire.control.control_server import Session
from millrace.wire.error_codec import error_of, failure_of
from millrace.wire.peer_log import PeerLog

_logger = logging.getLogger(__name__)
_peers = PeerLog(_logger)


class PendingDecision(NamedTuple):
    """Consequences of one input.

    Attributes:
        events: events that were applied.
        encoded: the events as they are journalled.
        actions: to be done once they are durable, with the session that each is for.
    """

    events: list[Event]
    encoded: list[msgspec.Raw]
    actions: list[tuple[act.Action, Session | None]]

    def log(self) -> None:
        """Log lost workers, and jobs that ended for want of consumers."""
        for event in self.events:
            if isinstance(event, WorkerLost):
                _logger.info("worker %s %s: what it had goes to others", event.worker, event.reason)
            elif isinstance(event, JobRemoved) and event.absent:
                _logger.warning("job %s is over: %s", event.job, event.reason)


def send(session: Session | None, message: Any, job: str) -> inp.Unsendable | None:
    """Tell a peer, if it is there.

    A message that can't be sent fails the job that it is about, as others would wait for it: the input to decide about
    is returned. If it is about no job, or says that the job failed, the session ends with an error.
    """
    if session is None:
        return None
    try:
        session.send(message)
    except rpc.UnsendableError as error:
        _logger.error("%s", error)  # noqa: TRY400 - it says it all
        if job and not isinstance(message, msg.JobFailed):
            return inp.Unsendable(job, failure_of(ProtocolError(f"job {job!r} cannot go on: {error}")))
        session.close(error)
    return None


def close(session: Session | None, failure: msg.Failure | None) -> None:
    """End a session, if there is one."""
    if session is not None:
        session.close(error_of(failure) if failure is not None else None)


def internal_error(error: Exception) -> ServiceError:
    """Make the error for a peer whose message brought a bug to light."""
    return ServiceError(f"the dispatcher failed: {type(error).__name__}: {error}; see its log")


def check_worker(session: Session, state: State, hello: msg.WorkerHello, audit: AuditLog) -> None:
    """Refuse who may not be a worker, before another one's session ends for it.

    Raises:
        AccessDeniedError: it may not.
        ServiceError: the job that it is for is not there.
    """
    try:
        access.check_worker(session.caller, state, hello)
    except Refused as refused:
        audit.refused(session.caller, refused.failure)
        raise error_of(refused.failure) from None


def check_cache_server(session: Session, audit: AuditLog) -> None:
    """Refuse who may not be a cache server, before another one's session ends for it.

    Raises:
        AccessDeniedError: it may not.
    """
    try:
        access.check_cache_server(session.caller)
    except Refused as refused:
        audit.refused(session.caller, refused.failure)
        raise error_of(refused.failure) from None


def warn_of_duplicate_name(hello: msg.WorkerHello, before: Worker) -> None:
    """Warn if a worker says hello under the name of another one that has a session."""
    if (before.host, before.pid) != (hello.host, hello.pid):
        _peers.warning(
            "process %d on %s is called worker %s as process %d on %s is, and takes its place: give each a --name"
            " of its own, or none",
            *(hello.pid, hello.host, hello.worker, before.pid, before.host),
        )


def draw_job() -> tuple[str, int]:
    """Draw a name and a seed for a job; of 63 bits, so that it fits every integer type on its way."""
    return f"job-{uuid.uuid4().hex[:12]}", secrets.randbits(63)
