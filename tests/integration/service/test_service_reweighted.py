"""Weights of a mixture that are set while a service computes the epoch: the same elements wherever it goes on."""

import itertools

import pytest
from tests.integration.service.service_driving import as_set, prints

import millrace as mr

# Where a machine is busy all tasks may have begun when weights are set; what comes then is right, too.
pytestmark = pytest.mark.filterwarnings("ignore:set_weights came when all tasks")

COUNT = 24_000
"""Elements; in tasks so small that only a part of them is under way at a time."""


def jittered(number, rng):
    return number * 1000 + int(rng.integers(1000))


def made(weights, **chosen):
    """A mixture of two datasets without end, each shuffled anew in each pass."""
    web = mr.Dataset.range(2000).shuffle(2000).repeat()
    books = mr.Dataset.range(10_000, 10_300).shuffle(300).repeat()
    mixed = mr.Dataset.sample_from_datasets([web, books], weights, seed=3, **chosen)
    return mixed.take(COUNT).map(jittered).batch(20).with_options(seed=5)


def written(begins):
    """The epoch as it is read in this process, where the weights are part of the pipeline."""
    return list(made(begins, weights_by="element"))


def some(epoch, count):
    return list(itertools.islice(epoch, count))


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_worker_dies_behind_the_change_and_another_service_goes_on(service_with, deterministic):
    with (
        service_with(2) as service,
        made([1, 1]).distribute(service.address, deterministic=deterministic, tasks=600) as batches,
    ):
        epoch = iter(batches)
        seen = some(epoch, 20)
        begin = epoch.set_weights([9, 1])
        seen += some(epoch, 30)
        service.kill("w0")
        seen += some(epoch, 400)
        state = epoch.state_dict()
        rest = list(epoch)
        following = list(batches)
    expected = written({0: [1, 1], begin: [9, 1]})
    assert 400 <= begin <= COUNT
    assert state["reweighted"][0][1:] == [begin, [9.0, 1.0]]
    assert as_set([*seen, *rest]) == as_set(expected)
    with service_with(1) as other:
        again = made([1, 1])
        with again.distribute(other.address, deterministic=deterministic, tasks=600) as batches:
            batches.load_state_dict(state)
            resumed, next_one = list(batches), list(batches)
    assert as_set(resumed) == as_set(rest)
    assert as_set(following) == as_set(next_one)
    if deterministic:
        assert prints([*seen, *rest]) == prints(expected)
        assert prints(resumed) == prints(rest)
        assert prints(following) == prints(next_one)


def test_a_dispatcher_that_is_killed_knows_what_was_set(service_with, tmp_path):
    with (
        service_with(2, work_dir=tmp_path / "work") as service,
        made([1, 1]).distribute(service.address, deterministic=True, tasks=600) as batches,
    ):
        epoch = iter(batches)
        seen = some(epoch, 5)
        begins = {0: [1, 1], epoch.set_weights([9, 1]): [9, 1]}
        service.restart_dispatcher()
        begins[epoch.set_weights([0, 1])] = [0, 1]
        seen += list(epoch)
        # Where nothing was leased between the two, the second takes the place of the first.
        assert len(epoch.state_dict()["reweighted"]) == len(begins) - 1
    assert prints(seen) == prints(written(begins))


@pytest.mark.parametrize("service", [2], indirect=True)
def test_any_rank_sets_them_for_all_and_the_states_of_both_lead_on(service):
    ranks = [
        made([1, 1]).distribute(
            service.address, job_name="reweighted", num_consumers=2, consumer_index=rank, tasks=600, deterministic=True
        )
        for rank in range(2)
    ]
    epochs = [iter(batches) for batches in ranks]
    seen = [batch for epoch in epochs for batch in some(epoch, 10)]
    begin = epochs[1].set_weights([1, 9])
    seen += [batch for epoch in epochs for batch in some(epoch, 130)]
    states = [epoch.state_dict() for epoch in epochs]
    for batches in ranks:
        batches.close()
    with made([1, 1]).distribute(service.address, tasks=600) as batches:
        batches.load_state_dict(states)
        seen += list(batches)
    assert as_set(seen) == as_set(written({0: [1, 1], begin: [1, 9]}))


@pytest.mark.parametrize("service", [2], indirect=True)
def test_what_is_left_of_ranks_with_equal_steps_goes_to_another_number_and_is_weighed_anew(service):
    """The rest is divided anew, and weights hold behind all that was read, wherever that was."""
    ranks = [
        made([1, 1]).distribute(
            service.address, job_name="equal", num_consumers=2, consumer_index=rank, tasks=600, equal_steps=True
        )
        for rank in range(2)
    ]
    epochs = [iter(batches) for batches in ranks]
    seen = [batch for epoch in epochs for batch in some(epoch, 20)]
    begins = {0: [1, 1], epochs[0].set_weights([1, 9]): [1, 9]}
    seen += some(epochs[0], 60) + some(epochs[1], 35)
    states = [epoch.state_dict() for epoch in epochs]
    for batches in ranks:
        batches.close()
    alone = made([1, 1]).distribute(service.address, num_consumers=1, tasks=600, equal_steps=True)
    with alone as batches:
        batches.load_state_dict(states)
        epoch = iter(batches)
        begins[epoch.set_weights([3, 1])] = [3, 1]
        seen += list(epoch)
    assert list(begins) == sorted(begins)
    assert as_set(seen) == as_set(written(begins))


@pytest.mark.parametrize("service", [2], indirect=True)
def test_what_a_service_refuses_is_a_sentence_and_reading_goes_on(service):
    with made([1, 1]).shuffle(10).distribute(service.address) as batches:
        epoch = iter(batches)
        with pytest.raises(mr.PipelineError, match=r"shuffle\(\) behind it takes them in another order"):
            epoch.set_weights([1, 2])
        with pytest.raises(mr.PipelineError, match="one weight >= 0 for each dataset"):
            epoch.set_weights([-1, 2])
        assert len(list(epoch)) == COUNT // 20
    shared = made([1, 1]).distribute(service.address, job_name="shared", sharing=mr.Sharing.LOCKSTEP)
    with shared as batches:
        epoch = iter(batches)
        next(epoch)
        with pytest.raises(mr.PipelineError, match="leave sharing= out"):
            epoch.set_weights([1, 2])
        assert len(list(epoch)) == COUNT // 20 - 1


@pytest.mark.parametrize("service", [2], indirect=True)
def test_an_iterator_that_is_not_being_read_is_refused_as_it_is_in_process(service):
    batches = made([1, 1]).distribute(service.address)
    closed = iter(batches)
    next(closed)
    closed.close()
    ended = iter(batches)
    assert len(list(ended)) == COUNT // 20
    last = iter(batches)
    next(last)
    for other in (closed, ended):
        with pytest.raises(mr.PipelineError, match="call it on the iterator that is being read"):
            other.set_weights([1, 9])
    assert "reweighted" not in last.state_dict()
    batches.close()
    with pytest.raises(mr.PipelineError, match="call it on the iterator that is being read"):
        last.set_weights([1, 9])


@pytest.mark.parametrize("service", [2], indirect=True)
def test_who_sets_weights_when_all_tasks_are_leased_is_told_so_once(service):
    with made([1, 1]).distribute(service.address, deterministic=True, tasks=2) as batches:
        epoch = iter(batches)
        seen = some(epoch, 1199)
        with pytest.warns(mr.MillraceWarning, match="that draw from the mixture had begun") as told:
            assert [epoch.set_weights([9, 1]), epoch.set_weights([0, 1])] == [COUNT, COUNT]
        assert len(told) == 1
        seen += list(epoch)
    assert prints(seen) == prints(written([1, 1]))


@pytest.mark.parametrize("service", [2], indirect=True)
def test_later_epochs_for_which_other_datasets_are_written_begin_with_what_was_set(service):
    def three(weights):
        each = [mr.Dataset.range(at, at + 100) for at in (0, 1000, 2000)]
        return mr.Dataset.sample_from_datasets(each, weights, seed=3).with_options(seed=5)

    with three({0: [1, 1, 0], 1: [1, 0, 1]}).distribute(service.address, deterministic=True, tasks=50) as numbers:
        epoch = iter(numbers)
        next(epoch)
        epoch.set_weights([1, 2, 0])
        assert len(list(epoch)) == 199
        assert list(numbers) == list(numbers) == list(three([1, 2, 0]))
    with three({0: [1, 1, 0], 1: [1, 0, 1]}).distribute(service.address, deterministic=True, tasks=50) as numbers:
        numbers.load_state_dict(epoch.state_dict())
        assert list(numbers) == list(three([1, 2, 0]))


@pytest.mark.parametrize("service", [2], indirect=True)
def test_operators_behind_distribute_pass_it_on(service):
    with made([1, 1]).distribute(service.address, deterministic=True, tasks=600) as batches:
        behind = batches.map(lambda batch: batch + 1)
        epoch = iter(behind)
        seen = [*some(epoch, 10)]
        begin = behind.set_weights([9, 1])  # as a loop does that has no iterator
        seen += list(epoch)
    assert prints([batch - 1 for batch in seen]) == prints(written({0: [1, 1], begin: [9, 1]}))
