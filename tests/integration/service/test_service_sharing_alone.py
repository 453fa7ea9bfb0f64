"""Jobs that leave those that they share with, and come to them again: too slow, away, late, or from a state."""

import itertools
import pickle
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from tests.integration.service.service_driving import WAIT_S
from tests.integration.service.test_service_sharing import COUNT, NUMBERS, groups, members, shared
from tests.integration.service.test_service_sharing_ranks import RANKS, Training, waited

import millrace as mr


def number_of(row):
    return int(row[0])


def large(gate):
    """Data of which neither a worker nor a job has room for an epoch."""

    def grow(number):
        gate.pass_through()
        return np.full(5000, number)

    return mr.Dataset.range(COUNT).shuffle(COUNT).map(grow).with_options(buffer_bytes=1 << 20)


@pytest.fixture(scope="module")
def small_service(service_with):
    """Workers with hardly any room, and a dispatcher with hardly any patience."""
    with service_with(options=["--lockstep-wait", "0.5"]) as service:
        service.add(2, "--buffer-bytes", "400000")
        yield service


def behind(job, kind):
    """Operators behind distribute() that hold something when the job is detached."""
    return {"plain": job, "mapped": job.map(lambda row: row), "batched": job.batch(7)}[kind]


def numbers(elements, kind):
    return Counter(number_of(row) for each in elements for row in (each if kind == "batched" else [each]))


@contextmanager
def detached(service, keeper, dataset, kind, **chosen):
    """A job that was detached after the first element, its iterator, that element, and what the other one reads."""
    with (
        shared(dataset, service, "fast", **chosen) as fast,
        shared(dataset, service, "slow", **chosen) as slow,
        ThreadPoolExecutor(1) as pool,
    ):
        own = behind(slow, kind)
        one, other = iter(fast), iter(own)
        keeper.open()
        seen = [next(other)]
        rest = pool.submit(list, one)
        service.until(lambda status: members(status) == 1)
        yield own, other, seen, rest


def epoch_is_over(status):
    """Whether the dispatcher knows that the group has read its epoch."""
    tasks = groups(status)[0]["tasks"]
    return tasks["done"] == tasks["total"]


KINDS = pytest.mark.parametrize("kind", ["plain", "mapped", "batched"])


@KINDS
@pytest.mark.parametrize("deterministic", [False, True])
def test_who_keeps_others_waiting_goes_on_alone_and_has_each_once(small_service, gate, keeper, kind, deterministic):
    with detached(small_service, keeper, large(gate), kind, deterministic=deterministic) as (own, other, seen, rest):
        words = "job 'slow' was detached .* held up the others for 0.5 s; job 'slow' reads the rest of epoch 0"
        with pytest.warns(mr.MillraceWarning, match=words):
            seen.extend(other)
        assert numbers(seen, kind) == NUMBERS
        assert numbers(rest.result(WAIT_S), "plain") == NUMBERS
        assert own.state_dict()["ended"]


def test_who_goes_on_alone_reads_what_a_cache_has_of_the_epoch(service_with, gate, keeper, calls, folder):
    with service_with(options=["--lockstep-wait", "0.5"], cache_dir=folder) as service:
        service.add(2, "--buffer-bytes", "400000")
        cached = large(gate).map(lambda row: row + 0 * calls.note(int(row[0]))).cache()
        with detached(service, keeper, cached, "plain") as (_, other, seen, rest):
            assert numbers(rest.result(WAIT_S), "plain") == NUMBERS
            with pytest.warns(mr.MillraceWarning, match="was detached"):
                seen.extend(other)
            assert numbers(seen, "plain") == NUMBERS
        assert calls.take() == NUMBERS, "the cache is where the epoch spilled to"


def test_at_its_tenants_quota_a_job_goes_on_alone_and_comes_back_as_the_one_job_that_it_is(service_with, gate, keeper):
    with service_with(options=["--lockstep-wait", "0.5", "--quota-jobs", "default=2"]) as service:
        service.add(2, "--buffer-bytes", "400000")
        dataset = large(gate)
        with detached(service, keeper, dataset, "plain") as (own, other, seen, rest):
            refused = pytest.raises(mr.AccessDeniedError, match=r"'slow' .it was detached .* may go on alone within")
            with dataset.distribute(service.address, job_name="third") as third, refused:
                next(iter(third))
            with pytest.warns(mr.MillraceWarning, match="was detached"):
                seen.extend(other)
            assert numbers(seen, "plain") == NUMBERS
            assert numbers(rest.result(WAIT_S), "plain") == NUMBERS
            service.until(epoch_is_over)
            assert numbers(own, "plain") == NUMBERS, "what it read alone is over by then"


@KINDS
def test_a_state_of_a_detached_job_is_gone_on_with_in_a_job_of_its_own(small_service, gate, keeper, kind):
    dataset = large(gate)
    with detached(small_service, keeper, dataset, kind) as (own, other, seen, rest):
        with pytest.warns(mr.MillraceWarning, match="was detached"):
            seen.extend(itertools.islice(other, 10 if kind == "batched" else 70))
        state = own.state_dict()
        other.close()
        rest.result(WAIT_S)
    with shared(dataset, small_service, "slow") as slow:
        own = behind(slow, kind)
        own.load_state_dict(state)
        seen += own
        assert numbers(seen, kind) == NUMBERS
        assert not groups(small_service.status())
        assert numbers(own, kind) == NUMBERS, "with its next epoch it is a member again"
        assert members(small_service.status()) == 1
        assert own.state_dict()["epoch"] == 1


def rounds_read(parts):
    """Numbers in each batch of what a rank got, be batches batched once more behind distribute() or not."""
    batches = (batch for part in parts for batch in (part if part.ndim > 2 else [part]))
    return [batch[:, 0].tolist() for batch in batches]


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        ("plain", {}),
        ("batched", {}),
        ("plain", {"sharing": mr.Sharing.WINDOW, "visitation": mr.Visitation.AT_MOST_ONCE}),
    ],
    ids=["plain", "batched", "window"],
)
def test_ranks_that_keep_others_waiting_go_on_in_a_job_of_their_own_and_in_step(
    small_service, gate, keeper, kind, chosen
):
    dataset, group = large(gate).batch(2), "window-" if chosen else "lockstep-"
    with ExitStack() as stack:
        fast, slow = (Training(stack, small_service, dataset, name, **chosen) for name in ("fast", "slow"))
        whole = [fast.pool.submit(list, part) for part in fast.parts]
        own = [behind(part, kind) for part in slow.parts]
        ranks = slow.at_once(iter, own)
        small_service.until(lambda status: members(status, group) == 2 * RANKS)
        keeper.open()
        seen = [[first] for first in slow.at_once(next, ranks)]
        small_service.until(lambda status: members(status, group) == RANKS)
        words = "job 'slow' .*held up the others for 0.5 s.*; job 'slow' reads the rest of epoch 0"
        with pytest.warns(mr.MillraceWarning, match=words):
            rest = slow.at_once(list, ranks)
        found = [rounds_read([*first, *others]) for first, others in zip(seen, rest, strict=True)]
        assert found == [rounds_read(rank) for rank in waited(whole)]
        assert len(found[0]) == len(found[1]) == COUNT // (2 * RANKS)
        assert Counter(number for rank in found for batch in rank for number in batch) == NUMBERS
        assert all(each.state_dict()["ended"] for each in own)


@pytest.mark.parametrize("service", [2], indirect=True)
def test_who_comes_in_the_middle_of_an_epoch_reads_it_alone_and_shares_the_next_one(service, gate, keeper):
    dataset = mr.Dataset.range(COUNT).map(lambda number: gate.pass_through() or number if number > 150 else number)
    with (
        shared(dataset, service, "first") as first,
        shared(dataset, service, "late") as late,
        ThreadPoolExecutor(1) as pool,
    ):
        epoch = iter(first)
        seen = [next(epoch)]
        service.until(lambda status: groups(status)[0]["tasks"]["done"])

        def read_late():
            alone = pool.submit(list, late)
            service.until(lambda status: any(job["name"].startswith("late-alone") for job in status["jobs"]))
            keeper.open()
            return Counter(alone.result(WAIT_S))

        with pytest.warns(
            mr.MillraceWarning, match="job 'late' reads epoch 0 in a job of its own, as .* in the middle"
        ):
            assert read_late() == NUMBERS
        assert Counter([*seen, *epoch]) == NUMBERS
        service.until(epoch_is_over)  # each has a session of its own
        epochs = [iter(job) for job in (late, first)]
        assert members(service.status()) == 2
        assert [Counter(epoch) for epoch in epochs] == [NUMBERS] * 2
        assert [job.state_dict()["epoch"] for job in (first, late)] == [1, 1]


@pytest.mark.parametrize("service", [2], indirect=True)
def test_who_begins_alone_from_a_state_of_a_later_epoch_leads_the_group_there(service):
    dataset = mr.Dataset.range(COUNT)
    with shared(dataset, service) as job:
        for _ in range(2):
            list(job)
        epoch = iter(job)
        next(epoch)
        state = epoch.state_dict()
        epoch.close()
    with shared(dataset, service) as job:
        job.load_state_dict(state)
        assert len(list(job)) == COUNT - 1
        assert Counter(job) == NUMBERS
        assert job.state_dict()["epoch"] == 3
        assert members(service.status()) == 1


@pytest.mark.parametrize("service", [2], indirect=True)
def test_a_second_iterator_at_a_time_reads_in_a_job_of_its_own(service):
    with shared(mr.Dataset.range(COUNT), service) as job:
        one, other = iter(job), iter(job)
        assert (Counter(one), Counter(other)) == (NUMBERS, NUMBERS)


KILLED = """
import pickle
import sys
import types
from tests.integration.service.test_service_sharing_alone import large, shared

service = types.SimpleNamespace(address=sys.argv[1])
elements = iter(shared(large(pickle.loads(bytes.fromhex(sys.argv[2]))), service, "killed"))
print("joined", flush=True)
next(elements)
print("reads", flush=True)
sys.stdin.read()
"""


def test_a_killed_member_keeps_the_others_waiting_no_longer_than_a_slow_one(small_service, gate, keeper):
    command = [sys.executable, "-c", KILLED, small_service.address, pickle.dumps(gate).hex()]
    killed = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with shared(large(gate), small_service, "other") as other, killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"joined\n"
        elements = iter(other)
        assert members(small_service.status()) == 2
        keeper.open()
        assert killed.stdout.readline() == b"reads\n"
        killed.kill()
        assert numbers(elements, "plain") == NUMBERS
        assert members(small_service.status()) == 1


@pytest.mark.parametrize("service", [2], indirect=True)
def test_members_may_leave_in_any_order(service, gate, keeper):
    dataset = mr.Dataset.range(COUNT).map(lambda number: gate.pass_through() or number)
    with shared(dataset, service, "a") as a, shared(dataset, service, "b") as b, shared(dataset, service, "c") as c:
        epochs = [iter(job) for job in (a, b, c)]
        assert members(service.status()) == 3
        a.close()
        keeper.open()
        seen = list(itertools.islice(epochs[1], 50))
        assert Counter(epochs[2]) == NUMBERS
        c.close()
        assert Counter([*seen, *epochs[1]]) == NUMBERS
        assert Counter(b) == NUMBERS
    service.until(lambda status: not members(status))


def test_jobs_share_a_local_service_as_any_other(gate, keeper):
    dataset = mr.Dataset.range(COUNT).map(lambda number: gate.pass_through() or number)
    with mr.LocalService(1) as service, shared(dataset, service) as one, shared(dataset, service) as other:
        epochs = [iter(job) for job in (one, other)]
        keeper.open()
        assert [Counter(epoch) for epoch in epochs] == [NUMBERS] * 2
        assert [epoch.members for epoch in epochs] in ([2, 2], [1, 2])
