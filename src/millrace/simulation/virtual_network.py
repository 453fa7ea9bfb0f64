"""Virtual time, processes that can hang and die, and connections between them that can break.

Nothing here knows what is said. Time goes from one happening to the next; all that is random comes from one generator,
so that a seed tells the whole story.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

KEEPALIVE_S = 8.0
"""After so many seconds at most, an end of a connection that has gone dead silently is told so."""


class Violation(Exception):  # noqa: N818 - what a simulation looks for, not an error of its own
    """Something was so that must never be."""


class VirtualNetwork:
    """Time and the network.

    Args:
        seed: of all that is random.

    Attributes:
        now: seconds.
        rng: for whatever is drawn.
        latency_s: mean time that a message takes.
        note: told of all that is said, for traces: (who, what).
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.latency_s = 0.01
        self.note: Callable[[str, object], None] = lambda who, what: None
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._apart: set[frozenset[str]] = set()
        self.connections: dict[Connection, None] = {}

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """``call(*args)`` at ``time``; of those at the same time, who came first."""
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, call, args))

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """``call(*args)`` in ``delay`` seconds."""
        self.at(self.now + delay, call, *args)

    def step(self) -> None:
        """Let the next thing happen."""
        self.now, _, call, args = heapq.heappop(self._heap)
        call(*args)

    def delay(self) -> float:
        """How long a message takes, in seconds."""
        return self.rng.expovariate(1.0 / self.latency_s)

    # -- the network ---------------------------------------------------------------------------------------------------

    def part(self, one: str, other: str) -> None:
        """Nothing gets from one to the other from now on; each finds out by itself."""
        self._apart.add(frozenset((one, other)))
        for connection in self.between(one, other):
            connection.cut(KEEPALIVE_S)

    def join(self, one: str, other: str) -> None:
        """Let them reach each other again."""
        self._apart.discard(frozenset((one, other)))

    def reachable(self, one: Process, other: Process) -> bool:
        """Whether a connection can be made now."""
        return other.alive and not other.paused and frozenset((one.name, other.name)) not in self._apart

    def between(self, one: str, other: str) -> list[Connection]:
        """All live connections between two."""
        pair = {one, other}
        return [each for each in self.connections if {end.name for end in each.ends} == pair]

    def of(self, process: Process) -> list[Connection]:
        """All live connections of one."""
        return [each for each in self.connections if process in each.ends]


class Process:
    """Something that runs for itself: what happens to it waits while it hangs, and is void once it is dead.

    Attributes:
        name: of the process, never used again after it.
    """

    def __init__(self, network: VirtualNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self.alive = True
        self.paused = False
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def do(self, call: Callable[..., None], *args: Any) -> None:
        """``call(*args)`` now, or when it goes on, or never."""
        if not self.alive:
            return
        if self.paused:
            self._backlog.append((call, args))
        else:
            call(*args)

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """``call(*args)`` in ``delay`` seconds, if it is there then."""
        self.network.after(delay, self.do, call, *args)

    def pause(self) -> None:
        """Hang; connections stay."""
        self.paused = True

    def resume(self) -> None:
        """Go on."""
        self.paused = False
        waiting, self._backlog = self._backlog, []
        for call, args in waiting:
            self.do(call, *args)

    def die(self, *, silently: bool = False) -> None:
        """End at once. ``silently``: with its host, so that its peers find out late."""
        self.alive = False
        self._backlog.clear()
        for connection in self.network.of(self):
            connection.cut(KEEPALIVE_S if silently else 0.05)

    def heard(self, connection: Connection, message: Any) -> None:
        """``message`` has come."""
        raise NotImplementedError

    def broken(self, connection: Connection) -> None:
        """Nothing more will come; said once, and not to whoever closed it."""
        raise NotImplementedError


class Connection:
    """Two ends; what one says the other hears, in order, as long as it lives.

    Args:
        network: the network.
        left: who made it.
        right: whom to.
        label: told by :class:`Process` methods to know what it is for.
    """

    __slots__ = ("_due", "_knows", "ends", "label", "live", "network", "under_way")

    def __init__(self, network: VirtualNetwork, left: Process, right: Process, label: str) -> None:
        self.network = network
        self.ends = (left, right)
        self.label = label
        self.live = True
        self._due = [0.0, 0.0]
        self._knows = [False, False]
        self.under_way = [0, 0]
        """Messages that each end has said and the other has not heard."""
        network.connections[self] = None

    def open_at(self, end: Process) -> bool:
        """Whether this end still takes it for alive."""
        return not self._knows[self.ends.index(end)]

    def send(self, sender: Process, message: Any) -> None:
        """Says something; nobody is told if it is lost."""
        side = 0 if self.ends[0] is sender else 1
        if self._knows[side] or not self.live:
            return
        self.under_way[side] += 1
        self.network.at(self._arrival(side), self._deliver, side, message)

    def hold_up(self, sender: Process, seconds: float) -> None:
        """Have what an end says from now on come so much later, in its order."""
        side = self.ends.index(sender)
        self._due[side] = max(self._due[side], self.network.now + seconds)

    def close(self, end: Process) -> None:
        """Close the connection at one end; the other one hears all that was said before."""
        side = self.ends.index(end)
        if self._knows[side]:
            return
        self._knows[side] = True
        if self.live:
            self.network.at(self._arrival(side), self._closed, 1 - side)

    def cut(self, within: float) -> None:
        """Break: what is under way is lost, and each end is told within so many seconds."""
        if not self.live:
            return
        self.live = False
        self.network.connections.pop(self, None)
        for side in (0, 1):
            self.network.after(self.network.rng.uniform(0.0, within), self._tell, side)

    def _arrival(self, side: int) -> float:
        self._due[side] = max(self._due[side], self.network.now + self.network.delay())
        return self._due[side]

    def _deliver(self, side: int, message: Any) -> None:
        if self.live:
            self.ends[1 - side].do(self._hear, side, message)

    def _hear(self, side: int, message: Any) -> None:
        self.under_way[side] -= 1
        if not self._knows[1 - side]:
            receiver = self.ends[1 - side]
            self.network.note(f"{self.ends[side].name} > {receiver.name}", message)
            receiver.heard(self, message)

    def _closed(self, side: int) -> None:
        if self.live:
            self.live = False
            self.network.connections.pop(self, None)
            self._tell(side)

    def _tell(self, side: int) -> None:
        self.ends[side].do(self._told, side)

    def _told(self, side: int) -> None:
        if not self._knows[side]:
            self._knows[side] = True
            self.ends[side].broken(self)
