"""Messages of a training process while it reads: what it waits for if nothing comes, and how far it is if asked to.

What is waited for goes to the log, which shows it on standard error unless the user chose otherwise. It is no Python
warning: those become errors where users are strict, and to wait is none.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable
from typing import IO

from millrace.client.read_rate import Rates
from millrace.engine.run.slow_listing import FIRST_S
from millrace.policies.figures import duration, number, percent

_LINE_S = 0.5
"""Seconds between two states of the progress line."""
_ASK_S = 2.0
"""Seconds between two questions what is waited for, while the progress line has nothing else to say."""

Measure = Callable[[], tuple[int, Rates]]
"""Elements handed out since the epoch began, and how fast."""

_logger = logging.getLogger(__name__)


class Monitor:
    """Watch on one session, of the thread that reports whenever it wakes.

    Args:
        job: its name.
        why: asks the dispatcher what is waited for; empty: it did not say.
        progress: show a line that is alive on a terminal, and one more for each epoch.
        clock: monotonic seconds.
        out: where the lines go; None: standard error.
    """

    def __init__(
        self,
        job: str,
        why: Callable[[], str],
        *,
        progress: bool = False,
        clock: Callable[[], float] = time.monotonic,
        out: IO[str] | None = None,
    ) -> None:
        self._job, self._why, self._progress, self._clock = job, why, progress, clock
        self._out = sys.stderr if out is None else out  # None where a process has no standard error
        self._since: float | None = None
        self._came = self._said = self._live = False
        self._asked, self._answer = -_ASK_S, ""
        self._shown = -_LINE_S

    def wanted(self) -> None:
        """Note that somebody waits for an element, or for the epoch that has it."""
        if self._since is None:
            self._since = self._clock()

    def pause(self, most_s: float) -> float:
        """Seconds after which to look again, at most ``most_s``."""
        if self._progress:
            return min(most_s, _LINE_S)
        if self._since is None or self._came or self._said:
            return most_s
        return min(most_s, max(0.01, self._since + FIRST_S - self._clock()))

    def look(self, epoch: int, measure: Measure | None, *, came: bool) -> None:
        """Say what there is to say.

        Args:
            epoch: that is read; -1: none is.
            measure: tells how many elements of it the user has, and how fast they came; None: none is read yet.
            came: some of it is here, and may be used.
        """
        self._came = self._came or came
        now = self._clock()
        waits = self._since is not None and not self._came
        if waits and not self._said and self._since is not None and now - self._since >= FIRST_S:
            self._said = True
            self._ask(now)
            _logger.warning("job %s has had no element for %s: %s", self._job, duration(FIRST_S), self._answer)
        if self._progress and now - self._shown >= _LINE_S and self._is_alive():
            self._shown = now
            if waits and now - self._asked >= _ASK_S:
                self._ask(now)
            if waits:
                self._draw(self._answer)
            elif epoch >= 0 and measure is not None:
                self._draw(_line(epoch, *measure()))

    def ended(
        self, epoch: int, measure: Measure | None, missed: int = 0, members: int = 0, *, made_up_for: bool = False
    ) -> None:
        """Note that nobody reads the epoch any more.

        Args:
            epoch: its number.
            measure: see :meth:`look`.
            missed: elements of it that a shared window no longer had.
            members: jobs that shared its computation; 0: it was not to be shared.
            made_up_for: others came in the place of those that were missed.
        """
        if self._progress and measure is not None:
            self._draw("")
            self._write(f"{_line(epoch, *measure())}{_shared(missed, members, made_up_for=made_up_for)}\n")

    def _ask(self, now: float) -> None:
        self._asked = now
        self._answer = self._why() or "the dispatcher did not say why; `millrace status` may"

    def _draw(self, text: str) -> None:
        if (text or self._live) and self._is_alive():
            self._live = bool(text)
            self._write(f"\r\x1b[2K{_cut(text)}")

    def _is_alive(self) -> bool:
        """Whether the lines go to a terminal."""
        try:
            return self._out is not None and self._out.isatty()
        except (OSError, ValueError):  # it was closed
            return False

    def _write(self, text: str) -> None:
        """Write if that is possible: nobody stops training because nobody looks on."""
        with contextlib.suppress(OSError, ValueError):
            if self._out is not None:
                self._out.write(text)
                self._out.flush()


_WIDTH = 100
_END = 40
"""Characters of a longer line that are shown of its end, as numbers stand there."""


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - _END - 3]}...{text[-_END:]}"


def _shared(missed: int, members: int, *, made_up_for: bool) -> str:
    jobs = f", computed once for {members} jobs" if members > 1 else ""
    return f"{jobs}, {missed:,} missed{' and made up for' if made_up_for else ''}" if missed else jobs


def _line(epoch: int, handed: int, rates: Rates) -> str:
    pace = rates.pace
    text = f"epoch {epoch}: {handed:,} elements"
    if pace.read_s <= 0:
        return text
    speed, waited = number(pace.elements / pace.read_s), percent(min(1.0, pace.waited_s / pace.read_s))
    return f"{text} in {duration(pace.read_s)}, {speed} a second, waited {waited} of the time"
