"""Read concurrency: how many reads of a remote store to have under way at once, by hill climbing. Pure.

By Little's law a store that answers each of ``n`` reads after ``s`` seconds gives ``n / s`` reads a second. A store far
away takes as long for one as for many, until its link or the store itself is full: from then on more reads only make
each of them longer. A *round* is half as many reads as are to be under way, all begun since that number was chosen, so
that after a doubling they are those that came on top; it takes about as long as one read. The rule:

1. Begin with 16, and double while doubling brings at least a quarter more reads a second: 300 ms away that is 256
   after four rounds, 1.2 seconds.
2. If it brings less, go back, and rest for some rounds. Then look again, down and up by turns: half as many are enough
   if they lose less than a twentieth; the longer, the more often nothing changed.
3. A store that says it is asked too much gets half as many at once, and a rest.
4. A round says nothing about more where fewer were under way than might have been (the buffer or the task had no room
   for more), nor where whoever wants the data hardly waited for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST = 16
MOST = 256
"""Most reads at once: each takes a thread, which mostly sleeps, and a connection of the store."""
MOST_CHOSEN = 1024
"""Most reads at once that a user may ask for."""
_GAIN = 1.25
_LOSS = 0.95
_WAITED = 0.1
_REST = 8
_LONGEST_REST = 128


@dataclass(frozen=True, slots=True)
class Round:
    """Measures of the reads of one round.

    Attributes:
        read_s: seconds that one of them took, on average.
        peak: most reads that were under way at once.
        seconds: length of the round.
        waited_s: of these, seconds in which somebody waited for the result of a read.
    """

    read_s: float
    peak: int
    seconds: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class InFlight:
    """State of the search for the number of reads in flight.

    Attributes:
        level: reads to have under way at once.
        most: of them, at most.
        settled: the best level found so far; ``level`` differs while another is tried.
        rate: reads a second at ``settled``; 0 until known.
        rest: rounds before another level is tried.
        next_rest: rounds of the next rest.
        fewer: the next try is of fewer.
        adapts: whether there is a search at all.
        reason: why ``settled``, in a sentence.
    """

    level: int
    most: int
    settled: int
    rate: float = 0.0
    rest: int = 0
    next_rest: int = _REST
    fewer: bool = False
    adapts: bool = True
    reason: str = "nothing was read yet"


def begin(
    chosen: int | None = None,
    most: int = MOST,
    *,
    first: int = FIRST,
    said: str = "as with_options(reads_in_flight=...) says",
) -> InFlight:
    """Begin the search, before anything was read; not if the user has chosen how many reads there are at once.

    Args:
        chosen: reads at once; None: as many as pay.
        most: that may be found to pay.
        first: to begin with, unless ``most`` is less.
        said: the reason where they are chosen.
    """
    if chosen is not None:
        return InFlight(chosen, chosen, chosen, adapts=False, reason=said)
    level = min(first, most)
    return InFlight(level, most, level)


def step(state: InFlight, seen: Round) -> InFlight:
    """Advance the search by a round at ``state.level``."""
    if not state.adapts:
        return state
    rate = seen.peak / max(seen.read_s, 1e-9)
    if seen.peak < state.level:
        return replace(state, reason=f"no more than {seen.peak} at once had room or were left to read")
    if seen.waited_s < _WAITED * seen.seconds:
        return replace(state, reason=f"what {state.level} at once bring is hardly waited for")
    if state.level == state.settled:
        state = replace(state, rate=rate, reason=_enough(state.level, seen.read_s))
        return _try(state) if state.rest == 0 else replace(state, rest=state.rest - 1)
    fewer = state.level < state.settled
    if rate < (_LOSS if fewer else _GAIN) * state.rate:
        return _rest(state)
    state = replace(state, settled=state.level, rate=rate, next_rest=_REST, reason=_enough(state.level, seen.read_s))
    following = state.level // 2 if fewer else min(state.most, 2 * state.level)
    return replace(state, level=following) if following not in (0, state.level) else _rest(state)


def slow_down(state: InFlight) -> InFlight:
    """Halve the level, as the store says that it is asked too much; a user's choice stays."""
    if not state.adapts:
        return state
    level = max(1, state.settled // 2)
    reason = f"the store asked to slow down at {state.level} at once"
    return replace(state, level=level, settled=level, rate=0.0, rest=_REST, fewer=False, reason=reason)


def _try(state: InFlight) -> InFlight:
    """Try another level."""
    down = state.fewer or state.settled == state.most
    level = state.settled // 2 if down else min(state.most, 2 * state.settled)
    return replace(state, level=level) if level else _rest(state)


def _rest(state: InFlight) -> InFlight:
    return replace(
        state,
        level=state.settled,
        rest=state.next_rest,
        next_rest=min(2 * state.next_rest, _LONGEST_REST),
        fewer=not state.fewer,
    )


def _enough(level: int, read_s: float) -> str:
    return f"{level} at once take {1000 * read_s:.0f} ms each, and more bring hardly more"
