"""Job of one's own: what a process reads alone, beside the job of its dataset or the group that it shares with."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from millrace.protocol.job_spec import ALONE

if TYPE_CHECKING:
    from millrace.client.epoch_reader import ConsumerSession


class OwnJobs:
    """Sessions of jobs that this process reads alone, each for as long as somebody reads it.

    One that nobody knows any more is closed in the background. Until it has left its job this counts against its
    tenant's quota of jobs, so that whoever joins another one waits for that.
    """

    def __init__(self) -> None:
        self._there: list[tuple[weakref.ref[ConsumerSession], Callable[[], None]]] = []

    def add(self, session: ConsumerSession) -> None:
        """Note a job of one's own."""
        self._there.append((weakref.ref(session), session.waits_until_left))

    def __iter__(self) -> Iterator[ConsumerSession]:
        """Sessions that somebody knows."""
        return iter([session for known, _ in self._there if (session := known()) is not None])

    def wait(self) -> None:
        """Wait until the jobs have been left that nobody reads any more."""
        dropped = [wait for known, wait in self._there if known() is None]
        self._there = [each for each in self._there if each[0]() is not None]
        for wait in dropped:
            wait()

    def close(self, another: ConsumerSession | None) -> None:
        """Leave all of them, and one more."""
        for session in (another, *self):
            if session is not None:
                session.close()
        self.wait()


def own_job(parameters: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """List what differs in a job that this process reads alone from the parameters of its dataset's job."""
    drawn = secrets.token_hex(4)
    if not parameters["sharing"]:
        return {"name": f"job-{drawn}", **changes}
    alone = {"sharing": "", "functions": "", "window_bytes": 0}
    if parameters["coordinated"]:
        drawn = "ranks"  # they find one another by the name
        alone["visitation"] = "exactly_once"  # there is nobody to be behind of
    return {"name": f"{parameters['name']}{ALONE}{drawn}", **alone, **changes}


def told_late(parameters: Mapping[str, Any], epoch: int, there: int, *, late: bool) -> str:
    """Say that a member of a group begins an epoch alone, as the others cannot begin one with it.

    Args:
        parameters: of the member's job.
        epoch: that it begins.
        there: the next one that the group begins.
        late: the others are in the middle of the one before.
    """
    others = "in the middle of an epoch" if late else f"about to read epoch {there}"
    return (
        f"job {parameters['name']!r} reads epoch {epoch} in a job of its own, as the jobs that it shares its "
        f"computation with are {others}; it looks for them again when it begins the next one"
    )


def told_detached(parameters: Mapping[str, Any], epoch: int, why: object) -> str:
    """Say that a member of a group goes on alone in the middle of an epoch, and why."""
    return (
        f"{why}; job {parameters['name']!r} reads the rest of epoch {epoch} in a job of its own, and looks for the "
        "others again when it begins the next one"
    )
