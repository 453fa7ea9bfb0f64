"""Jobs of two ranks each that share rounds: computed once for all of them, and the same steps for each."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from tests.integration.service.service_driving import WAIT_S
from tests.integration.service.test_service_sharing import groups, shared

import millrace as mr
from millrace.client import job_session

COUNT, RANKS = 400, 2


class Training:
    """All ranks of one job, which read at once."""

    def __init__(self, stack, service, dataset, name, **options):
        chosen = {"num_consumers": RANKS, "coordinated": True, "sharing": mr.Sharing.LOCKSTEP, "tasks": 12, **options}
        self.pool = stack.enter_context(ThreadPoolExecutor(RANKS))  # ends after the parts, which let go of its threads
        self.parts = [
            stack.enter_context(dataset.distribute(service.address, job_name=name, consumer_index=rank, **chosen))
            for rank in range(RANKS)
        ]

    def epoch(self):
        """What the ranks read; to be waited for."""
        return [self.pool.submit(lambda part: [batch.tolist() for batch in part], part) for part in self.parts]

    def at_once(self, call, each):
        """What a call gives for something of each rank, made by all at a time."""
        return waited([self.pool.submit(call, one) for one in each])


def bucketed(calls):
    def grow(number):
        return np.full(1 + calls.note(number) % 7, number)

    return mr.Dataset.range(COUNT).shuffle(COUNT).map(grow).bucket_by_sequence_length(len, [4], [8, 4])


def waited(epoch):
    return [part.result(WAIT_S) for part in epoch]


def test_two_jobs_of_two_ranks_read_the_same_rounds_and_functions_run_once_for_all(service_with, calls):
    dataset = bucketed(calls)
    with service_with() as service, ExitStack() as stack:
        jobs = [Training(stack, service, dataset, name) for name in ("one", "other")]
        first = [job.epoch() for job in jobs]
        service.until(lambda status: sum(len(job["consumers"]) for job in groups(status)) == 2 * RANKS)
        service.add(2)
        for number, epochs in enumerate((first, None)):
            one, other = map(waited, epochs or [job.epoch() for job in jobs])
            assert one == other, f"epoch {number}"
            assert len(one[0]) == len(one[1]) > 0
            assert not {row[0] for batch in one[0] for row in batch} & {row[0] for batch in one[1] for row in batch}
        [group] = [job["group"] for job in service.status()["jobs"]]
        assert {each["member"] for each in group["members"]} == {"one", "other"}
        found = calls.take()
        assert max(found.values()) <= 3, "two epochs, and the next one may be prepared"


@pytest.mark.parametrize("service", [2], indirect=True)
def test_who_comes_with_a_rank_too_few_waits_and_is_told_for_whom(service, calls):
    dataset = bucketed(calls)
    with ExitStack() as stack:
        job = Training(stack, service, dataset, "one")
        first = job.pool.submit(list, job.parts[0])
        service.until(lambda status: not groups(status))
        rest = job.pool.submit(list, job.parts[1])
        assert len(first.result(WAIT_S)) == len(rest.result(WAIT_S)) > 0


def test_no_step_is_lost_to_a_worker_that_dies(service_with, calls, gate, keeper):
    dataset = bucketed(calls).map(lambda batch: gate.pass_through() or batch)
    with service_with() as service, ExitStack() as stack:
        service.add(2, "--buffer-bytes", "20000")
        jobs = [Training(stack, service, dataset, name) for name in ("one", "other")]
        epochs = [job.epoch() for job in jobs]
        service.until(lambda status: sum(len(job["consumers"]) for job in groups(status)) == 2 * RANKS)
        service.kill("w1")
        keeper.open()
        one, other = map(waited, epochs)
        assert one == other
        assert len(one[0]) == len(one[1]) > 0


WINDOW = {"sharing": mr.Sharing.WINDOW, "visitation": mr.Visitation.AT_MOST_ONCE, "tasks": 200}
SMALL_BYTES = 4000


def steps_of(job):
    """What the ranks of a job got in each step."""
    one, other = job
    assert len(one) == len(other)
    return [(str(mine), str(its)) for mine, its in zip(one, other, strict=True)]


def test_a_job_that_is_behind_in_a_window_skips_with_all_ranks_and_keeps_equal_steps_also_if_a_worker_dies(
    service_with, calls, monkeypatch
):
    monkeypatch.setattr(job_session, "BUFFER_BYTES", SMALL_BYTES)  # or a job would receive all while it reads nothing
    monkeypatch.setattr(job_session, "LEAST_BUFFER_BYTES", SMALL_BYTES)

    def grow(number):
        return np.full(1 + calls.note(number) % 7, number)

    dataset = mr.Dataset.range(2 * COUNT).shuffle(2 * COUNT).map(grow).bucket_by_sequence_length(len, [4], [2, 2])
    with service_with() as service, ExitStack() as stack:
        fast, slow = (Training(stack, service, dataset, name, **WINDOW) for name in ("fast", "slow"))
        begun = [slow.pool.submit(iter, part) for part in slow.parts]
        read = fast.epoch()
        service.until(lambda status: sum(len(job["consumers"]) for job in groups(status, "window-")) == 2 * RANKS)
        service.add(3)
        late = waited(begun)
        first = slow.at_once(next, late)
        service.kill("w1")
        steps = steps_of(waited(read))
        rest = [slow.pool.submit(lambda part: [batch.tolist() for batch in part], each) for each in late]
        mine = steps_of([[one.tolist(), *more] for one, more in zip(first, waited(rest), strict=True)])
        rounds = {*steps, *mine}
        assert len({one for one, _ in rounds}) == len({other for _, other in rounds}) == len(rounds), (
            "both of a step are of one round"
        )
        assert len(set(mine)) == len(mine) > 0
        assert len(set(steps)) == len(steps)
        missed = len(rounds) - len(mine)  # the other job may have been behind, too, at the beginning
        assert missed > 0
        assert [each.missed for each in late] == [missed] * RANKS


def test_the_status_says_what_members_share_and_their_costs_add_up_to_the_groups(service_with, calls):
    dataset = mr.Dataset.range(COUNT).map(calls.note)
    with service_with() as service, ExitStack() as stack:
        parts = [stack.enter_context(shared(dataset, service, name)) for name in ("one", "two")]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        reading = [pool.submit(sorted, part) for part in parts]
        service.until(lambda status: sum(len(job["consumers"]) for job in groups(status)) == 2)
        service.add(2)  # nothing is computed before both have come
        assert waited(reading) == [list(range(COUNT))] * 2
        service.until(lambda status: groups(status)[0]["group"]["given"] == 2 * COUNT)
        job = groups(service.status())[0]
        group = job["group"]
        assert {each["member"]: each["elements"] for each in group["members"]} == {"one": COUNT, "two": COUNT}
        assert (group["made"], group["readers"]) == (COUNT, 2.0)
        service.until(lambda status: groups(status)[0]["group"]["window"]["hits"] == COUNT)
        service.until(lambda status: {row["member"] for row in groups(status)[0]["group"]["spent"]} == {"one", "two"})
        job = groups(service.status())[0]
        for part in ("worker_hours", "core_hours", "training_hours"):
            mine = sum(row[part] for row in job["group"]["spent"])
            assert mine == pytest.approx(sum(row[part] for row in job["spent"]))
