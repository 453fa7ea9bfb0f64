"""Containers of messages: counted as the decoder would make them, and bounded before it does."""

import os
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import ProtocolError
from millrace.message_budget import FREE_CONTAINERS, MOST_CONTAINERS, check_containers, containers
from millrace.planning.split_table import unpack_tables

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=300))
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=20)
)


def count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(count, value.values()))
    return 1 + sum(map(count, value)) if isinstance(value, list) else 0


@given(values)
def test_containers_are_counted(value):
    assert containers(msgspec.msgpack.encode(value), 1 << 30) == count(value)


@given(st.integers(0, 3), st.sampled_from([b"\xdc", b"\xdd", b"\xde", b"\xdf"]), st.integers(0, 70_000))
def test_long_lists_and_maps_are_one_container_each(inside, head, length):
    width = 2 if head in (b"\xdc", b"\xde") else 4
    encoded = head + (length % (1 << 8 * width)).to_bytes(width) + b"\x90" * inside
    assert containers(encoded, 1 << 30) == 1 + inside


@given(st.binary())
def test_whatever_comes_is_counted(data):
    assert 0 <= containers(data, 10) <= 11


@pytest.mark.parametrize("head", [b"\x80", b"\x90", b"\xdc\0\0", b"\x91\xc0", b"\x81\xa1a\xc0"])
def test_small_messages_are_not_millions_of_containers(head):
    check_containers(head * FREE_CONTAINERS, "a message")
    with pytest.raises(ProtocolError, match=r"a message of [\d,]+ bytes has more than [\d,]+ lists and maps"):
        check_containers(head * (2 * MOST_CONTAINERS), "a message")


def test_bytes_that_look_like_containers_are_none():
    check_containers(msgspec.msgpack.encode([b"\x90" * (1 << 22), "\u0590" * (1 << 22), os.urandom(1 << 20)]), "it")


def test_split_tables_are_bounded():
    table = b"\x81\x00\x83\xa5cheap\xc2\xa5count\x00\xa6splits\xdd\x00\x20\x00\x00" + b"\x91\xa0" * (1 << 21)
    with pytest.raises(ProtocolError, match="split tables of"):
        unpack_tables(table)
