"""Saved states: read back, compared with where they are loaded, and those of several ranks put together."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.errors import StateError
from millrace.planning.checkpoint import (
    Checkpoint,
    fit,
    graph_digest,
    identity,
    merge,
    pack,
    parse_all,
    parts_of,
    said,
    unpack,
)
from millrace.planning.epoch_cursor import start_of
from millrace.planning.plan import Piece
from millrace.planning.progress import TaskSet
from millrace.planning.split_table import Split, files_table, splits_table

STATE = Checkpoint(seed=5, epoch=2, graph="ab", sources=["x|1|0|00"], tasks=20, done=3, later="", begun=[(4, 2)])


def checkpoint(done: list[int], **fields: Any) -> Checkpoint:
    tasks = TaskSet.of(done)
    return msgspec.structs.replace(STATE, **{"done": tasks.low, "later": tasks.text(), "begun": [], **fields})


def test_a_state_is_plain_and_comes_back():
    state = pack(STATE)
    assert unpack(json.loads(json.dumps(state))) == unpack(state) == STATE
    assert parse_all([state]) == parse_all(state) == (STATE,)


def test_a_state_of_before_tasks_that_leave_nothing_over_were_told():
    state = pack(STATE)
    del state["alone"]
    assert unpack(state) == STATE


def test_the_slot_that_is_next_is_in_states_of_coordinated_reads_alone():
    assert "turn" not in pack(STATE)  # older versions read it
    assert unpack(pack(msgspec.structs.replace(STATE, turn=3))).turn == 3


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "a dict that state_dict"),
        ({}, "a dict that state_dict"),
        ({"step": 3}, "a dict that state_dict"),
        ({"version": 2}, "has version 2"),
        ({**pack(STATE), "more": 1}, "has 'more', which"),
        ({**pack(STATE), "epoch": "two"}, "damaged: Expected `int`"),
        ({**pack(STATE), "later": "?"}, "damaged: not a set of tasks"),
        ({**pack(STATE), "epoch": -1}, "no number in it can be -1"),
        ({**pack(STATE), "begun": [[1, -2]]}, "no number in it can be -2"),
        ({**pack(STATE), "turn": -1}, "no number in it can be -1"),
        ({**pack(STATE), "rank": 2, "ranks": 2}, "damaged"),
        ({**pack(STATE), "done": 21}, "task 20 of 20"),
        ({**pack(STATE), "begun": [[20, 1]]}, "task 20 of 20"),
        ({**pack(STATE), "alone": [21, ""]}, "task 20 of 20"),
        ({**pack(STATE), "tasks": None, "alone": [1 << 21, ""]}, "2,097,152 tasks of which nothing is left over"),
        ({**pack(STATE), "alone": [0, "?"]}, "damaged: not a set of tasks"),
        ({**pack(STATE), "alone": [3]}, "damaged: Expected `array` of length 2"),
        ([], "empty list"),
    ],
)
def test_what_is_no_state_is_refused(state, words):
    with pytest.raises(StateError, match=words):
        parse_all(state)


# -- several ranks -----------------------------------------------------------------------------------------------------


@given(st.data())
def test_what_is_left_is_what_no_rank_has(data):
    ranks = data.draw(st.integers(1, 4))
    owners = data.draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=20))
    begun = data.draw(st.dictionaries(st.integers(0, len(owners) - 1), st.integers(1, 9)))
    done = [[t for t, owner in enumerate(owners) if owner == rank and t not in begun] for rank in range(ranks)]
    states = [
        checkpoint(
            done[rank],
            begun=[(task, count) for task, count in sorted(begun.items()) if owners[task] == rank],
            rank=rank,
            ranks=ranks,
        )
        for rank in range(ranks)
    ]
    merged = merge(data.draw(st.permutations(states)))
    assert merged.epoch == STATE.epoch
    assert merged.tasks_done() == TaskSet.of(task for task in range(len(owners)) if task not in begun)
    assert dict(merged.begun) == begun


def test_who_has_read_further_since_both_began_where_a_third_stopped_counts():
    states = [
        checkpoint([0], begun=[(1, 3), (2, 5)], rank=0, ranks=2),
        checkpoint([0, 2], begun=[(1, 4)], rank=1, ranks=2),
    ]
    assert merge(states).begun == [(1, 4)]
    assert merge(states).tasks_done() == TaskSet.of([0, 2])


def test_what_any_rank_knows_to_leave_nothing_over_leaves_nothing_over():
    known = [[0, 3], [], [3, 17]]
    sets = map(TaskSet.of, known)
    states = [checkpoint([], alone=(tasks.low, tasks.text()), rank=rank, ranks=3) for rank, tasks in enumerate(sets)]
    assert [*merge(states).tasks_alone()] == [0, 3, 17]
    assert not len(said([checkpoint([], epoch=3, alone=(1, ""))], 2).tasks_alone())


def test_epochs_that_have_ended_for_some_or_for_all():
    here, over = checkpoint([1], rank=0, ranks=2), checkpoint([0], rank=1, ranks=2, ended=True)
    assert (merge([here, over]).epoch, len(merge([here, over]).tasks_done())) == (2, 2)
    both = [msgspec.structs.replace(here, ended=True), over]
    assert (merge(both).epoch, len(merge(both).tasks_done())) == (3, 0)
    begun = checkpoint([], rank=0, ranks=2, epoch=3)
    assert merge([begun, over]).epoch == 3
    with pytest.raises(StateError, match="rank 0 is in epoch 3 and another rank in epoch 2"):
        merge([begun, msgspec.structs.replace(over, ended=False)])


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([checkpoint([], ranks=3), checkpoint([], rank=2, ranks=3)], "all 3 ranks; missing: 1"),
        ([checkpoint([], ranks=2), checkpoint([], ranks=2)], r"ranks \[0, 0\]: give each"),
        ([checkpoint([], ranks=2), checkpoint([], rank=1, ranks=2, seed=6)], "seed is 5 with rank 0 and 6 with rank 1"),
        ([checkpoint([], ranks=2), checkpoint([], rank=1, ranks=2, tasks=6)], "tasks is 20 with rank 0 and 6"),
    ],
)
def test_states_that_do_not_belong_together(states, words):
    with pytest.raises(StateError, match=words):
        merge(states)


@pytest.mark.parametrize("behind", [0, 1])
def test_a_rank_that_has_read_nothing_yet_hides_nothing_of_what_others_have(behind):
    states = [checkpoint([] if rank == behind else [0, 3], rank=rank, ranks=2) for rank in range(2)]
    for order in (states, states[::-1]):
        assert start_of(tuple(order), None) == merge(states)
        assert start_of(tuple(order), None).done == 1
    with pytest.raises(StateError, match="of all 2 ranks; missing: "):
        start_of((states[behind],), None)
    alone = checkpoint([], chunks=4)
    assert start_of((alone,), None).chunks == start_of((alone, alone), None).chunks == 4


def test_states_of_helpers_are_for_the_same_helper():
    helper = checkpoint([0, 1], helpers=True, rank=1, ranks=2, ended=True)
    assert start_of((helper,), (1, 2)).epoch == 2
    with pytest.raises(StateError, match="num_workers=2"):
        start_of((helper,), None)
    with pytest.raises(StateError, match="this is process 0 of 2"):
        start_of((helper,), (0, 2))
    with pytest.raises(StateError, match="of one that read alone, and this is process 0 of 2"):
        start_of((checkpoint([0]),), (0, 2))
    assert start_of((checkpoint([]),), (0, 2)).epoch == 2


# -- what it is loaded into --------------------------------------------------------------------------------------------


def pipeline(size: int = 4, drop: bool = False) -> Dataset:
    return Dataset.range(100).shuffle(10).map(abs).batch(size, drop)


def test_functions_options_and_what_only_passes_on_may_change():
    same = pipeline()
    changed = (
        Dataset.range(100).shuffle(10).prefetch(3).map(str, num_parallel_calls=4).batch(4).with_options(num_threads=3)
    )
    assert graph_digest(changed.__pipeline__().graph) == graph_digest(same.__pipeline__().graph)
    for other in (
        pipeline(5),
        pipeline(drop=True),
        Dataset.range(101).shuffle(10).map(abs).batch(4),
        Dataset.range(100).map(abs).shuffle(10).batch(4),
        same.with_options(on_error="skip"),
        same.with_options(buffer_bytes=1 << 20),
    ):
        assert graph_digest(other.__pipeline__().graph) != graph_digest(same.__pipeline__().graph)


GRAPH = Dataset.from_tfrecords("a").__pipeline__().graph
SPLITS = [Split(f"part-{number}", count=5, bytes=40, version="yesterday") for number in range(100)]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ([*SPLITS[:-1]], r"from_tfrecords\(\) had 100 splits and has 99"),
        ([Split("part-0", count=6, bytes=40), *SPLITS[1:]], "had 500 elements and has 501"),
        ([*SPLITS[:50], Split("moved", count=5, bytes=40), *SPLITS[51:]], "one of splits 50 to 52 is another"),
        ([*SPLITS[:-2], SPLITS[-1], SPLITS[-2]], "one of splits 96 to 99 is another"),
    ],
)
def test_other_data_are_refused_with_what_changed(changed, words):
    there = identity(GRAPH, {0: splits_table(SPLITS)}, 10)
    with pytest.raises(StateError, match=words):
        fit(there, identity(GRAPH, {0: splits_table(changed)}, 10))


def test_of_few_splits_the_one_that_changed_is_named():
    graph = Dataset.from_files(["a", "b"]).__pipeline__().graph
    there = identity(graph, {0: files_table([("a", 1, "x"), ("b", 2, "")])}, 1)
    with pytest.raises(StateError, match="split 1 is another"):
        fit(there, identity(graph, {0: files_table([("a", 1, ""), ("b", 3, "")])}, 1))


def test_files_written_again_are_the_same_and_another_number_of_tasks_is_not():
    again = [msgspec.structs.replace(split, version="today") for split in SPLITS]
    there, here = (identity(GRAPH, {0: splits_table(splits)}, 10) for splits in (SPLITS, again))
    fit(there, here)
    with pytest.raises(StateError, match="an epoch of 10 tasks, here it has 11"):
        fit(there, identity(GRAPH, {0: splits_table(again)}, 11))
    with pytest.raises(StateError, match="other operators or parameters"):
        fit(there, msgspec.structs.replace(here, graph="other"))


def test_of_large_data_little_is_said():
    many = [Split(f"s3://bucket/{number:09}", count=1000, bytes=1 << 20) for number in range(10_000)]
    assert len(identity(GRAPH, {0: splits_table(many)}, 10).sources[0]) < 250


def test_operators_behind_distribute_have_a_part_in_states_where_there_are_any():
    plain = Checkpoint(seed=1)
    assert not {"behind", "counts", "parts"} & set(pack(plain))
    state = Checkpoint(seed=1, behind="ab", counts=[3, 0], parts=[(4, 2, [1, 7])])
    assert unpack(json.loads(json.dumps(pack(state)))) == state
    for damaged in ({"counts": [-1]}, {"parts": [[0, 0, [-1]]]}, {"parts": [[-1, 0, [1]]]}):
        with pytest.raises(StateError, match="damaged"):
            unpack({**pack(state), **damaged})
    further = Checkpoint(seed=1, parts=[(4, 2, [2]), (5, 0, [1])])
    assert parts_of([state, further], 0) == [(4, 2, [2]), (5, 0, [1])]
    assert parts_of([state, further], 1) == []


@pytest.mark.parametrize(
    "fields",
    [{"chunks": -1}, {"chunks": 10**9}, {"chunks": 10, "shares": 2}, {"chunks": 1 << 13, "pieces": [Piece.of(0, 4)]}],
)
def test_chunks_that_cannot_be(fields):
    with pytest.raises(StateError, match="chunks, for"):
        unpack(pack(Checkpoint(seed=1, graph="g", tasks=100, **fields)))
