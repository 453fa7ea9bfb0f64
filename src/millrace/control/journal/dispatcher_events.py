"""Events of the dispatcher."""

from __future__ import annotations

from millrace.control.journal.event import Changes, Event, reduces
from millrace.control.state.state import (
    Consumer,
    Life,
    State,
    Worker,
)


class DispatcherStarted(Event, frozen=True, tag="DispatcherStarted"):
    """The dispatcher listens at ``address``: all sessions of its life before, if there was one, have ended.

    Attributes:
        at: seconds of the dispatcher's clock, which stands still between two lives.
        until: nobody who had a session then is given up before.
        service: drawn in its first life, and the same in all of them; ``life``: drawn in this one.
    """

    address: str
    at: float
    until: float
    service: str = ""
    life: str = ""


@reduces(DispatcherStarted, Changes.SERVING)
def _dispatcher_started(state: State, event: DispatcherStarted) -> None:
    state.address = event.address
    state.started = event.at
    state.returning = event.until
    state.service, state.life = event.service, Life(event.life, state.next_lease)
    peers: list[Worker | Consumer] = [*state.workers.values()]
    peers += [place for job in state.jobs.values() for place in job.consumers.values()]
    for peer in peers:
        if peer.lost_at is None:
            peer.lost_at = event.at
    state.index.invalidate_all()
