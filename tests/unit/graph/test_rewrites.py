from __future__ import annotations

import pytest

from millrace.dataset import Dataset
from millrace.errors import PipelineError
from millrace.graph import nodes as g
from millrace.graph.rewrites import rewritten
from millrace.graph.rewrites.fusion import Fused


def plain(element):
    return element


def kept(element):
    return True


def what_runs(dataset: Dataset) -> str:
    return " | ".join(str(node) for node in rewritten(dataset.__pipeline__().graph)[0].reachable())


def notes(dataset: Dataset) -> list[str]:
    return rewritten(dataset.__pipeline__().graph)[1]


ONE = Dataset.range(9)


@pytest.mark.parametrize(
    ("dataset", "runs"),
    [
        (ONE.take(-1).skip(0).shard(1, 0), "range()"),
        (ONE.take(1).skip(1).skip(-1).shard(2, 0), "range() | take() | skip() | skip() | shard()"),
        (ONE.with_options(seed=3).batch(2), "range() | batch()"),
        (ONE.repeat(1), "range()"),
        (ONE.repeat(2), "range() | repeat()"),
        (ONE.repeat(1).repeat(), "range() | repeat() | repeat()"),
        (ONE.repeat(2).repeat(1), "range() | repeat()"),
        (ONE.prefetch().prefetch(3), "range() | prefetch()"),
        (ONE.prefetch(3).prefetch(), "range() | prefetch() | prefetch()"),
        (ONE.cache().autocache(), "range() | cache() | autocache()"),
        (ONE.shuffle(3).shuffle(3), "range() | shuffle() | shuffle()"),
    ],
)
def test_what_passes_every_element_on_is_left_out(dataset, runs):
    assert what_runs(dataset) == runs


@pytest.mark.parametrize(
    ("dataset", "runs"),
    [
        (ONE.map(plain).map(plain), "range() | map(plain), map(plain)"),
        (
            ONE.map(plain).take(-1).map(plain).batch(2).map(plain),
            "range() | map(plain), map(plain) | batch() | map(plain)",
        ),
        (ONE.map(plain).filter(kept), "range() | map(plain) | filter(kept)"),
        (
            ONE.filter(kept).map(plain, num_parallel_calls=1).filter(kept),
            "range() | filter(kept), map(plain), filter(kept)",
        ),
        (
            ONE.map(plain, num_parallel_calls=2).map(plain, num_parallel_calls=3).map(plain, num_parallel_calls=3),
            "range() | map(plain) | map(plain), map(plain)",
        ),
        (ONE.map(plain).prefetch().map(plain), "range() | map(plain) | prefetch() | map(plain)"),
        (ONE.map(plain).autocache().map(plain), "range() | map(plain) | autocache() | map(plain)"),
    ],
)
def test_functions_that_are_called_alike_run_as_one(dataset, runs):
    assert what_runs(dataset) == runs


def test_what_two_operators_take_is_not_fused_with_one_of_them():
    shared = ONE.map(plain)
    both = Dataset.zip(shared.map(plain), shared)
    assert what_runs(both) == "range() | map(plain) | map(plain) | zip()"


def test_the_parts_of_a_chain_keep_their_numbers():
    graph = ONE.map(plain).take(-1).map(plain).map(plain).__pipeline__().graph
    new, _ = rewritten(graph)
    assert isinstance(new.root, Fused)
    assert [new.id_of(part) for part in new.root.parts] == [1, 3, 4]
    assert new.id_of(new.root) == 4
    assert new.keys == graph.keys
    assert [type(node) for node in graph.reachable()] == [g.Range, g.Map, g.Take, g.Map, g.Map]


def test_notes_say_it_in_plain_words_and_an_option_forbids_it():
    dataset = ONE.map(plain).take(-1).map(plain)
    assert notes(dataset) == [
        "left out, as they pass on every element as it is: take()",
        "run as one: map(plain), map(plain)",
    ]
    assert notes(ONE.batch(2)) == []
    off = dataset.with_options(rewrites=False)
    assert rewritten(off.__pipeline__().graph) == (off.__pipeline__().graph, [])
    with pytest.raises(PipelineError, match="rewrites must be one of None, True, False"):
        dataset.with_options(rewrites="fusion")  # type: ignore[arg-type]  # a user's mistake
