"""What gRPC calls a peer, and what Linux does, are one name."""

import sys

import pytest

from millrace.wire.control import connection_sweep
from millrace.wire.control.connection_sweep import ConnectionSweep, _plain


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:10.0.0.7:41234", "10.0.0.7:41234"),
        ("ipv6:%5B::1%5D:41234", "::1:41234"),
        ("ipv6:[2001:db8::7]:1", "2001:db8::7:1"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:41234", "10.0.0.7:41234"),
        ("ipv6:%5Bfe80::1%252%5D:41234", "fe80::1:41234"),
    ],
)
def test_names_of_peers(peer, name):
    assert _plain(peer) == name


@pytest.mark.parametrize(
    ("few", "folder", "due"), [(1 << 20, "/proc/self/fd", False), (0, "/proc/self/fd", True), (0, "/nowhere", False)]
)
def test_without_many_descriptors_nothing_is_looked_at(monkeypatch, few, folder, due):
    monkeypatch.setattr(connection_sweep, "_FEW", few)
    monkeypatch.setattr(connection_sweep, "_DESCRIPTORS", folder)
    assert ConnectionSweep(1).due is due


def test_those_that_were_let_in_and_have_gone_are_forgotten_sooner_or_later(monkeypatch):
    sweep = ConnectionSweep(1)
    monkeypatch.setattr(connection_sweep, "_DESCRIPTORS", "/nowhere")
    monkeypatch.setattr(sweep, "_connections", list)
    for number in range(connection_sweep._FEW):
        sweep.let_in(f"ipv4:10.0.0.7:{number}")
        sweep.let_in(f"ipv4:10.0.0.7:{number}")
    due = [sweep.due]
    sweep.let_in("ipv4:10.0.0.8:1")
    due.append(sweep.due)
    sweep.sweep(0.0)
    assert not sweep._known
    assert [*due, sweep.due] == [False, True, False]


def test_who_is_let_in_while_it_is_looked_at_stays(monkeypatch):
    """Calls are taken by one thread, and connections looked up by another."""
    sweep = ConnectionSweep(1)

    def look():
        yield "10.0.0.7:1", sys.maxsize  # nothing is open by that number
        sweep.let_in("ipv4:10.0.0.7:1")
        sweep.let_in("ipv4:10.0.0.7:2")  # too late to be found

    monkeypatch.setattr(sweep, "_connections", look)
    assert sweep.sweep(0.0) == 0
    assert sweep._known == {"10.0.0.7:1", "10.0.0.7:2"}
    assert sweep.sweep(100.0) == 0
