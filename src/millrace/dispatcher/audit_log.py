"""Audit log: who has begun, joined, removed or been refused what, a line of JSON each.

A line is appended to the file by its name, so that the file may be moved aside at any time. It is bounded: what peers
have said is cut. A line that cannot be written is lost, which is logged; the service goes on.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.journal.consumer_events import ConsumerJoined
from millrace.control.journal.event import Event
from millrace.control.journal.job_events import JobCreated, JobRemoved, StatesLoaded
from millrace.control.journal.worker_events import WorkerJoined
from millrace.errors import ServiceError
from millrace.private_folder import private
from millrace.protocol.cache_server_messages import CacheServerHello
from millrace.protocol.caller import Caller
from millrace.protocol.messages import Failure, JobFailed, JoinJob, WorkerHello

MOST_CHARS = 300
"""Characters of a text in a line."""
MOST_NAMES = 20
"""Names of a list in a line."""

_logger = logging.getLogger(__name__)


class AuditLog:
    """Audit log of a dispatcher.

    Args:
        path: of the file, which is made for this user alone; empty: nothing is written.

    Raises:
        ServiceError: it cannot be written.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path
        self._failed = False
        if path:
            try:
                os.close(self._open())
            except OSError as error:
                raise ServiceError(f"the audit log {path} cannot be written: {error.strerror or error}") from error

    def decided(self, item: inp.Input, events: Sequence[Event], actions: Sequence[act.Action]) -> None:
        """Write what was decided about an input, if somebody has asked for something."""
        if self._path:
            self._append("".join(_line(fields) for fields in said_of(item, events, actions)))

    def refused(self, caller: Caller, failure: Failure) -> None:
        """Write that a caller was refused what it has called for."""
        if self._path:
            self._append(_line({**_named(caller), **_refused(failure)}))

    def _append(self, text: str) -> None:
        if not text:
            return
        try:
            file = self._open()
            try:
                os.write(file, text.encode())
            finally:
                os.close(file)
        except OSError as error:
            if not self._failed:
                _logger.error("the audit log %s is not written: %s", self._path, error.strerror or error)  # noqa: TRY400
            self._failed = True
        else:
            self._failed = False

    def _open(self) -> int:
        return private(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)


def said_of(item: inp.Input, events: Sequence[Event], actions: Sequence[act.Action]) -> Iterator[dict[str, Any]]:
    """List what is to be written of an input and of what follows from it, a line each."""
    who = _who(item)
    if who:
        yield from (who | fields for event in events if (fields := _of_event(event)))
        yield from (who | fields for action in actions if (fields := _of_action(item, action)))
    else:
        yield from ({"what": "end", "job": event.job, "why": event.reason} for event in _removed(events))
    if isinstance(item, inp.RemovalAsked):
        yield {**who, "what": "remove", "points": item.places[:MOST_NAMES], "count": len(item.places)}


def _who(item: inp.Input) -> dict[str, Any]:
    """Say who has asked; empty if nobody has asked for anything that is written down."""
    match item:
        case inp.JoinRequested(message=JoinJob(host=host, pid=pid)):
            where = {"host": host, "pid": pid}
        case inp.WorkerSaid(message=WorkerHello(host=host, pid=pid)):
            where = {"host": host, "pid": pid}
        case inp.CacheServerSaid(message=CacheServerHello(host=host, pid=pid)):
            where = {"host": host, "pid": pid}
        case inp.RemovalAsked():
            where = {}
        case _:
            return {}
    return {**_named(item.caller), **where}


def _named(caller: Caller) -> dict[str, Any]:
    return {"who": caller.name, "tenant": caller.tenant}


def _of_event(event: Event) -> dict[str, Any]:
    match event:
        case JobCreated():
            return {"what": "begin", "job": event.spec.name, "of": event.spec.tenant}
        case StatesLoaded():
            return {"what": "load", "job": event.job, "states": len(event.states)}
        case ConsumerJoined():
            return {"what": "join", "job": event.job, "consumer": event.consumer}
        case JobRemoved():
            return {"what": "end", "job": event.job, "why": event.reason}
        case WorkerJoined():
            return {"what": "work", "worker": event.worker, "address": event.address}
    return {}


def _of_action(item: inp.Input, action: act.Action) -> dict[str, Any]:
    failure: Failure | None = None
    match item, action:
        case inp.JoinRequested(message=asked), act.SendToClient(client=client, message=JobFailed(failure=failure)):
            return _refused(failure, job=asked.spec.name) if client == asked.client else {}
        case inp.WorkerSaid(worker=worker), act.CloseWorker(failure=failure) if failure is not None:
            return _refused(failure, worker=worker)
        case inp.CacheServerSaid(server=server), act.CloseCacheServer(failure=failure):
            return _refused(failure, cache_server=server)
        case inp.CacheServerSaid(message=CacheServerHello(address=address)), act.SendToCacheServer(server=server):
            return {"what": "cache", "cache_server": server, "address": address}
    return {}


def _refused(failure: Failure, **asked: str) -> dict[str, Any]:
    return {"what": "refused", **asked, "error": failure.kind, "why": failure.message}


def _removed(events: Sequence[Event]) -> Iterator[JobRemoved]:
    return (event for event in events if isinstance(event, JobRemoved))


def _line(fields: dict[str, Any]) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"at": now, **{name: _short(value) for name, value in fields.items()}}) + "\n"


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(each) for each in value[:MOST_NAMES]]
    return value if not isinstance(value, str) or len(value) <= MOST_CHARS else f"{value[: MOST_CHARS - 3]}..."
