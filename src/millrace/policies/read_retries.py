"""Read retries: when a request that failed is made again, and how many of them all may be repeated at once. Pure.

One request waits twice as long after each failure, by a random part less, so that those that failed together don't come
back together. What keeps a store that is down or overloaded from being asked by hundreds of readers over and over is a
budget that all of them share: a repetition takes one from it, and time gives some back, as does each answer. While it
is empty, repetitions wait. So a store that recovers is asked again by few at first, and each that is answered lets
another one go.
"""

from __future__ import annotations

from typing import NamedTuple

PATIENCE_S = 180.0
"""Seconds after the first failure of a request for which it is repeated."""
_FIRST_S = 0.1
_LONGEST_S = 15.0
_SHORTEST_S = 0.05
_MOST = 32.0
"""Repetitions in the budget, at most."""
_RATE = 4.0
"""Repetitions that a second gives back."""
_PER_ANSWER = 0.1
_PER_REPEATED_ANSWER = 1.0


class RetryBudget(NamedTuple):
    """Budget of repetitions that all requests share.

    Attributes:
        credit: repetitions that may begin at once.
        at: second at which that was so.
    """

    credit: float = _MOST
    at: float = 0.0


def backoff_s(failures: int, chance: float) -> float:
    """Choose the seconds to wait after so many failures of one request.

    Args:
        failures: 1 or more.
        chance: 0 to 1, drawn anew each time.
    """
    longest = min(_LONGEST_S, _FIRST_S * 2.0 ** min(failures - 1, 20))
    return longest * (0.5 + 0.5 * chance)


def take(budget: RetryBudget, now: float) -> tuple[RetryBudget, float]:
    """Take a repetition out of the budget.

    Returns:
        The budget, and 0; or seconds until it is worth asking again, in which answers may give some back.
    """
    credit = min(_MOST, budget.credit + _RATE * max(0.0, now - budget.at))
    if credit >= 1.0:
        return RetryBudget(credit - 1.0, now), 0.0
    return RetryBudget(credit, now), max(_SHORTEST_S, (1.0 - credit) / _RATE)


def answered(budget: RetryBudget, *, repeated: bool) -> RetryBudget:
    """Give back what the answer to a request is worth: one that had failed before says that the store is back."""
    return budget._replace(credit=min(_MOST, budget.credit + (_PER_REPEATED_ANSWER if repeated else _PER_ANSWER)))
