"""Ranks that come when the others have closed, on real processes."""

import pytest
from tests.integration.service.service_driving import job_of

import millrace as mr


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize("fields", [{}, {"deterministic": True}, {"sharding": mr.ShardingPolicy.STATIC}], ids=str)
def test_ranks_that_read_one_after_the_other_get_all_of_it_once(service, fields):
    seen, name = [], f"one by one {fields}"
    for rank in range(3):
        ds = mr.Dataset.range(500) if fields else mr.Dataset.range(500).filter(lambda number: number % 7 != 0)
        part = ds.batch(10).distribute(service.address, job_name=name, num_consumers=3, consumer_index=rank, **fields)
        with part:
            seen += [(epoch, number) for epoch in range(2) for batch in part for number in batch.tolist()]
        if rank < 2:
            job = job_of(service.status(), name)
            assert job["kept"]["consumers"] == list(range(rank + 1, 3))
            assert "is kept for consumer" in job["why"]
    assert sorted(seen) == [(epoch, number) for epoch in range(2) for number in range(500) if fields or number % 7]
    assert name not in [job["name"] for job in service.status()["jobs"]]


@pytest.mark.parametrize("service", [2], indirect=True)
def test_a_script_that_runs_again_before_the_other_rank_came_begins_anew_and_says_so(service):
    def read(rank):
        ds = mr.Dataset.range(100).batch(10)
        with ds.distribute(service.address, job_name="again", num_consumers=2, consumer_index=rank) as part:
            return [number for batch in part for number in batch.tolist()]

    read(0)
    with pytest.warns(mr.MillraceWarning, match="job 'again' begins anew, as consumer 0 had left it"):
        seen = read(0)
    assert sorted(seen + read(1)) == list(range(100))
