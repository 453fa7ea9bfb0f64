import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.planning.choice_pattern import ChoicePattern
from millrace.planning.mixture import ENDLESS

MOST = 300
ENDINGS = ["stop", "go on", "cycle"]


def one_by_one(choices, times, counts, ending, passes):
    """The same without arithmetic: up to ``MOST`` elements as (input, position in it)."""
    used, ended, gone = [0] * len(counts), set(), set()
    out: list[tuple[int, int]] = []
    turn = 0
    while choices and (times is None or turn < times * len(choices)) and len(out) < MOST:
        number = choices[turn % len(choices)]
        turn += 1
        if number in gone:
            continue
        if ending == "cycle" and used[number] >= passes[number]:
            ended.add(number)
            if ended == set(choices):
                break
        if used[number] >= counts[number]:
            gone.add(number)
            if ending == "stop" or gone == set(choices):
                break
            continue
        out.append((number, used[number]))
        used[number] += 1
    return out


@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 7, ENDLESS]), min_size=1, max_size=4),
    st.data(),
    st.sampled_from([None, 0, 1, 2, 9]),
    st.sampled_from(ENDINGS),
)
@settings(max_examples=300)
def test_any_pattern_is_what_it_is_one_by_one(lengths, data, times, ending):
    choices = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=7))
    passes = lengths if ending == "cycle" else None
    counts = [ENDLESS if length else 0 for length in lengths] if passes else lengths
    pattern = ChoicePattern(choices, times, counts, ending == "stop", passes)
    expected = one_by_one(choices, times, counts, ending, passes)
    assert min(pattern.total, MOST) == len(expected)
    which, index = pattern.resolve(np.arange(len(expected)))
    assert list(zip(which.tolist(), index.tolist(), strict=True)) == expected
    assert which.dtype == index.dtype == np.int64
    backwards = np.arange(len(expected))[::-1]
    assert [each.tolist() for each in pattern.resolve(backwards)] == [which[::-1].tolist(), index[::-1].tolist()]


def test_positions_far_away_take_no_longer():
    pattern = ChoicePattern([0, 0, 1], None, [ENDLESS, 10**15], stop_on_empty=False)
    assert pattern.total == ENDLESS
    assert [each.tolist() for each in pattern.resolve([3 * 10**14 + 2, 4 * 10**15])] == [[1, 0], [10**14, 3 * 10**15]]
    assert ChoicePattern([0, 0, 1], None, [ENDLESS, 10**15]).total == 3 * 10**15 + 2


def test_positions_beyond_the_end_are_refused():
    pattern = ChoicePattern([0, 1], 2, [9, 9])
    for position in (-1, 4):
        with pytest.raises(IndexError, match="positions of these choices are below 4"):
            pattern.resolve([position])


def test_nothing_again_and_again_is_nothing():
    nothing = Dataset.range(0).repeat().take(5)
    assert not list(Dataset.choose_from_datasets([Dataset.range(3)], nothing))
    assert not list(Dataset.choose_from_datasets([Dataset.range(3)], Dataset.range(0).repeat(1 << 60).take(5)))
