"""Sets of tasks, and what was yielded of an epoch."""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.planning import progress
from millrace.planning.progress import Progress, TaskSet

TASKS = st.lists(st.integers(0, 300))


@given(TASKS, TASKS)
def test_a_task_set_is_a_set(ours, theirs):
    one, other = TaskSet.of(ours), TaskSet.of(theirs)
    assert [task for task in range(310) if task in one] == list(one) == sorted(set(ours))
    assert len(one) == len(set(ours))
    both = one | other
    assert [task for task in range(310) if task in both] == sorted({*ours, *theirs})
    assert both == other | one == TaskSet.of([*theirs, *ours])
    assert one.copy() == one == TaskSet.of(ours)


@given(TASKS, st.integers(0, 320), st.integers(1, 9), st.integers(1, 4))
def test_a_set_tells_what_is_absent_and_how_many_remainders_there_are(tasks, end, every, at_once):
    ours = TaskSet.of(tasks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "_AT_ONCE", at_once)
        assert [task for part in ours.beyond() for task in part.tolist()] == [task for task in ours if task >= ours.low]
        runs = list(ours.absent(max(end, *tasks, 0)))
        assert ours.counts(every) == [sum(task % every == rest for task in ours) for rest in range(every)]
    assert [task for run in runs for task in range(*run)] == [
        task for task in range(max(end, *tasks, 0)) if task not in ours
    ]
    assert all(first < stop for first, stop in runs)
    assert all(one[1] < other[0] for one, other in pairwise(runs))


@given(TASKS, st.sampled_from([0, 2048]))
def test_text_says_all(tasks, plain):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "PLAIN_BYTES", plain)
        check_text(TaskSet.of(tasks))


def check_text(ours):
    assert TaskSet.parse(ours.low, ours.text()) == ours
    assert ours.low not in ours
    ours.add(ours.low)
    assert TaskSet.parse(ours.low, ours.text()) == ours


def test_one_reader_in_about_order_has_short_text_and_one_of_several_too():
    alone = TaskSet.of([*range(100_000), 100_003, 100_007])
    assert (alone.low, len(alone.text())) == (100_000, 4)
    one_of_eight = TaskSet.of(range(3, 100_000, 8))
    assert len(one_of_eight.text()) < 200


@pytest.mark.parametrize(
    ("low", "text"),
    [
        (-1, ""),
        (0, "!"),
        (0, "~" + base64.b64encode(b"no").decode()),
        (0, "~" + base64.b64encode(zlib.compress(b"12")[:-5]).decode()),
    ],
)
def test_what_is_no_such_text_is_refused(low, text):
    with pytest.raises(ValueError, match="set of tasks"):
        TaskSet.parse(low, text)


def test_a_small_text_that_would_become_huge_is_refused():
    text = "~" + base64.b64encode(zlib.compress(bytes(40 << 20))).decode()
    with pytest.raises(ValueError, match="far too many"):
        TaskSet.parse(0, text)


@given(st.data())
def test_progress_counts_whatever_the_order_in_which_it_is_told(data):
    outputs = data.draw(st.lists(st.integers(0, 5), max_size=6))
    yields = data.draw(st.permutations([task for task, count in enumerate(outputs) for _ in range(count)]))
    ends = data.draw(st.permutations(list(enumerate(outputs))))
    told = data.draw(st.permutations(["yield"] * len(yields) + ["end"] * len(ends)))
    reader, yielded, ended = Progress(), Counter[int](), set[int]()
    left, ending = iter(yields), iter(ends)
    for word in told:
        if word == "yield":
            task = next(left)
            yielded[task] += 1
            reader.yielded(task, yielded[task])
        else:
            task, count = next(ending)
            ended.add(task)
            reader.ends(task, count)
        done, begun = reader.now()
        over = {task for task in ended if yielded[task] == outputs[task]}
        assert done == TaskSet.of(over)
        assert begun == sorted((task, count) for task, count in yielded.items() if task not in over)
