"""Thread autotuner: how many threads an operator's function runs on, by hill climbing on throughput. Pure.

A *level* is a number of threads; 0 is the thread that pulls, without a hand-over. A *window* is a stretch of time in
which the operator ran at one level. The rule:

1. Begin with a thread for each core: most functions that are worth a thread compute, and release the GIL. One more
   would have them take turns at the cores and at the GIL. What is rarely worth one, as reading local files, begins on
   the thread that pulls.
2. Take the best of three windows: disturbances by others only ever make a window slower. Windows in which results were
   hardly waited for, or the thread that pulls was hardly ever in a call, say nothing: what comes before or after was
   slower.
3. Try half as many threads, unless they keep their cores busy. If hardly anything is lost, stay there and try fewer
   still: a function that holds the GIL ends on the pulling thread.
4. If not, try twice as many, unless all cores are busy. If that gains something, stay there and try more: a function
   that waits for a disk or a network ends with as many threads as pay.
5. Rest, then look again; the longer, the more often nothing changed.

CPU time decides only what is not worth a try; throughput decides all else. So there is no need to tell waiting for
the GIL from waiting for something else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_WINDOWS = 3
_LOSS = 0.95
_GAIN = 1.1
_WAITED = 0.2
_BUSY = 0.7
_SATURATED = 0.9
_REST = 32
_LONGEST_REST = 1024


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """Measures of an operator in a stretch of time.

    Attributes:
        elements: number that its function was called with.
        seconds: the length of the stretch.
        waited_s: of these, seconds in which whoever pulls waited for results, or made the calls.
        calls_s: seconds in calls, summed over threads.
        cpu_s: of these, seconds of processor time.
    """

    elements: int
    seconds: float
    waited_s: float
    calls_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """State of the search.

    Attributes:
        level: threads to use now.
        cores: that this process may use.
        most: threads at most.
        settled: the best level found so far; ``level`` differs while another is tried.
        rates: elements per second in the windows at ``level`` that count.
        base: the best of them at ``settled``.
        peak: the best that any level gave since the search was last at rest.
        cpu: share of its calls' time that the function computed, at ``settled``.
        tried: +1 if more threads are tried or have been since the last rest, -1 if fewer.
        ignored: windows still to be left out: the first after a change, and all of a rest.
        rest: windows of the next rest.
        reason: why ``settled``, in a sentence; empty until known.
    """

    level: int
    cores: int
    most: int
    settled: int
    rates: tuple[float, ...] = ()
    base: float = 0.0
    peak: float = 0.0
    cpu: float = 1.0
    tried: tuple[int, ...] = ()
    ignored: int = 1
    rest: int = _REST
    reason: str = ""


def begin(cores: int, most: int, *, inline: bool = False) -> Tuning:
    """Begin the search, before anything is measured.

    Args:
        cores: that this process may use.
        most: threads at most, at least 1.
        inline: begin on the thread that pulls.
    """
    level = min(cores, most) if cores > 1 and most > 1 and not inline else 0
    return Tuning(level, cores, most, level)


def step(state: Tuning, window: MeasuredWindow) -> Tuning:
    """Advance the search by a window at ``state.level``."""
    if state.ignored:
        return replace(state, ignored=state.ignored - 1)
    at_rest = state.level == state.settled
    if at_rest and window.waited_s < _WAITED * window.seconds:
        return replace(state, rates=())
    state = replace(state, rates=(*state.rates, window.elements / window.seconds))
    if len(state.rates) < _WINDOWS:
        return state
    rate = max(state.rates)
    if at_rest:
        cpu = min(1.0, window.cpu_s / window.calls_s) if window.calls_s else 1.0
        state = replace(state, base=rate, peak=max(rate, state.peak), cpu=cpu)
        return _next(state, window.cpu_s / window.seconds)
    return _judge(state, rate, window)


def _next(state: Tuning, cores_busy: float) -> Tuning:
    """Try another level, or rest."""
    fewer, more = state.settled // 2, min(state.most, max(2, 2 * state.settled))
    useful_cores = min(state.cores, max(1, state.settled))
    if not state.tried and fewer < state.settled and cores_busy < _BUSY * useful_cores:
        return _try(state, fewer, -1)
    if 1 not in state.tried and more > max(1, state.settled) and cores_busy < _SATURATED * state.cores:
        return _try(state, more, 1)
    return _rest(state)


def _try(state: Tuning, level: int, direction: int) -> Tuning:
    return replace(state, level=level, rates=(), ignored=1, tried=(*state.tried, direction))


def _judge(state: Tuning, rate: float, window: MeasuredWindow) -> Tuning:
    """Keep the level that was tried, and go on in that direction, or go back."""
    direction = state.tried[-1]
    peak = max(rate, state.peak)
    accepted = rate >= _LOSS * state.peak if direction < 0 else rate >= _GAIN * state.base
    if accepted:
        cpu = min(1.0, window.cpu_s / window.calls_s) if window.calls_s else 1.0
        state = replace(state, settled=state.level, base=rate, peak=peak, cpu=cpu, rest=_REST)
        further = state.level // 2 if direction < 0 else min(state.most, 2 * state.level)
        if further != state.level:
            return _try(state, further, direction)
        return _rest(state)
    state = replace(state, peak=peak)
    moved = state.tried.count(direction) > 1
    if direction < 0 and not moved:
        return _next(replace(state, level=state.settled, rates=()), 0.0)
    return _rest(state)


def _rest(state: Tuning) -> Tuning:
    return replace(
        state,
        level=state.settled,
        rates=(),
        tried=(),
        peak=0.0,
        ignored=state.rest,
        rest=min(2 * state.rest, _LONGEST_REST),
        reason=_reason(state),
    )


def _reason(state: Tuning) -> str:
    share = f"{100 * state.cpu:.0f} % of a call is computing"
    if state.settled <= 1 and state.cores > 1:
        if state.cpu >= 0.5:
            return (
                f"more threads gave no more elements per second, and {share}: it holds the GIL, "
                "so that more workers would help and more threads cannot"
            )
        return f"more threads gave no more elements per second, and {share}: what it waits for takes one call at a time"
    if state.settled > state.cores:
        return f"so many threads gave the most elements per second, and {share}: it waits more than it computes"
    return f"so many threads gave the most elements per second, and {share}"
