"""What may stand behind distribute(), what is refused and why, and what is known without a service."""

import pickle
import re
from typing import Any

import pytest

import millrace as mr

RANK = {"job_name": "ours", "num_consumers": 2, "consumer_index": 0}
TEN = mr.Dataset.range(100).batch(10)


def served(**options: Any) -> Any:
    return TEN.distribute("grpc://127.0.0.1:1", **options)


def same(element):
    return element


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: served().distribute(), "the dataset is distributed already"),
        (lambda: served().map(same).distribute("grpc://there:1"), "call distribute() once, behind all"),
        (lambda: served().cache(), "cache() behind distribute() would keep what comes to this process in this epoch"),
        (lambda: served().autocache(), "autocache() behind distribute() would keep"),
        (lambda: served().map(same).repeat(2), "repeat() behind distribute() cannot go on with the next epoch"),
        (lambda: mr.Dataset.zip(served(), TEN), "zip takes datasets that are not distributed"),
        (lambda: TEN.concatenate(served().map(same)), "concatenate takes datasets that are not distributed"),
        (lambda: served().batch(0), "batch"),
        (
            lambda: served(**RANK, equal_steps=True).filter(same),
            "filter(same) behind distribute(equal_steps=True) may give one rank more elements than another",
        ),
        (
            lambda: served(**RANK, equal_steps=True).take_while(same),
            "take_while(same) behind distribute(equal_",
        ),
        (lambda: served(**RANK, equal_steps=True).unique(), "unique() behind distribute(equal_steps=True)"),
        (
            lambda: served(**RANK, equal_steps=True).with_options(on_error="skip"),
            "with_options() behind distribute(equal_steps=True)",
        ),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(call, said):
    with pytest.raises(mr.PipelineError, match=re.escape(said)):
        call()


@pytest.mark.parametrize("name", ["zip", "concatenate", "sample_from_datasets", "choose_from_datasets"])
def test_combining_is_for_before(name):
    with pytest.raises(AttributeError, match=rf"a DistributedDataset has no attribute '{name}'; write it before dist"):
        getattr(served(), name)


def test_it_shows_how_it_was_made_and_travels():
    dataset = served(job_name="ours").map(same).batch(2).prefetch(4)
    made = "Dataset.range(100).batch(10).distribute('grpc://127.0.0.1:1', job_name='ours').map(same).batch(2).prefetch("
    assert repr(dataset).startswith(made)
    assert repr(pickle.loads(pickle.dumps(dataset))) == repr(dataset)


def test_a_length_follows_where_operators_let_it():
    assert len(served().map(same).skip(1).batch(2).take(50)) == 5
    assert len(served().shuffle(3).prefetch(2)) == 10
    assert len(served().filter(same).assert_cardinality(7)) == 7
    for unknown in (served().unbatch(), served().filter(same), served(**RANK).map(same)):
        with pytest.raises(mr.UnknownLengthError):
            len(unknown)


def test_the_first_elements_are_computed_here():
    assert served().unbatch().map(lambda number: -number).peek(3) == [0, -1, -2]


def test_states_are_of_these_operators():
    dataset = served(seed=1).unbatch().take(3)
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    assert dataset.state_dict() == state
    for other in (served(seed=1), served(seed=1).unbatch().take(4), TEN):
        with pytest.raises(mr.StateError, match=r"operators behind distribute\(\): load it into the pipeline"):
            other.load_state_dict(state)
    with pytest.raises(mr.StateError, match=r"no operators behind distribute\(\)"):
        dataset.load_state_dict(served(seed=1).state_dict())
    served(seed=1).prefetch(3).load_state_dict(served(seed=1).state_dict())  # what passes elements on may change


def test_where_operators_count_states_are_for_as_many_ranks():
    state = {**served(seed=1).take(3).state_dict(), "counts": [2], "done": 1}
    two = served(seed=1, **RANK).take(3)
    with pytest.raises(mr.StateError, match=r"take\(\) behind distribute\(\) counts.*is of 1 processes.*are 2 now"):
        two.load_state_dict(state)
    two.load_state_dict({**state, "ended": True})


def test_one_of_several_loader_processes_does_not_count_for_all():
    with pytest.raises(mr.PipelineError, match=r"take\(\) behind .* one of 4 processes of a DataLoader: put it before"):
        served().take(3).__pipeline__().read_epoch(None, (0, 4))
    with pytest.raises(
        mr.PipelineError, match=r"unique\(\) behind distribute\(\) goes by all that one process has had"
    ):
        served().unique().__pipeline__().read_epoch(None, (0, 2))
