"""When to start worker processes anew: at once, unless they die as soon as they start."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.policies.decision import Decision

RAPID = 3
"""Deaths on so many occasions within WINDOW_S mean that starting more of them at once would only repeat it."""
WINDOW_S = 10.0
LONGEST_S = 30.0
TOGETHER_S = 0.5
"""Workers that end within it end on one occasion: the machine that they were on has gone, say."""


def respawn_at(deaths: Sequence[float], now: float) -> Decision[float]:
    """When to start a replacement, in seconds of the clock of ``deaths`` (when each worker died, ascending).

    Deaths on three occasions within ten seconds double the pause for each further one, from a second to half a minute.
    """
    occasions: list[float] = []
    for death in deaths:
        if not occasions or death - occasions[-1] > TOGETHER_S:
            occasions.append(death)
    recent = sum(1 for death in deaths if now - death < WINDOW_S)
    if sum(1 for occasion in occasions if now - occasion < WINDOW_S) < RAPID:
        return Decision(now, "a worker ended and is replaced at once", {"recent_deaths": recent})
    streak = 1
    for earlier, later in zip(reversed(occasions[:-1]), reversed(occasions[1:]), strict=True):
        if later - earlier > WINDOW_S + LONGEST_S:
            break
        streak += 1
    pause = min(LONGEST_S, 2.0 ** min(10, streak - RAPID))
    reason = f"{recent} workers ended within {WINDOW_S:g} s; the next one starts in {pause:g} s"
    return Decision(now + pause, reason, {"recent_deaths": recent, "pause_s": pause})
