"""Peers that are not let in yet: who goes for whom, and when."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from millrace.wire.lobby import Lobby


def test_the_silent_go_before_those_who_speak():
    lobby = Lobby[str](10.0, 3, 100)
    for number, peer in enumerate("abc"):
        assert lobby.enter(peer, "here", number) is None
    lobby.spoke("a")
    assert lobby.enter("d", "here", 3.0) == "b"
    assert lobby.enter("e", "there", 3.0) is None
    for peer in "cd":
        lobby.spoke(peer)
    assert lobby.enter("f", "here", 4.0) == "a"
    assert lobby.turn_away() == "e"
    assert lobby.turn_away() == "f"
    assert lobby.turn_away() is None


def test_when_all_is_full_the_address_with_most_gives_room():
    lobby = Lobby[int](10.0, 5, 6)
    for peer in range(5):
        lobby.enter(peer, "crowd", peer)
    assert lobby.enter(10, "alone", 5.0) is None
    assert lobby.enter(11, "other", 6.0) == 0
    assert 10 in lobby


def test_time_runs_on_for_those_who_are_let_in_until_they_leave():
    lobby = Lobby[str](10.0, 1, 1)
    assert lobby.deadline() is None
    lobby.enter("a", "here", 1.0)
    lobby.let_in("a")
    assert len(lobby) == 0
    lobby.enter("b", "here", 2.0)
    assert lobby.deadline() == 11.0
    assert lobby.overdue(10.9) == []
    assert lobby.overdue(11.0) == ["a"]
    assert lobby.deadline() == 12.0
    lobby.leave("b")
    lobby.leave("b")
    assert lobby.overdue(100.0) == []
    assert lobby.deadline() is None


actions = st.tuples(st.sampled_from(["enter", "spoke", "let_in", "leave", "overdue"]), st.integers(0, 30))


@given(st.lists(actions, max_size=200))
def test_bounds_hold_whatever_happens(steps):
    """Who was let in comes again when it has left, or its time was over: not before."""
    lobby = Lobby[int](5.0, 3, 7)
    there: dict[int, str] = {}
    known = set[int]()
    for now, (what, peer) in enumerate(steps):
        if what == "enter" and peer not in there and peer not in known:
            gone = lobby.enter(peer, str(peer % 4), now)
            there.pop(-1 if gone is None else gone, None)
            there[peer] = str(peer % 4)
        elif what == "overdue":
            for late in lobby.overdue(now):
                there.pop(late, None)
                known.discard(late)
        elif what != "enter":
            getattr(lobby, what)(peer)
            if what == "let_in" and peer in there:
                known.add(peer)
            elif what == "leave":
                known.discard(peer)
            if what != "spoke":
                there.pop(peer, None)
        assert len(lobby) == len(there) <= 7
        assert all(peer in lobby for peer in there)
        assert max(Counter(there.values()).values(), default=0) <= 3
