"""Events of the dispatcher."""

from __future__ import annotations

from typing import ClassVar

from millrace.control.journal.event import Changes, Event
from millrace.control.state.state import Consumer, Life, State, Worker


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
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        state.address = self.address
        state.started = self.at
        state.returning = self.until
        state.service, state.life = self.service, Life(self.life, state.next_lease)
        peers: list[Worker | Consumer] = [*state.workers.values()]
        peers += [place for job in state.jobs.values() for place in job.consumers.values()]
        for peer in peers:
            if peer.lost_at is None:
                peer.lost_at = self.at
        state.index.invalidate_all()
