"""End of a process of the command line: by signals, with its parent, and in time. Signal handlers live here alone."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from types import FrameType

T = TypeVar("T")

EXIT_S = 5.0
"""Seconds that a process waits, after its orderly end, for a user's code that still holds it."""


def end_with(stop: Callable[[str], None], *, parent_pipe: bool) -> None:
    """Have SIGTERM and SIGINT call ``stop`` (a second one again, which ends at once), and the parent's end likewise."""
    # Not by a Python handler. Only the main thread runs those, it waits in a lock, and nothing wakes it if the kernel
    # gives the signal to another thread (one that is just starting takes it). What C writes here wakes its reader.
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    os.register_at_fork(after_in_child=_without_signals)

    def listen() -> None:
        while True:
            for number in os.read(heard, 16):
                stop(signal.Signals(number).name)

    threading.Thread(target=listen, name="millrace-signals", daemon=True).start()

    def ended(reason: str) -> None:
        stop(reason)
        stop(reason)
        exit_soon(1)

    if parent_pipe:
        watch_parent(ended)


def exit_status(run: Callable[[], object]) -> int:
    """Run the whole life of a process; return its exit status, with which it ends soon, whatever code holds it."""
    status = 1
    try:
        run()
        status = 0
    finally:
        exit_soon(status)
    return status


def until_interrupted(answers: Iterable[T]) -> Generator[T]:
    """Give the answers until Ctrl-C, also where it meets a ``__del__`` or a callback, in which Python swallows it.

    Raises:
        KeyboardInterrupt: at once, or instead of the next answer.
    """
    interrupted = False
    before = signal.getsignal(signal.SIGINT)
    report = sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def report_others(swallowed: sys.UnraisableHookArgs) -> None:
        if swallowed.exc_type is not KeyboardInterrupt:
            report(swallowed)

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = report_others
    try:
        for answer in answers:
            if interrupted:
                raise KeyboardInterrupt
            yield answer
    finally:
        sys.unraisablehook = report
        signal.signal(signal.SIGINT, before)


def _without_signals() -> None:
    """Restore the signals in a process that user code forks: they are not this process's."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def watch_parent(ended: Callable[[str], object]) -> None:
    """Call ``ended`` on another thread when standard input is closed; whoever else reads it finds its end at once."""
    pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # a user's `breakpoint()` fails there, where it would wait for ever
    os.close(nothing)

    def watch() -> None:
        while os.read(pipe, 4096):  # nothing is ever sent; the end of it is the message
            pass
        # Whoever could have read what is ready is gone as well: no need to wait for them.
        ended("the parent has ended")

    threading.Thread(target=watch, name="millrace-parent", daemon=True).start()


def exit_soon(status: int) -> None:
    """End the process with ``status`` after :data:`EXIT_S`, whatever runs: user code can't be interrupted otherwise."""
    timer = threading.Timer(EXIT_S, os._exit, (status,))
    timer.daemon = True
    timer.start()
