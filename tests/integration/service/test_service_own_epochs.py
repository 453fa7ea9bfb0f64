"""Jobs that share a window and have epochs of their own: each has as many elements as the data, whatever they miss."""

import itertools
import pickle
from collections import Counter

import numpy as np
import pytest
from tests.integration.service.test_service_sharing import COUNT, NUMBERS, grown, members, noted, shared

import millrace as mr

OWN = {"sharing": mr.Sharing.WINDOW, "visitation": mr.Visitation.ZERO_ONCE_OR_MORE, "window_bytes": 1 << 18}
pytestmark = pytest.mark.parametrize("service", [2], indirect=True)


def large(function=grown):
    return mr.Dataset.range(COUNT).map(function).with_options(buffer_bytes=1 << 20)


def small():
    return mr.Dataset.range(COUNT).shuffle(COUNT)


def numbers(rows):
    return Counter(int(np.ravel(row)[0]) for row in rows)


def test_who_is_alone_has_the_data_in_each_epoch(service, capfd):
    with shared(small(), service, **OWN, progress=True) as job:
        assert len(job) == COUNT
        assert Counter(job.epochs(2)) == NUMBERS + NUMBERS
        epoch = iter(job)
        assert Counter(epoch) == NUMBERS
        assert (epoch.missed, epoch.members) == (0, 1)
        assert list(epoch) == []
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("epoch ")]
    assert [line.split(" in ")[0] for line in lines] == [f"epoch {number}: {COUNT} elements" for number in range(3)]


def test_who_is_slow_has_as_many_elements_and_hears_what_others_came_in_the_place_of(
    service, gate, keeper, capfd, calls
):
    dataset = mr.Dataset.range(COUNT).map(noted(calls, gate)).map(grown).with_options(buffer_bytes=1 << 20)
    with shared(dataset, service, **OWN) as fast, shared(dataset, service, **OWN, progress=True) as slow:
        behind, ahead = iter(slow), iter(fast)
        keeper.open()
        seen = [next(behind)]
        assert numbers(itertools.chain(ahead, *(fast for _ in range(2)))).total() == 3 * COUNT
        seen += behind
        assert len(seen) == COUNT
        assert behind.missed > COUNT // 2
        assert behind.members == 2
        assert behind.state_dict()["own"] == [0, 0, True]
        assert len(list(slow)) == COUNT
    said = capfd.readouterr().err
    assert f"epoch 0: {COUNT} elements" in said
    assert f", {behind.missed} missed and made up for" in said


def test_the_next_epoch_begins_where_one_was_left(service):
    with shared(small(), service, **OWN) as job:
        with iter(job) as epoch:
            first = list(itertools.islice(epoch, 33))
        assert not list(epoch)
        following = list(job)
        assert len(following) == COUNT
        assert numbers([*first, *following[: COUNT - 33]]) == NUMBERS, "nothing of the group's epoch is left out"
        assert len(list(job)) == COUNT


def test_who_comes_for_the_end_of_an_epoch_begins_with_it_and_goes_on_with_the_next(service):
    chosen = {**OWN, "window_bytes": 1 << 19, "seed": 4}
    with shared(large(), service, **chosen) as first, shared(large(), service, **chosen) as late:
        assert numbers(first) == NUMBERS
        epoch = iter(late)
        assert epoch.state_dict()["epoch"] == 0
        assert len(list(epoch)) == COUNT
        assert epoch.state_dict()["epoch"] == 1
        assert 0 < epoch.missed <= COUNT, "what was prepared of the next epoch may have taken all of the room"


@pytest.mark.parametrize("behind", [False, True])
def test_a_state_goes_on_with_as_many_elements_as_its_epoch_had_still_to_come(service, behind):
    def made():
        job = shared(small(), service, **OWN)
        return job.batch(7) if behind else job

    def read(batches):
        return [number for each in batches for number in (each.tolist() if behind else [each])]

    with made() as job:
        epoch = iter(job)
        seen = read(itertools.islice(epoch, 5))
        state = pickle.loads(pickle.dumps(epoch.state_dict()))
        assert state["own"] == [0, 0, False]
        assert len(seen) + len(read(epoch)) == COUNT
        between = job.state_dict()
        assert between["own"] == [0, 0, True]
    with made() as job:
        job.load_state_dict(state)
        assert job.state_dict() == state
        assert Counter([*seen, *read(job)]) == NUMBERS
        assert len(read(job)) == COUNT
        assert job.state_dict()["own"][0] == 1
        job.load_state_dict(between)
        assert len(read(job)) == COUNT
        assert job.state_dict()["own"] == [1, 0, True]
        epoch = iter(job)
        next(epoch)
        epoch.load_state_dict(state)
        assert Counter([*seen, *read(epoch)]) == NUMBERS


def test_a_state_within_another_epoch_of_the_group_goes_on_with_whatever_the_group_reads(service):
    with shared(small(), service, **OWN, seed=5) as job:
        with iter(job) as epoch:
            list(itertools.islice(epoch, 50))
        epoch = iter(job)
        list(itertools.islice(epoch, COUNT - 20))
        state = epoch.state_dict()
        assert state["own"] == [1, 20, True]
        assert state["epoch"] == 1
        list(epoch)
    with shared(small(), service, **OWN, seed=5) as other, shared(small(), service, **OWN, seed=5) as job:
        reading = iter(other)
        next(reading)
        job.load_state_dict(state)
        epoch = iter(job)
        assert members(service.status(), "window-") == 2
        assert len(list(epoch)) == 20
        assert len(list(job)) == COUNT


def test_epochs_of_unequal_lengths_are_each_as_long_as_one_of_the_groups(service):
    dataset = mr.Dataset.range(COUNT).map(lambda number, rng: rng.random()).filter(lambda drawn: drawn < 0.5)
    with shared(dataset, service, **OWN, seed=1) as job:  # with a drawn one all three are alike once in 544 times
        with iter(job) as epoch:
            next(epoch)
        lengths = [len(list(job)) for _ in range(3)]
        assert all(60 < length < 140 for length in lengths)
        assert len(set(lengths)) > 1


def test_two_iterators_at_a_time_have_an_epoch_each(service):
    with shared(small(), service, **OWN) as job:
        one, other = iter(job), iter(job)
        assert len(list(zip(one, other, strict=True))) == COUNT


def test_a_closed_dataset_is_read_anew_and_its_iterators_are_over(service):
    with shared(small(), service, **OWN) as job:
        epoch = iter(job)
        next(epoch)
        job.close()
        with pytest.raises(mr.ServiceError, match="closed"):
            list(epoch)
        assert len(list(job)) == COUNT
