import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import ProtocolError
from millrace.wire.data import striping
from millrace.wire.data.striping import MAX_SOCKETS, PendingSockets, StripePart, sockets_for, stripe, window_bytes

SLICE = 5

cuts = st.lists(st.integers(0, 40), max_size=8)


@given(st.binary(max_size=200), cuts, st.integers(0, 3), cuts, st.integers(1, 4))
def test_both_ends_deal_the_same_bytes_to_the_same_sockets(data, sent, calls, received, count):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(striping, "SLICE_BYTES", SLICE)
        left = dealt(pieces(data, sent), count, calls)
        right = dealt(pieces(data, received), count, 100)
    assert left == right
    assert sum(map(len, left)) == len(data)
    assert all(len(share) <= len(data) / count + SLICE for share in left)


def pieces(data, lengths):
    position = 0
    for length in lengths:
        yield memoryview(data)[position : position + length]
        position += length
    yield memoryview(data)[position:]


def dealt(views, count, calls):
    """What each socket carries if ``views`` are given to stripe one by one for so many calls, then all at once."""
    views = list(views)
    shares = [b""] * count
    position = 0
    for group in [*([view] for view in views[:calls]), views[calls:]]:
        for index, share in enumerate(stripe(group, position, count)):
            shares[index] += b"".join(share)
        position += sum(view.nbytes for view in group)
    return shares


def test_slices_take_turns(monkeypatch):
    monkeypatch.setattr(striping, "SLICE_BYTES", 2)
    shares = stripe([memoryview(b"bccddee"), memoryview(b"ffg")], 3, 3)
    assert [[bytes(view) for view in share] for share in shares] == [[b"dd", b"g"], [b"b", b"ee"], [b"cc", b"ff"]]


def test_a_short_message_occupies_one_socket():
    assert [len(share) for share in stripe([memoryview(b"header"), memoryview(b"payload")], 0, 8)] == [2] + [0] * 7


def test_sockets_hide_the_round_trip():
    window = 2 << 20
    assert sockets_for(0.0, window, same_host=False) == 1
    assert sockets_for(0.0002, window, same_host=False) == 1  # a machine room
    assert sockets_for(0.001, window, same_host=False) == 2
    assert sockets_for(0.1, window, same_host=False) == MAX_SOCKETS
    assert sockets_for(0.1, math.inf, same_host=False) == 1
    assert sockets_for(0.1, window, same_host=True) == 1


@given(st.floats(0, 10), st.floats(1, 1e9))
def test_never_fewer_than_the_formula_says_unless_there_are_as_many_as_may_be(round_trip, window):
    count = sockets_for(round_trip, window, same_host=False)
    assert 1 <= count <= MAX_SOCKETS
    assert count == MAX_SOCKETS or count * window >= striping.REACH * round_trip * (1 - 1e-9)


def test_the_window_is_read_from_the_kernels_limits(tmp_path):
    (tmp_path / "tcp_rmem").write_text("4096\t131072\t6291456\n")
    assert window_bytes(str(tmp_path)) == math.inf
    (tmp_path / "tcp_wmem").write_text("4096\t16384\t4194304\n")
    assert window_bytes(str(tmp_path)) == 2 << 20
    (tmp_path / "tcp_wmem").write_text("4096\n")
    assert window_bytes(str(tmp_path)) == math.inf


@pytest.mark.parametrize(("index", "count"), [(1, 1), (-1, 2), (0, MAX_SOCKETS + 1), (0, -1), (8, 8)])
def test_parts_that_cannot_be(index, count):
    with pytest.raises(ProtocolError, match=f"socket {index} of {count} was offered; a connection has at most 8"):
        StripePart("a", index, count).check()


def test_nothing_is_collected_before_all_have_come():
    with pytest.raises(ProtocolError, match="a connection of 3 sockets came before all of them were there"):
        PendingSockets().collect(StripePart("a", 0, 3))
