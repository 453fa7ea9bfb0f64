"""Respawn: when to start worker processes anew; at once, unless they die as soon as they start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.policies.decision import Decision

RAPID = 3
"""Deaths within WINDOW_S after which starting more workers at once would only repeat them, if they are also more than
there are workers: those that were on one machine end together with it, and that alone says nothing."""
WINDOW_S = 10.0
LONGEST_S = 30.0
DOUBLINGS = 3
"""Most doublings of the time that is waited for a process to register: all of them may be slow."""


def respawn_at(deaths: Sequence[float], now: float, workers: int = 1) -> Decision[float]:
    """Time to start a replacement, in seconds of the clock of ``deaths`` (when each worker died, ascending).

    Three deaths within ten seconds, and more than there are workers, double the pause for each further one, from one
    second to half a minute.

    Args:
        deaths: of workers that were to go on.
        now: by the same clock.
        workers: number that there are to be.
    """
    rapid = max(RAPID, workers + 1)
    recent = sum(1 for death in deaths if now - death < WINDOW_S)
    if recent < rapid:
        return Decision(now, "a worker ended and is replaced at once", {"recent_deaths": recent})
    streak = 1
    for earlier, later in zip(reversed(deaths[:-1]), reversed(deaths[1:]), strict=True):
        if later - earlier > WINDOW_S + LONGEST_S:
            break
        streak += 1
    pause = min(LONGEST_S, 2.0 ** min(10, streak - rapid))
    reason = f"{recent} workers ended within {WINDOW_S:g} s; the next one starts in {pause:g} s"
    return Decision(now + pause, reason, {"recent_deaths": recent, "pause_s": pause})


def not_registered(running: Mapping[str, float], now: float, patience_s: float, tries: int) -> Decision[list[str]]:
    """Find worker processes that are taken to hang, as they run and have not registered.

    Args:
        running: by worker, since when it has run without being registered, in seconds.
        now: by the same clock.
        patience_s: seconds that the first may take.
        tries: in a row that have not registered in time; each doubles the time that the next one has.
    """
    waited_s = patience_s * 2.0 ** min(tries, DOUBLINGS)
    late = sorted(name for name, since in running.items() if now - since > waited_s)
    reason = f"has run for {waited_s:.0f} s and did not register: it is ended, and another one is asked for"
    return Decision(late, reason, {"running": len(running), "late": len(late), "waited_s": waited_s})
