"""Sharing as ``distribute`` takes it: what contradicts it is refused with what to do."""

from typing import Any

import pytest

import millrace as mr
from millrace.client.bundling import fingerprint_of
from millrace.planning.epoch_cursor import Share


def sharing(dataset: mr.Dataset | None = None, **chosen: Any) -> mr.DistributedDataset:
    arguments = {"service": "grpc://h:1", "sharing": mr.Sharing.LOCKSTEP, **chosen}
    return (mr.Dataset.range(100) if dataset is None else dataset).distribute(**arguments)


def parameters(dataset: mr.DistributedDataset) -> dict[str, Any]:
    pipeline: Any = dataset.__pipeline__()
    found: dict[str, Any] = pipeline._parameters
    return found


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"sharing": "lockstep"}, r"sharing is Sharing.WINDOW, Sharing.LOCKSTEP or None, not 'lockstep'"),
        ({"service": None}, "without an address each job has a service of its own: start one"),
        ({"num_consumers": 2, "job_name": "a"}, "leave num_consumers and consumer_index out.* or say coordinated=True"),
        ({"consumer_index": 1, "job_name": "a"}, "leave num_consumers and consumer_index out"),
        (
            {"sharding": mr.ShardingPolicy.OFF, "visitation": mr.Visitation.ZERO_ONCE_OR_MORE},
            "there is nothing to share: leave sharding out",
        ),
        ({"target_workers": "local"}, "leave target_workers and local_workers out"),
        ({"target_workers": "any"}, "leave target_workers and local_workers out"),
        ({"local_workers": 1}, "leave target_workers and local_workers out"),
        ({"equal_steps": True}, "needs num_consumers"),
        ({"sharing": mr.Sharing.WINDOW}, r"AT_MOST_ONCE, or ZERO_ONCE_OR_MORE if .* or sharing=Sharing.LOCKSTEP"),
        ({"window_bytes": 1}, "say sharing=Sharing.WINDOW too, or leave window_bytes out"),
        ({"sharing": None, "window_bytes": 1}, "say sharing=Sharing.WINDOW too, or leave window_bytes out"),
        (
            {"sharing": mr.Sharing.WINDOW, "visitation": mr.Visitation.AT_MOST_ONCE, "window_bytes": 0},
            "window_bytes must be",
        ),
    ],
)
def test_what_contradicts_it_is_refused_with_what_to_do(chosen, words):
    with pytest.raises(mr.PipelineError, match=words):
        sharing(**chosen)


def test_the_group_draws_the_seed_unless_it_is_chosen():
    assert parameters(sharing())["seed"] is None
    assert parameters(sharing(seed=3))["seed"] == 3
    assert parameters(sharing(mr.Dataset.range(9).with_options(seed=4)))["seed"] == 4


def test_jobs_of_several_ranks_share_rounds():
    dataset = mr.Dataset.range(100).batch(4)
    chosen = parameters(sharing(dataset, num_consumers=2, consumer_index=1, job_name="a", coordinated=True))
    assert (chosen["num_consumers"], chosen["sharing"], chosen["coordinated"]) == (2, "lockstep", "drop")


def test_a_job_of_one_consumer_is_as_one_that_names_none():
    chosen = parameters(sharing(num_consumers=1, consumer_index=0, job_name="a"))
    assert (chosen["num_consumers"], chosen["sharing"]) == (None, "lockstep")


def scaled(factor: int) -> Any:
    return lambda number: number * factor


def test_functions_are_told_apart_by_what_they_compute():
    def functions(dataset: mr.Dataset) -> Any:
        return parameters(sharing(dataset))["functions"]

    numbers = mr.Dataset.range(100)
    assert functions(numbers.map(scaled(2))) == functions(numbers.map(scaled(2))) != functions(numbers.map(scaled(3)))
    assert functions(numbers.map(scaled(2), key="a")) != functions(numbers.map(scaled(2), key="b"))
    assert functions(mr.Dataset.from_list([1, 2])) != functions(mr.Dataset.from_list([1, 3]))
    assert "functions" not in parameters(mr.Dataset.range(9).distribute("grpc://h:1"))


def test_functions_of_which_nobody_can_tell_are_alike_if_their_bytes_are():
    def unsure(number: int) -> Any:
        return eval("number + 1")

    assert parameters(sharing(mr.Dataset.range(9).map(unsure)))["functions"] == ""


def test_a_sharding_function_counts():
    graph = mr.Dataset.range(9).__pipeline__().graph
    one, other = (lambda tasks, workers: [0 for _ in tasks]), (lambda tasks, workers: [1 for _ in tasks])
    assert len({fingerprint_of(graph, each) for each in (one, other, mr.ShardingPolicy.DYNAMIC)}) == 3


def test_processes_of_a_loader_are_refused():
    share: Share = (0, 1)
    with pytest.raises(mr.PipelineError, match="make it with num_workers=0"):
        sharing().__pipeline__().read_epoch(share=share)


def test_each_member_gets_as_many_elements_as_there_are():
    assert len(sharing()) == 100


def test_a_window_is_there_for_epochs_of_as_many_elements_as_the_data():
    chosen: dict[str, Any] = {"sharing": mr.Sharing.WINDOW, "visitation": mr.Visitation.ZERO_ONCE_OR_MORE}
    assert len(sharing(**chosen)) == 100
    assert str(sharing(**chosen)) == str(sharing(**chosen))
    assert sharing(**chosen).state_dict()["epoch"] == 0
