"""Ranks that come when the others have closed, are killed, or close in mid-epoch: on real processes."""

import multiprocessing
import subprocess
import sys

import pytest
from tests.integration.service.service_driving import WAIT_S, job_of

import millrace as mr
from millrace.client import job_session


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


def read_as_rank_one(address, ends):
    """Read all that comes, in a process of its own that reports nothing but the beginning unless it is told to end."""
    job_session.SOON_S = WAIT_S
    part = mr.Dataset.range(600).distribute(address, job_name="ends", num_consumers=2, consumer_index=1, tasks=30)
    ends.put(list(part))
    read_as_rank_one.kept = part  # type: ignore[attr-defined]  # as a DataLoader's worker does


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessing_says_before_it_ends_what_it_has_read(service, method):
    context = multiprocessing.get_context(method)
    ends = context.Queue()
    process = context.Process(target=read_as_rank_one, args=(service.address, ends))
    process.start()
    seen = ends.get(timeout=WAIT_S)
    process.join(WAIT_S)
    assert process.exitcode == 0
    with mr.Dataset.range(600).distribute(
        service.address, job_name="ends", num_consumers=2, consumer_index=0, tasks=30
    ) as part:
        assert sorted([*part, *seen]) == list(range(600))
        assert not job_of(service.status(), "ends")["unread"]


READS = """
import sys
import millrace as mr

reads = mr.Dataset.range(600).distribute(sys.argv[1], job_name="lost", num_consumers=2, consumer_index=1, tasks=30)
batches = iter(reads)
next(batches)
print("reads", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("service", [2], indirect=True)
def test_who_ends_an_epoch_is_told_what_of_it_a_killed_rank_has_not_read(service):
    def rank(index):
        ds = mr.Dataset.range(600)
        return ds.distribute(service.address, job_name="lost", num_consumers=2, consumer_index=index, tasks=30)

    with rank(0) as part:
        numbers = iter(part)
        seen = [next(numbers)]
        command = [sys.executable, "-c", READS, service.address]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"reads\n"
            service.until(lambda status: job_of(status, "lost")["consumers"][1]["batches"])
            other.kill()
        service.until(lambda status: not job_of(status, "lost")["consumers"][1]["connected"])

        def read_to_the_end():
            seen.extend(numbers)
            service.until(lambda _: len(heard))  # the dispatcher's word may come after the last element

        with pytest.warns(
            mr.MillraceWarning, match="Epoch 0 of job 'lost' lacks .* of consumer 1, which was lost"
        ) as heard:
            read_to_the_end()
        unread = [share["elements"] for share in job_of(service.status(), "lost")["unread"] if share["epoch"] == 0]
        assert 0 < sum(unread) <= 600 - len(seen)
        with pytest.warns(mr.MillraceWarning) as told, rank(1) as again:
            assert iter(again).state_dict()["epoch"] == 1
        assert any("which it did not end; this one goes on with epoch 1" in str(each.message) for each in told)


@pytest.mark.parametrize("service", [2], indirect=True)
def test_who_ends_an_epoch_is_told_what_another_had_received_and_not_used(service):
    one, two = (
        mr.Dataset.range(1000).distribute(
            service.address, job_name="closes", num_consumers=2, consumer_index=rank, tasks=40
        )
        for rank in range(2)
    )
    with one, two:
        numbers = iter(one)
        seen = [next(numbers)]
        service.until(lambda status: job_of(status, "closes")["tasks"]["done"] > 3)
        one.close()
        with pytest.warns(mr.MillraceWarning, match="of consumer 0, which closed before it had handed them out"):
            seen += iter(two)
        [unread] = job_of(service.status(), "closes")["unread"]
        assert unread["elements"] == 1000 - len(seen)
