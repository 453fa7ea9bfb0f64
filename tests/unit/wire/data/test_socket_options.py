"""What is set of a new TCP socket, by which end it is."""

import socket
from types import SimpleNamespace

import pytest

from millrace.wire.data.socket_options import UNACKNOWLEDGED_MS, set_socket_options


def options(family, **ends):
    found = {}
    setting = lambda level, option, value: found.update({(level, option): value})  # noqa: E731
    set_socket_options(SimpleNamespace(family=family, setsockopt=setting), **ends)
    return found


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_only_the_end_that_connects_gives_up_what_is_not_acknowledged(family):
    """A peer without room for what a worker sends is a slow consumer, and lives."""
    option = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
    listens, connects = options(family), options(family, connects=True)
    assert option not in listens
    assert connects == {**listens, option: UNACKNOWLEDGED_MS}
    assert listens[socket.IPPROTO_TCP, socket.TCP_NODELAY] == 1
    assert listens[socket.SOL_SOCKET, socket.SO_KEEPALIVE] == 1


def test_a_socket_of_this_host_has_none():
    assert not options(socket.AF_UNIX, connects=True)
