"""Who listens at a port of this machine: the kernel's answer, and its tables."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from pathlib import Path

import pytest

from millrace.wire import listeners

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems don't say")
ipv6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")


def test_the_kernels_table_begins_with_who_listens():
    """No more of it is read."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        states = [row.split()[3] for row in Path(listeners.TABLES[0]).read_text().splitlines()[1:]]
    assert {"0A", "01"} <= set(states)
    assert "0A" not in states[states.count("0A") :]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "0.0.0.0", pytest.param("::1", marks=ipv6), pytest.param("::", marks=ipv6)]
)
def test_the_kernel_says_of_a_listener_what_its_tables_say(host: str):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(listener.getsockname()[:2]):  # who is connected doesn't listen
            expected = {(ipaddress.ip_address(host), os.geteuid())}
            assert set(listeners._asked(port)) == set(listeners._from_tables(port)) == expected


def test_of_two_listeners_at_one_port_both_are_found():
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)):
            found = {str(each.ip) for each in listeners._asked(port)}
    assert found == {"127.0.0.1", "127.0.0.2"}
