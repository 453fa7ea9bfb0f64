"""Interrupts of a command that goes on until there is one."""

import signal

import pytest

from millrace.cli.shutdown import until_interrupted


class InterruptedWhenFreed:
    """As what gRPC frees, in the middle of which a signal may come."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def answers():
    yield 1
    InterruptedWhenFreed()
    yield 2
    pytest.fail("it went on")


def test_an_interrupt_that_python_swallows_ends_it_before_the_next_answer(capsys):
    before = signal.getsignal(signal.SIGINT)
    seen = until_interrupted(answers())
    assert next(seen) == 1
    with pytest.raises(KeyboardInterrupt):
        next(seen)
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_elsewhere_ends_it_at_once():
    seen = until_interrupted(range(3))
    assert next(seen) == 0
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    seen.close()
