"""Coordinated reads as ``distribute`` takes them: what contradicts them is refused with what to do."""

from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.graph import serialize
from millrace.planning.checkpoint import pack
from millrace.planning.epoch_cursor import Share

SERVICE = {"service": "grpc://h:1", "job_name": "job"}


def buckets() -> mr.Dataset:
    return mr.Dataset.range(1000).bucket_by_sequence_length(len, [10, 20], [4, 4, 4])


def coordinated(dataset: mr.Dataset | None = None, **chosen: Any) -> mr.DistributedDataset:
    arguments = {**SERVICE, "num_consumers": 2, "coordinated": True, **chosen}
    return (buckets() if dataset is None else dataset).distribute(**arguments)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"num_consumers": None}, "needs num_consumers: to how many ranks"),
        ({"sharding": mr.ShardingPolicy.STATIC}, "leave sharding out, it is to be ShardingPolicy.DYNAMIC"),
        ({"sharding": lambda tasks, workers: [0 for _ in tasks]}, "leave sharding out"),
        ({"visitation": mr.Visitation.AT_MOST_ONCE}, r"cannot be with Visitation.AT_MOST_ONCE.*leave visitation out"),
        ({"visitation": mr.Visitation.ZERO_ONCE_OR_MORE}, r"cannot be with Visitation.ZERO_ONCE_OR_MORE"),
        ({"equal_steps": True}, "equally many steps by itself: leave equal_steps out"),
        ({"sharing": mr.Sharing.WINDOW}, "say visitation=Visitation.AT_MOST_ONCE"),
        (
            {"sharing": mr.Sharing.WINDOW, "visitation": mr.Visitation.ZERO_ONCE_OR_MORE},
            "could end in another round on each rank; say visitation=Visitation.AT_MOST_ONCE",
        ),
        (
            {"sharing": mr.Sharing.WINDOW, "visitation": mr.Visitation.AT_MOST_ONCE, "window_bytes": 9},
            "jobs that are behind skip whole tasks: leave window_bytes out",
        ),
        ({"coordinated": "yes"}, "coordinated must be one of False, True, not 'yes'"),
        ({"incomplete": "keep"}, "incomplete must be one of 'drop', 'mix', not 'keep'"),
        ({"coordinated": False, "incomplete": "mix"}, "there are rounds with coordinated=True alone"),
        ({"coordinated": False, "cycle_length": 8}, "say that too, or leave cycle_length out"),
        ({"cycle_length": 0}, "cycle_length must be a whole number of at least 1, not 0"),
        ({"cycle_length": 65}, "cycle_length.*64.*not 65"),
        ({"cycle_length": 2.5}, "cycle_length must be a whole number"),
        ({"dataset": mr.Dataset.range(9)}, "this pipeline makes no batches"),
        ({"dataset": mr.Dataset.range(9).batch(3).shuffle(10)}, "behind the batches stands shuffle"),
    ],
)
def test_what_contradicts_it_is_refused_with_what_to_do(chosen, words):
    with pytest.raises(mr.PipelineError, match=words):
        coordinated(**chosen)


def test_the_job_is_dealt_in_order_and_its_graph_makes_rounds():
    made = coordinated(incomplete="mix", num_consumers=3)
    pipeline: Any = made.__pipeline__()
    parameters = pipeline._parameters
    assert parameters["deterministic"] is True
    assert (parameters["coordinated"], parameters["cycle_length"]) == ("mix", 4)
    chosen: Any = coordinated(cycle_length=16).__pipeline__()
    assert chosen._parameters["cycle_length"] == 16
    root: Any = serialize.unpack(pipeline._structure).root
    assert (root.together, root.incomplete) == (3, "mix")
    assert str(made).endswith(
        ".distribute('grpc://h:1', job_name='job', num_consumers=3, coordinated=True, incomplete='mix')"
    )


def test_an_operator_that_may_give_a_rank_more_than_another_is_refused_behind_it():
    with pytest.raises(mr.PipelineError, match=r"unbatch\(\) behind distribute\(coordinated=True\) may give one rank"):
        coordinated().unbatch()
    coordinated().map(lambda batch: batch).prefetch(2)


def test_processes_of_a_loader_are_no_ranks():
    share: Share = (0, 2)
    with pytest.raises(mr.PipelineError, match="this DataLoader has 2: make it with num_workers=0 or 1"):
        coordinated().__pipeline__().read_epoch(share=share)


def state_of(dataset: mr.DistributedDataset, **fields: Any) -> dict[str, Any]:
    fresh = dataset.__pipeline__()._fresh_state()
    return pack(msgspec.structs.replace(fresh, **fields))


def test_a_state_is_of_so_many_ranks():
    state = state_of(coordinated(num_consumers=4), ranks=4)
    with pytest.raises(mr.StateError, match=r"is of 4 ranks, and here num_consumers is 2: .* Go on with 4 ranks"):
        coordinated().load_state_dict(state)
    coordinated(num_consumers=4).load_state_dict(state)


@pytest.mark.parametrize("consumer_index", [None, 0, 1])
def test_a_state_from_before_the_first_step_is_loaded_like_any(consumer_index):
    state = coordinated(consumer_index=consumer_index).state_dict()
    coordinated(consumer_index=consumer_index).load_state_dict(state)


def test_a_state_is_of_rounds_in_one_order():
    state = state_of(coordinated(cycle_length=16), ranks=2)
    with pytest.raises(mr.StateError, match=r"is of cycle_length=16, and here it is 4: .* Go on with cycle_length=16"):
        coordinated().load_state_dict(state)
    coordinated(cycle_length=16).load_state_dict(state)
    before = {name: value for name, value in state_of(coordinated(), ranks=2).items() if name != "cycle_length"}
    coordinated(cycle_length=4).load_state_dict(before)  # of a time when there was no other


@pytest.mark.parametrize("chosen", [{"incomplete": "mix"}, {"coordinated": False}])
def test_a_state_is_of_rounds_that_are_made_like_that(chosen):
    state = state_of(coordinated(), ranks=2)
    with pytest.raises(mr.StateError, match="nor may coordinated= and incomplete= of distribute"):
        coordinated(**chosen).load_state_dict(state)
    coordinated().load_state_dict(state)


@pytest.mark.parametrize("ranks", [1, 2])
def test_how_many_batches_a_rank_gets_is_known_only_after_reading(ranks):
    dataset = coordinated(mr.Dataset.range(10).batch(4), num_consumers=ranks)
    with pytest.raises(mr.UnknownLengthError):
        len(dataset)
