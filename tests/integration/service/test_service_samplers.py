"""Samplers on a service: the same draws as in process, each once, and workers that draw otherwise are found out."""

import os

import numpy as np
import pytest
from tests.integration.service.service_driving import as_set, consume, prints, together

import millrace as mr
from millrace import samplers

COUNT = 300
EPOCHS = 2


class EachTwice:
    """Sampler of one's own: a random half of the elements, twice each."""

    def positions(self, size, seed, epoch):
        half = np.random.default_rng((seed, epoch)).permutation(size)[: size // 2]
        return np.concatenate([half, half])


class AsThisProcess:
    """Sampler that draws otherwise in each process."""

    def positions(self, size, seed, epoch):
        return np.random.default_rng(os.getpid()).permutation(size)


def with_value(number, rng):
    return number, int(rng.integers(1 << 40))


SAMPLERS: dict[str, samplers.Sampler] = {
    "shuffled": samplers.Shuffled(2 * COUNT),
    "with replacement": samplers.WithReplacement(),
    "weighted": samplers.Weighted(range(COUNT)),
    "class-balanced": samplers.ClassBalanced(["cat" if number % 9 else "dog" for number in range(COUNT)]),
    "windowed": samplers.Windowed(50),
    "curriculum": samplers.Curriculum(range(COUNT), (0.2, 1.0)),
    "one's own": EachTwice(),
}


@pytest.mark.parametrize("own_service", [2], indirect=True)
def test_a_service_draws_what_the_process_would(own_service):
    for name, sampler in SAMPLERS.items():
        dataset = mr.Dataset.range(COUNT).sample(sampler).map(with_value).batch(7).with_options(seed=3)
        here = [list(dataset.__pipeline__().read_epoch(number)) for number in range(EPOCHS)]
        for deterministic in (False, True):
            reader = dataset.distribute(own_service.address, deterministic=deterministic, tasks=9)
            there = together(consume([reader], EPOCHS))
            for mine, theirs in zip(here, there, strict=True):
                assert as_set(theirs) == as_set(mine), name
                if deterministic:
                    assert prints(theirs) == prints(mine), name


@pytest.mark.parametrize("own_service", [2], indirect=True)
def test_workers_that_draw_otherwise_end_the_job_and_the_sampler_is_named(own_service, gate, keeper):
    def stop(number):
        gate.pass_through()  # so that both workers have a task before one of them ends one
        return number

    dataset = mr.Dataset.range(40).sample(AsThisProcess()).map(stop)
    with dataset.distribute(own_service.address, tasks=2) as reader:
        elements = iter(reader)
        assert len({keeper.wait() for _ in range(2)}) == 2
        keeper.open()
        with pytest.raises(mr.PipelineError, match=r"two workers drew different elements for epoch \d+ ") as caught:
            list(elements)
            for _ in range(20):  # the elements of an epoch this short may be here before the dispatcher has heard it
                list(reader)
    assert "sample(AsThisProcess)" in str(caught.value)
    assert "must depend on size, seed and epoch alone" in str(caught.value)
