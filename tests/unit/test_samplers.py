"""Samplers: which positions they draw, that any part of an epoch can be drawn alone, and what is refused."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import Dataset, PipelineError, StateError, samplers
from millrace.planning.orders import EpochOrders
from millrace.planning.units import UnitMap
from millrace.samplers import ClassBalanced, Curriculum, Shuffled, Weighted, Windowed, WithReplacement

SIZES = st.integers(1, 300)


@st.composite
def drawn_samplers(draw):
    size = draw(SIZES)
    count = draw(st.none() | st.integers(1, 500))
    numbers = st.lists(st.integers(0, 5), min_size=size, max_size=size)
    kind = draw(st.sampled_from(samplers.__all__[:2] + samplers.__all__[3:]))
    match kind:
        case "Shuffled":
            return size, Shuffled(count)
        case "WithReplacement":
            return size, WithReplacement(count)
        case "Weighted":
            return size, Weighted([1 + weight for weight in draw(numbers)], count)
        case "ClassBalanced":
            return size, ClassBalanced(draw(numbers), count)
        case "Windowed":
            return size, Windowed(draw(st.integers(1, 400)))
        case "Curriculum":
            return size, Curriculum(draw(numbers), draw(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=3)), count)
    raise AssertionError(kind)


@given(drawn_samplers(), st.integers(0, 2**63 - 1), st.integers(0, 5), st.randoms())
def test_any_draws_are_computed_without_the_others(sized, seed, epoch, rng):
    size, sampler = sized
    whole = sampler.positions(size, seed, epoch)
    assert whole.dtype == np.int64
    assert len(whole) == (size if sampler.num_samples is None else sampler.num_samples)
    assert ((whole >= 0) & (whole < size)).all()
    some = np.array([rng.randrange(len(whole)) for _ in range(20)], np.int64)
    assert np.array_equal(sampler.at(some, size, seed, epoch), whole[some])
    assert np.array_equal(sampler.positions(size, seed, epoch), whole)


@given(SIZES, st.integers(0, 2**63 - 1))
def test_a_shuffle_has_each_element_once_and_goes_round(size, seed):
    twice = Shuffled(2 * size).positions(size, seed, 0)
    for turn in np.split(twice, 2):
        assert np.array_equal(np.sort(turn), np.arange(size))


@given(st.lists(st.sampled_from(["cat", "dog", "hen"]), min_size=1, max_size=60), st.integers(1, 300))
def test_classes_are_in_balance_and_so_are_their_members(labels, count):
    drawn = ClassBalanced(labels, count).positions(len(labels), 7, 1)
    for kind in set(labels):
        members = [number for number, label in enumerate(labels) if label == kind]
        counts = [int((drawn == member).sum()) for member in members]
        assert sum(counts) in {count // len(set(labels)), count // len(set(labels)) + 1}
        assert max(counts) - min(counts) <= 1


@given(SIZES, st.integers(1, 400))
def test_windows_stay_where_they_are(size, window):
    drawn = Windowed(window).positions(size, 3, 0)
    for start in range(0, size, window):
        assert np.array_equal(np.sort(drawn[start : start + window]), np.arange(start, min(start + window, size)))


def test_a_curriculum_begins_with_what_is_easy():
    sampler = Curriculum([5, 1, 4, 2, 3, 0], (1 / 3, 0.5, 1.0))
    epochs = [sampler.positions(6, 1, epoch).tolist() for epoch in range(4)]
    assert sorted(epochs[0]) == [1, 1, 1, 5, 5, 5]
    assert sorted(epochs[1]) == [1, 1, 3, 3, 5, 5]
    assert sorted(epochs[2]) == sorted(epochs[3]) == [0, 1, 2, 3, 4, 5]
    assert epochs[2] != epochs[3]


# -- distributions -----------------------------------------------------------------------------------------------------


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def is_likely(counts: np.ndarray, expected: np.ndarray) -> bool:
    degrees = len(counts) - 1
    return bool(chi_square(counts, expected) < degrees + 5 * np.sqrt(2 * degrees))


def test_draws_with_replacement_are_uniform_whatever_was_drawn_before():
    drawn = WithReplacement(100_000).positions(50, 11, 0)
    assert is_likely(np.bincount(drawn, minlength=50), np.full(50, 2000.0))
    pairs = drawn[:-1] * 50 + drawn[1:]
    assert is_likely(np.bincount(pairs, minlength=2500), np.full(2500, len(pairs) / 2500))


def test_two_elements_are_as_often_in_one_epoch_as_any_two():
    together = np.zeros((6, 6))
    for epoch in range(3000):
        for one, other in combinations(sorted(set(Shuffled(3).positions(6, 5, epoch).tolist())), 2):
            together[one, other] += 1
    counts = together[np.triu_indices(6, 1)]
    assert is_likely(counts, np.full(15, 3000 * 3 / 15))


def test_weights_say_how_likely_an_element_is():
    weights = np.array([0.0, 1.0, 2.5, 0.5, 4.0, 0.0])
    counts = np.bincount(Weighted(weights, 100_000).positions(6, 2, 0), minlength=6)
    assert counts[0] == counts[5] == 0
    there = weights > 0
    assert is_likely(counts[there], 100_000 * weights[there] / weights.sum())


def test_epochs_and_seeds_draw_otherwise():
    sampler = WithReplacement()
    drawn = [tuple(sampler.positions(100, seed, epoch).tolist()) for seed in (1, 2) for epoch in (0, 1)]
    assert len(set(drawn)) == 4


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Shuffled(), WithReplacement()),
        (Weighted([1, 2, 3]), Weighted([1, 2, 4])),
        (ClassBalanced([0, 0, 1]), ClassBalanced([0, 1, 1])),
        (Windowed(2), Windowed(3)),
        (Curriculum([1, 2, 3], (0.5,)), Curriculum([1, 2, 3], (0.6,))),
        (Shuffled(3), Shuffled(4)),
    ],
)
def test_a_state_goes_on_with_the_same_draws_alone(before, after):
    def stopped(sampler):
        elements = iter(Dataset.range(3).sample(sampler).with_options(seed=1))
        return [next(elements), next(elements)], elements

    begun, elements = stopped(before)
    state = elements.state_dict()
    again = Dataset.range(3).sample(before).with_options(seed=1)
    again.load_state_dict(state)
    assert begun + list(again) == list(Dataset.range(3).sample(before).with_options(seed=1))
    other = Dataset.range(3).sample(after).with_options(seed=1)
    with pytest.raises(StateError):
        other.load_state_dict(state)
        list(other)


# -- in a pipeline -----------------------------------------------------------------------------------------------------


class EverySecond:
    """Sampler of one's own."""

    calls = 0

    def __init__(self, size: int) -> None:
        self.num_samples = size // 2

    def positions(self, size: int, seed: int, epoch: int) -> np.ndarray:
        self.calls += 1
        return (np.arange(size // 2) * 2 + epoch) % size


def with_value(number, rng):
    return number, int(rng.integers(1 << 40))


def test_ones_own_sampler_says_what_an_epoch_has():
    dataset = Dataset.range(10).sample(EverySecond(10))
    assert len(dataset) == 5
    assert [list(dataset) for _ in range(3)] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9], [2, 4, 6, 8, 0]]


def test_an_epoch_is_drawn_once_however_many_tasks_there_are():
    sampler = EverySecond(1000)
    pipeline = Dataset.range(1000).sample(sampler).__pipeline__()
    units = UnitMap(pipeline.graph, pipeline.tables())
    for _ in range(5):
        orders = EpochOrders(units, 1, 0)
        assert orders.of(1, 0).at(np.array([3, 499])).tolist() == [6, 998]
        assert len(orders.drawn) == 1, "workers are compared by it"
    assert sampler.calls == 1


def test_each_draw_of_an_element_has_random_values_of_its_own():
    found = list(Dataset.range(3).sample(WithReplacement(200)).map(with_value).with_options(seed=4))
    assert len({value for _, value in found}) == 200
    before = list(Dataset.range(3).map(with_value).sample(WithReplacement(200)).with_options(seed=4))
    assert len(set(before)) == 3


def test_operators_before_and_behind_a_sampler():
    dataset = Dataset.range(20).batch(2).sample(Windowed(3)).map(lambda batch: batch.sum()).repeat(2).batch(4)
    assert sum(int(batch.sum()) for batch in dataset) == 2 * sum(range(20))
    assert len(dataset) == 5


def test_a_sampler_below_a_cache_draws_as_in_the_first_epoch():
    dataset = Dataset.range(50).sample(WithReplacement()).cache().with_options(seed=1)
    assert list(dataset) == list(dataset)


class Says:
    """Sampler that says anything."""

    def __init__(self, said, num_samples=None):
        self.said, self.num_samples = said, num_samples

    def positions(self, size, seed, epoch):
        return self.said


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([0, 1], "gave 2 positions for epoch 0, and an epoch has 3 draws"),
        ([0, 1, 3], "gave positions from 0 to 3 for epoch 0, and there are 3 elements"),
        ([-1, 1, 2], "gave positions from -1 to 2"),
        ([0.5, 1.0, 2.0], "must give whole numbers in one dimension, and gave float64"),
        ([[0, 1, 2]], "of shape (1, 3)"),
        ("abc", "whole numbers"),
        (None, "whole numbers"),
    ],
)
def test_what_are_no_positions_is_said(said, why):
    with pytest.raises(PipelineError, match=r"sample\(Says\)") as caught:
        list(Dataset.range(3).sample(Says(said)))
    assert why in str(caught.value)


class Fails:
    """Sampler that fails."""

    def positions(self, size, seed, epoch):
        return 1 // epoch


def test_a_sampler_that_fails_is_named():
    with pytest.raises(PipelineError, match=r"sample\(Fails\): positions\(3, \d+, 0\) .* ZeroDivisionError") as caught:
        list(Dataset.range(3).sample(Fails()))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def refused(build):
    with pytest.raises(PipelineError) as caught:
        list(build())
    return str(caught.value)


def test_what_cant_be_sampled_is_refused_with_a_sentence():
    numbers = Dataset.range(10)
    for dataset in (
        numbers.filter(bool),
        numbers.flat_map(lambda number: [number]),
        numbers.repeat(),
        numbers.filter(bool).take(3),
        numbers.map(str).with_options(on_error="skip"),
    ):
        assert "draws elements at any position" in refused(lambda dataset=dataset: dataset.sample(Shuffled()))
    assert "its input has none" in refused(lambda: numbers.take(0).sample(Shuffled(3)))
    assert list(numbers.take(0).sample(Shuffled())) == []


@pytest.mark.parametrize("sampler", [Shuffled, None, 3, [1, 2], lambda size, seed, epoch: range(size)])
def test_what_is_no_sampler_is_refused(sampler):
    assert "sample takes a sampler, such as" in refused(lambda: Dataset.range(3).sample(sampler))


def test_numbers_that_make_no_sense_are_refused():
    assert "num_samples" in refused(lambda: Dataset.range(3).sample(Says([], -1)))
    for build in (
        lambda: WithReplacement(-1),
        lambda: Weighted([]),
        lambda: Weighted([0.0, 0.0]),
        lambda: Weighted([1.0, -1.0]),
        lambda: Weighted([1.0, float("nan")]),
        lambda: Weighted(np.ones((2, 2))),
        lambda: ClassBalanced([]),
        lambda: ClassBalanced(np.ones((2, 2))),
        lambda: Windowed(0),
        lambda: Curriculum([1.0, float("nan")], (1.0,)),
        lambda: Curriculum(np.array(["a"]), (1.0,)),
        lambda: Curriculum([1.0], ()),
        lambda: Curriculum([1.0], (0.0,)),
        lambda: Curriculum([1.0], (1.5,)),
    ):
        with pytest.raises(PipelineError):
            build()


@pytest.mark.parametrize(
    ("sampler", "what"),
    [
        (Weighted([1, 2]), "2 weights"),
        (ClassBalanced([1, 2]), "2 labels"),
        (Curriculum([1, 2], (1.0,)), "2 difficulties"),
    ],
)
def test_one_of_each_is_needed(sampler, what):
    said = refused(lambda: Dataset.range(5).sample(sampler))
    assert what in said
    assert "there are 5 elements" in said


# -- elements that are drawn more than once ----------------------------------------------------------------------------


def ten_times(number):
    return number * 10


@pytest.mark.parametrize("drawn", [[0, 0, 1, 2, 2, 2, 1], [2, 0, 0, 2, 4, 4, 4], [3] * 9])
def test_a_cache_below_a_sampler_keeps_each_element_once(drawn, tmp_path):
    kept = Dataset.from_list([*range(5)]).map(ten_times).cache(str(tmp_path)).with_options(seed=1)
    for epoch in range(3):
        found = list(kept.sample(Says(drawn, len(drawn))))
        assert found == [10 * number for number in drawn], epoch
    assert list(kept) == [0, 10, 20, 30, 40]


@given(st.integers(1, 60), st.integers(0, 5), st.integers(1, 200))
def test_caches_below_samplers_change_nothing(size, seed, draws):
    def drawn(dataset):
        return dataset.sample(WithReplacement(draws)).with_options(seed=seed)

    kept = drawn(Dataset.range(size).map(ten_times).cache())
    plain = drawn(Dataset.range(size).map(ten_times))
    for _ in range(3):
        assert list(kept) == list(plain)


def test_a_random_function_in_front_gives_all_draws_of_an_element_the_same():
    found = list(Dataset.from_list([7, 8, 9]).map(with_value).sample(Says([2, 0, 0, 2, 0, 1], 6)).with_options(seed=2))
    assert len(set(found)) == 3
    assert [number for number, _ in found] == [9, 7, 7, 9, 7, 8]


@pytest.mark.parametrize(
    "several",
    [
        Dataset.range(3).concatenate(Dataset.range(3, 6)),
        Dataset.range(3).repeat(2),
        Dataset.sample_from_datasets([Dataset.range(3), Dataset.range(3, 6)], seed=1),
        Dataset.from_list([0, 1, 2, 0, 1, 2]),
    ],
)
def test_more_draws_than_elements_of_several_datasets(several):
    draws = several.sample(WithReplacement(70_000)).with_options(seed=1)
    assert len(list(draws.filter(lambda number: number >= 0).enumerate())) == 70_000
    batches = list(several.sample(WithReplacement(600)).filter(lambda number: number >= 0).batch(4).shuffle(10))
    assert sum(map(len, batches)) == 600


def test_files_that_are_drawn_again(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]))
    files = Dataset.from_files(str(tmp_path / "*.bin")).map(lambda file: file["bytes"][0])
    drawn = [0, 0, 3, 3, 3, 1, 4, 0]
    assert list(files.sample(Says(drawn, 8))) == drawn


class Reversed(Weighted):
    """Sampler of millrace's that somebody has changed."""

    def positions(self, size, seed, epoch):
        return np.arange(size)[::-1]


class LooksAlike:
    """Sampler of one's own, with methods that are something else."""

    def positions(self, size, seed, epoch):
        return np.arange(size)

    def at(self, index):
        raise AssertionError(index)

    check = contents = at


def test_what_somebody_has_changed_is_theirs():
    assert list(Dataset.range(3).sample(Reversed([1, 1, 1]))) == [2, 1, 0]
    assert list(Dataset.range(3).sample(LooksAlike())) == [0, 1, 2]


def test_a_window_above_a_sampler_mixes_draws_from_all_over():
    draws = Dataset.range(100).sample(WithReplacement(20_000)).enumerate().flat_map(lambda pair: [pair[0]])
    places = list(draws.shuffle(10).with_options(seed=1))
    assert sorted(places) == list(range(20_000))
    assert np.corrcoef(np.arange(20_000), places)[0, 1] < 0.5
