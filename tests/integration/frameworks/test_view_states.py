"""A dataset as any framework wants it has the dataset's states."""

import json

import numpy as np
import pytest

import millrace as mr

FRAMEWORKS = ["numpy", "jax", "torch", "tensorflow"]
ALL = list(range(200))


def view(framework, dataset=None):
    dataset = mr.Dataset.range(200).shuffle(200, seed=3).batch(8) if dataset is None else dataset
    return getattr(dataset, framework)()


def numbers(batches):
    return [int(number) for batch in batches for number in np.asarray(batch)]


def passed_on(state):
    return json.loads(json.dumps(state))


def begun(dataset, steps):
    """What the first steps give, and the state that the loop could save then."""
    seen = []
    for step, batch in enumerate(dataset):
        seen += numbers([batch])
        if step + 1 == steps:
            break
    return seen, passed_on(dataset.state_dict())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_goes_on_where_another_like_it_was(framework):
    whole = numbers(view(framework))
    for steps in (1, 7):
        seen, state = begun(view(framework), steps)
        again = view(framework)
        again.load_state_dict(state)
        assert seen + numbers(again) == whole
        assert sorted(numbers(again)) == ALL  # the next epoch, all of it
        again.set_state(state)
        assert again.get_state() == state


def test_states_go_from_one_framework_to_another():
    seen, state = begun(view("tensorflow"), 3)
    for framework in FRAMEWORKS[:-1]:
        again = view(framework)
        again.load_state_dict(state)
        more, state = begun(again, 3)
        seen += more
    last = view("tensorflow")
    last.load_state_dict(state)
    assert sorted(seen + numbers(last)) == ALL


def test_tensorflow_knows_no_length_once_a_state_is_loaded():
    dataset = view("tensorflow")
    assert (len(dataset), int(dataset.cardinality())) == (25, 25)
    _, state = begun(dataset, 5)
    again = view("tensorflow")
    again.load_state_dict(state)
    assert len(list(again.map(lambda batch: batch))) == 20
    with pytest.raises(TypeError, match="length"):
        len(again)


@pytest.mark.parametrize("framework", FRAMEWORKS[:-1])
def test_iterators_take_states_too(framework):
    seen, state = begun(view(framework), 5)
    elements = iter(view(framework))
    elements.load_state_dict(state)
    assert sorted(seen + numbers(elements)) == ALL


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_state_of_another_pipeline_is_refused(framework):
    with pytest.raises(mr.StateError, match="other operators"):
        view(framework, mr.Dataset.range(200)).load_state_dict(view(framework).state_dict())
