"""Ctrl-C ends a loop that waits for its next element."""

import os
import signal
import threading

import pytest

import millrace as mr


@pytest.mark.parametrize("service", [1], indirect=True)
def test_ctrl_c_that_came_just_before_the_wait_is_noticed(service, gate, keeper):
    """The interpreter knows of it while the main thread sleeps, and nothing wakes that one: another got the signal."""

    def at_the_gate(number):
        gate.pass_through()
        return number

    def interrupt():
        keeper.wait()
        os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with mr.Dataset.range(3).map(at_the_gate).distribute(service.address) as elements:
            with pytest.raises(KeyboardInterrupt):
                next(iter(elements))
            keeper.open()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        other.join()
