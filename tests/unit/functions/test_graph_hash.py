from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.functions.graph_hash import ValueNode, atom, hash_graph, hash_parts


@st.composite
def graphs(draw):
    """Nodes of few labels, so that many look alike."""
    count = draw(st.integers(1, 7))
    children = st.lists(st.integers(0, count - 1), max_size=3)
    return [ValueNode(draw(st.sampled_from([b"a", b"b"])), draw(children)) for _ in range(count)]


def unfolded(nodes, number, depth):
    """What is seen of a node down to some depth."""
    node = nodes[number]
    return (node.label, tuple(unfolded(nodes, child, depth - 1) for child in node.children) if depth else None)


def acyclic(nodes):
    return [ValueNode(node.label, [child for child in node.children if child > at]) for at, node in enumerate(nodes)]


@given(graphs(), graphs())
def test_without_cycles_digests_are_equal_if_and_only_if_all_that_is_seen_is(one, other):
    one, other = acyclic(one), acyclic(other)
    assert (hash_graph(one) == hash_graph(other)) == (unfolded(one, 0, 8) == unfolded(other, 0, 8))


@settings(max_examples=300)
@given(graphs(), graphs())
def test_with_cycles_equal_digests_mean_that_the_same_is_seen(one, other):
    if hash_graph(one) == hash_graph(other):
        assert unfolded(one, 0, 6) == unfolded(other, 0, 6)


@given(graphs(), st.data())
def test_numbers_do_not_matter(nodes, data):
    order = [0, *data.draw(st.permutations(range(1, len(nodes))))]  # place -> old number
    places = {number: place for place, number in enumerate(order)}
    moved = [ValueNode(nodes[number].label, [places[child] for child in nodes[number].children]) for number in order]
    assert hash_graph(moved) == hash_graph(nodes)


@given(graphs())
def test_a_walk_into_a_cycle_does_not_depend_on_where_the_cycle_was_entered_before(nodes):
    """The digest of a node is the same under whatever root."""
    for number in range(len(nodes)):
        rooted = [ValueNode(b"root", [number + 1]), *(ValueNode(n.label, [c + 1 for c in n.children]) for n in nodes)]
        both = [ValueNode(b"root", [number + 1, number + 1, 1]), *rooted[1:]]
        alone = hash_graph(_from(nodes, number))
        assert hash_graph(rooted) == hash_parts(b"root", alone)
        assert hash_graph(both) == hash_parts(b"root", alone, alone, hash_graph(nodes))


def _from(nodes, number):
    """The same graph with another node first."""
    order = [number, *(other for other in range(len(nodes)) if other != number)]
    places = {old: place for place, old in enumerate(order)}
    return [ValueNode(nodes[old].label, [places[child] for child in nodes[old].children]) for old in order]


def test_order_counts_where_it_is_said_to():
    leaves = [ValueNode(b"x", []), ValueNode(b"y", [])]
    assert hash_graph([ValueNode(b"r", [1, 2]), *leaves]) != hash_graph([ValueNode(b"r", [2, 1]), *leaves])
    assert hash_graph([ValueNode(b"r", [1, 2], False), *leaves]) == hash_graph(
        [ValueNode(b"r", [2, 1], False), *leaves]
    )


def test_long_chains_and_rings():
    def chain(length):
        return [*(ValueNode(b"a", [number + 1]) for number in range(length)), ValueNode(b"end", [])]

    def ring(length):
        return [ValueNode(b"a", [(number + 1) % length]) for number in range(length)]

    for made in (chain, ring):
        assert hash_graph(made(5_000)) == hash_graph(made(5_000))
        assert hash_graph(made(5_000)) != hash_graph(made(4_999))


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
