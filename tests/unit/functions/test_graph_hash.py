from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.functions.graph_hash import Node, atom, digest_of, hashed


@st.composite
def graphs(draw):
    """Nodes of few labels, so that many look alike."""
    count = draw(st.integers(1, 7))
    children = st.lists(st.integers(0, count - 1), max_size=3)
    return [Node(draw(st.sampled_from([b"a", b"b"])), draw(children)) for _ in range(count)]


def unfolded(nodes, number, depth):
    """What is seen of a node down to some depth."""
    node = nodes[number]
    return (node.label, tuple(unfolded(nodes, child, depth - 1) for child in node.children) if depth else None)


def acyclic(nodes):
    return [Node(node.label, [child for child in node.children if child > at]) for at, node in enumerate(nodes)]


@given(graphs(), graphs())
def test_without_cycles_digests_are_equal_if_and_only_if_all_that_is_seen_is(one, other):
    one, other = acyclic(one), acyclic(other)
    assert (digest_of(one) == digest_of(other)) == (unfolded(one, 0, 8) == unfolded(other, 0, 8))


@settings(max_examples=300)
@given(graphs(), graphs())
def test_with_cycles_equal_digests_mean_that_the_same_is_seen(one, other):
    if digest_of(one) == digest_of(other):
        assert unfolded(one, 0, 6) == unfolded(other, 0, 6)


@given(graphs(), st.data())
def test_numbers_do_not_matter(nodes, data):
    order = [0, *data.draw(st.permutations(range(1, len(nodes))))]  # place -> old number
    places = {number: place for place, number in enumerate(order)}
    moved = [Node(nodes[number].label, [places[child] for child in nodes[number].children]) for number in order]
    assert digest_of(moved) == digest_of(nodes)


@given(graphs())
def test_a_walk_into_a_cycle_does_not_depend_on_where_the_cycle_was_entered_before(nodes):
    """The digest of a node is the same under whatever root."""
    for number in range(len(nodes)):
        rooted = [Node(b"root", [number + 1]), *(Node(n.label, [c + 1 for c in n.children]) for n in nodes)]
        both = [Node(b"root", [number + 1, number + 1, 1]), *rooted[1:]]
        alone = digest_of(_from(nodes, number))
        assert digest_of(rooted) == hashed(b"root", alone)
        assert digest_of(both) == hashed(b"root", alone, alone, digest_of(nodes))


def _from(nodes, number):
    """The same graph with another node first."""
    order = [number, *(other for other in range(len(nodes)) if other != number)]
    places = {old: place for place, old in enumerate(order)}
    return [Node(nodes[old].label, [places[child] for child in nodes[old].children]) for old in order]


def test_order_counts_where_it_is_said_to():
    leaves = [Node(b"x", []), Node(b"y", [])]
    assert digest_of([Node(b"r", [1, 2]), *leaves]) != digest_of([Node(b"r", [2, 1]), *leaves])
    assert digest_of([Node(b"r", [1, 2], False), *leaves]) == digest_of([Node(b"r", [2, 1], False), *leaves])


def test_long_chains_and_rings():
    def chain(length):
        return [*(Node(b"a", [number + 1]) for number in range(length)), Node(b"end", [])]

    def ring(length):
        return [Node(b"a", [(number + 1) % length]) for number in range(length)]

    for made in (chain, ring):
        assert digest_of(made(5_000)) == digest_of(made(5_000))
        assert digest_of(made(5_000)) != digest_of(made(4_999))


NUMBERS = st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
ATOMS = st.none() | st.booleans() | st.text() | st.binary() | NUMBERS


@given(st.lists(ATOMS, max_size=4), st.lists(ATOMS, max_size=4))
def test_atoms_in_a_row_can_be_told_apart(one, other):
    def joined(values):
        return b"".join(atom(value) or b"" for value in values)

    same = [(type(value), repr(value)) for value in one] == [(type(value), repr(value)) for value in other]
    assert (joined(one) == joined(other)) == same


@pytest.mark.parametrize("value", [[], (), {}, set(), object(), int, len, st])
def test_what_is_no_atom(value):
    assert atom(value) is None
