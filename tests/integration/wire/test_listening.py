"""Where a socket listens."""

import contextlib
import socket

import pytest

from millrace.wire.address import listen


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has not both kinds of addresses")
def test_all_networks_are_those_of_both_kinds_of_addresses():
    """gRPC takes :: for both, and a worker listens where its dispatcher does."""
    with contextlib.closing(listen("::", 0)) as listener:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listener.getsockname()[1]), 5).close()
    with contextlib.closing(listen("::1", 0)) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), 5)
