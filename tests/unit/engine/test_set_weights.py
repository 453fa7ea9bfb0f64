"""Weights that are set while an epoch is read in this process."""

import re
import warnings

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.dataset import Dataset
from millrace.errors import PipelineError, StateError
from millrace.planning.epoch_shape import WeightChange

WEB, BOOKS = Dataset.range(3000).repeat(), Dataset.range(100_000, 100_700).repeat()


def plus(element):
    return element + 1


def odd(element):
    return element % 2 == 1


def twice(element):
    return [element, -element]


def jitter(element, rng):
    return int(element) * 1000 + int(rng.integers(1000))


BEHIND = {
    "nothing": lambda mixed: mixed.take(4000),
    "batches": lambda mixed: mixed.map(plus).batch(7).take(400).prefetch(2),
    "collected": lambda mixed: mixed.take(4000).filter(odd).batch(5),
    "made of them": lambda mixed: mixed.take(3000).flat_map(twice).batch(3, drop_remainder=True),
    "windows": lambda mixed: mixed.take(3000).window(6, 4).map(np.array),
    "random": lambda mixed: mixed.take(3000).skip(5).map(jitter).enumerate(),
    "joined": lambda mixed: Dataset.range(500).concatenate(Dataset.zip([mixed, mixed.skip(9)]).take(2000)),
    "mixed by tasks": lambda mixed: mixed.shuffle(40).batch(2),
}
MOST = 600
"""Outputs that are looked at: some of these have no end."""


def made(behind, weights, **chosen):
    mixed = Dataset.sample_from_datasets([WEB, BOOKS], weights, seed=3, **chosen)
    return BEHIND[behind](mixed).with_options(seed=11)


def read(iterator, count):
    return [repr(element) for _, element in zip(range(count), iterator, strict=False)]


@pytest.mark.filterwarnings("ignore:set_weights came when all tasks")
@pytest.mark.parametrize("behind", BEHIND)
@settings(max_examples=3)
@given(st.data())
def test_the_epoch_is_the_one_of_weights_that_change_with_the_element(behind, data):
    """Whatever stands behind the mixture: as it runs on, from states of before and after, and in the next epoch."""
    epoch = iter(made(behind, [1, 1]))
    written, found, states = {0: [1, 1]}, [], []
    for _ in range(data.draw(st.integers(1, 3), label="times")):
        found += read(epoch, data.draw(st.integers(0, 80), label="outputs"))
        states.append((len(found), epoch.state_dict()))
        weights = data.draw(st.sampled_from([[1, 9], [0.2, 0.1], [0, 1]]), label="weights")
        written[epoch.set_weights(weights)] = weights
        states.append((len(found), epoch.state_dict()))
        found += read(epoch, data.draw(st.integers(0, 20), label="more"))
    states.append((len(found), epoch.state_dict()))
    found += read(epoch, MOST - len(found))
    epoch.close()
    with iter(made(behind, written, weights_by="element")) as expected:
        assert read(expected, MOST) == found
    known = [(at, state) for at, state in states if state.get("reweighted") == states[-1][1]["reweighted"]]
    for at, state in known:
        again = made(behind, [1, 1])
        with iter(again) as epoch:
            epoch.load_state_dict(state)
            assert read(epoch, MOST - at) == found[at:]


def test_later_epochs_begin_with_the_last_weights():
    dataset = made("nothing", [1, 1])
    epoch = iter(dataset)
    epoch.set_weights([5, 1])
    read(epoch, 9)
    epoch.set_weights([1, 9])
    rest = [*epoch]
    assert len(rest) == 4000 - 9
    ended = epoch.state_dict()
    expected = read(iter(made("nothing", [1, 9])), 4000)
    assert read(iter(dataset), 4000) == expected
    other = made("nothing", [1, 1])
    other.load_state_dict(ended)
    assert read(iter(other), 4000) == expected
    assert read(iter(made("nothing", [1, 1])), 4000) != expected


def test_the_last_weights_hold_in_later_epochs_for_which_others_are_written():
    """Those would draw another dataset: the ones that are set replace them altogether."""

    def three(weights):
        each = [Dataset.range(at, at + 100) for at in (0, 1000, 2000)]
        return Dataset.sample_from_datasets(each, weights, seed=3).with_options(seed=11)

    dataset = three({0: [1, 1, 0], 1: [1, 0, 1]})
    epoch = iter(dataset)
    next(epoch)
    epoch.set_weights([1, 2, 0])
    assert len(list(epoch)) == 199
    assert list(dataset) == list(dataset) == list(three([1, 2, 0]))
    again = three({0: [1, 1, 0], 1: [1, 0, 1]})
    again.load_state_dict(epoch.state_dict())
    assert list(again) == list(three([1, 2, 0]))


def test_a_state_loaded_from_before_takes_what_was_set_since_back():
    dataset = made("nothing", [1, 1])
    epoch = iter(dataset)
    read(epoch, 100)
    before = epoch.state_dict()
    epoch.set_weights([1, 9])
    epoch.load_state_dict(before)
    assert read(epoch, 3900) == read(iter(made("nothing", [1, 1])), 4000)[100:]


def test_it_holds_behind_the_task_that_runs_and_the_shuffle_belongs_to_each_dataset():
    shuffled = [WEB.take(3000).shuffle(3000).repeat(), BOOKS.take(700).shuffle(700).repeat()]
    dataset = Dataset.sample_from_datasets(shuffled, [1, 0], seed=3).take(4000)
    with iter(dataset) as epoch:
        first = [next(epoch)]
        at = epoch.set_weights([0, 1])
        assert 0 < at < 4000
        found = first + list(epoch)
    assert max(found[:at]) < 3000 <= min(found[at:])
    for part, size in ((found[:at], 3000), (found[at : at + 700], 700)):
        assert len(set(part)) == min(len(part), size)  # each in its order, so none twice


def test_views_pass_it_on():
    with iter(made("batches", [1, 1]).numpy()) as epoch:
        next(epoch)
        assert epoch.set_weights(np.array([1, 3])) > 0
        assert epoch.state_dict()["reweighted"][0][2] == [1.0, 3.0]


def test_an_iterator_that_is_not_being_read_is_refused_and_sets_nothing():
    dataset = made("nothing", [1, 1])
    closed, ended = iter(dataset), iter(dataset)
    closed.close()
    assert len(list(ended)) == 4000
    left = iter(dataset)
    next(left)
    with iter(dataset) as last:
        next(last)
        for other in (closed, ended, left):
            with pytest.raises(PipelineError, match="call it on the iterator that is being read"):
                other.set_weights([1, 9])
        assert "reweighted" not in last.state_dict()
        last.set_weights([1, 3])
    left.close()
    with pytest.raises(PipelineError, match="was closed, has come to its end"):
        last.set_weights([1, 9])
    again = iter(dataset)
    again.load_state_dict(ended.state_dict())  # it is at the end of an epoch
    with pytest.raises(PipelineError, match="was closed, has come to its end"):
        again.set_weights([1, 9])


def test_who_sets_them_when_all_tasks_have_begun_is_told_that_they_hold_later():
    dataset = made("nothing", [1, 1])
    epoch = iter(dataset)
    before = read(epoch, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error", mr.MillraceWarning)
        assert epoch.set_weights([1, 1]) < 4000
    before += read(epoch, 3989)
    with pytest.warns(mr.MillraceWarning, match="that draw from the mixture had begun, so that"):
        assert epoch.set_weights([0, 1]) == 4000
    assert before + read(epoch, 9) == read(iter(made("nothing", [1, 1])), 4000)
    assert min(dataset) == 100_000


def test_a_process_of_a_data_loader_is_refused():
    reader = made("nothing", [1, 1])._source.read_epoch(share=(0, 2))
    with reader, pytest.raises(PipelineError, match="one of several processes of a DataLoader"):
        reader.set_weights([1, 2])


@pytest.mark.parametrize(
    ("dataset", "weights", "message"),
    [
        (made("nothing", [1, 1]), [1], "one weight >= 0 for each dataset and one above 0: 2 datasets, weights [1.0]"),
        (made("nothing", [1, 1]), [0, 0], "one weight >= 0 for each dataset, none above"),
        (
            made("nothing", [1, 1]).shuffle(10, seed=1, reshuffle_each_iteration=False),
            [1, 2],
            "shuffle() behind it takes them in another order",
        ),
        (Dataset.range(9), [1, 2], "this pipeline has none"),
        (made("nothing", [1, 1]).unique(), [1, 2], "this pipeline runs as one"),
    ],
)
def test_what_is_refused_leaves_the_epoch_as_it_was(dataset, weights, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mr.MillraceWarning)
        with iter(dataset) as epoch:
            first = next(epoch)
            with pytest.raises(PipelineError, match=re.escape(message)):
                epoch.set_weights(weights)
            assert "reweighted" not in epoch.state_dict()
            rest = [first, *epoch]
        assert rest == list(iter(dataset))[: len(rest)]


def test_a_state_with_weights_of_another_number_of_datasets_is_refused():
    dataset = made("nothing", [1, 1])
    with iter(dataset) as epoch:
        next(epoch)
        epoch.set_weights([1, 3])
        state = epoch.state_dict()
        node = state["reweighted"][0][0]
        wrong = {**state, "reweighted": [[*msgspec.structs.astuple(WeightChange(node, 300, (1.0, 1.0, 1.0)))]]}
        with pytest.raises(StateError, match="does not mix by 3 weights"):
            epoch.load_state_dict(wrong)
        assert len(list(epoch)) == 3999


def test_a_loop_without_the_iterator_sets_them_on_the_dataset():
    dataset, seen, begin = made("nothing", [1, 1]), list[int](), 0
    with pytest.raises(PipelineError, match="this process reads none: begin it first"):
        dataset.set_weights([1, 0])
    for element in dataset:
        seen.append(element)
        if len(seen) == 500:
            begin = dataset.set_weights([1, 0])
    assert seen == list(made("nothing", {0: [1, 1], begin: [1, 0]}, weights_by="element"))
    with pytest.raises(PipelineError, match="this process reads none"):
        dataset.set_weights([1, 0])  # the epoch is over


def test_of_several_iterators_the_last_one_is_meant():
    dataset = made("nothing", [1, 1])
    with iter(dataset) as first, iter(dataset) as last:
        next(first), next(last)
        dataset.set_weights([1, 0])
        assert "reweighted" not in first.state_dict()
        assert last.state_dict()["reweighted"]


@pytest.mark.parametrize("weights", [np.array([1.0, 3.0]), [np.float32(1), np.float64(3)], np.array([1, 3], np.int32)])
def test_arrays_are_weights(weights):
    dataset = made("nothing", weights)
    with iter(dataset) as epoch:
        next(epoch)
        assert epoch.set_weights(weights) > 0
        assert list(epoch.state_dict()["reweighted"][0])[2] == [1.0, 3.0]


@pytest.mark.parametrize("weights", [np.array(1.0), np.array([["a"]]), [np.array([1, 2]), 3]])
def test_other_arrays_are_not(weights):
    with iter(made("nothing", [1, 1])) as epoch, pytest.raises(PipelineError, match="set_weights"):
        epoch.set_weights(weights)
