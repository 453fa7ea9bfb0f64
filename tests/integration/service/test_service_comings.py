"""Workers come, leave and die, and the dispatcher dies, in the middle of an epoch: each element once all the same."""

import threading
from collections import Counter

import pytest
from tests.integration.service.service_driving import Reading, consume, job_of, together, wait_for_end
from tests.pairwise import alternately

import millrace as mr
from millrace import ShardingPolicy, Visitation

COUNT = 400
TASKS = 20
BATCH = 16


def reverse(tasks, workers):
    return [task % len(workers) for task in reversed(tasks)]


SHARDINGS = [ShardingPolicy.DYNAMIC, ShardingPolicy.STATIC, reverse]


def name_of(value):
    """In the test's name; None: as it is."""
    return getattr(value, "name", None) or ("custom" if callable(value) else None)


def pipeline(gate, stops):
    """Numbers without every third one, in batches; its functions come to ``gate`` with the numbers ``stops``."""

    def look(number):
        if number in stops:
            gate.pass_through()
        return number

    return mr.Dataset.range(COUNT).map(look).filter(lambda number: number % 3 != 0).batch(BATCH)


def readers(dataset, service, count, **options):
    options = {"tasks": TASKS, **options}
    if count == 1:
        return [dataset.distribute(service.address, **options)]
    return [dataset.distribute(service.address, job_name="ours", num_consumers=count, **options) for _ in range(count)]


def check(read):
    for epoch in together(read):
        assert Counter(n for batch in epoch for n in batch.tolist()) == Counter(n for n in range(COUNT) if n % 3)
        assert sum(len(batch) < BATCH for batch in epoch) <= 1


EARLY_AND_LATE = frozenset({10, 390})
"""The first task and the last one: while they wait, all others are done by those who don't."""


@pytest.mark.parametrize("own_service", [2], indirect=True)
@pytest.mark.parametrize(("sharding", "count"), alternately(SHARDINGS, [1, 3]), ids=name_of)
def test_workers_that_join_and_leave(own_service, gate, keeper, sharding, count):
    with Reading(readers(pipeline(gate, EARLY_AND_LATE), own_service, count, sharding=sharding), 2) as reading:
        first = own_service.named(keeper.wait())
        own_service.add(1)
        own_service.leave(first)
        keeper.open()
        check(reading.result())
    assert wait_for_end(own_service.workers[first]) == 0


def holder_of_leftovers(service, but):
    """A worker that has nothing to do and keeps what others will need."""

    def find(status):
        return next(
            (w["id"] for w in status["workers"] if w["id"] not in but and w["kept"] and not w["leases"]),
            None,
        )

    return service.until(find)


@pytest.mark.parametrize("own_service", [2], indirect=True)
@pytest.mark.parametrize(("how", "count"), alternately(["leave", "kill"], [1, 3]))
def test_the_worker_that_keeps_leftovers_for_a_tail(own_service, gate, keeper, count, how):
    with Reading(readers(pipeline(gate, {390}), own_service, count)) as reading:
        last = own_service.named(keeper.wait())
        holder = holder_of_leftovers(own_service, {last})
        own_service.leave(holder) if how == "leave" else own_service.kill(holder)
        keeper.open()
        check(reading.result())
    if how == "leave":
        assert wait_for_end(own_service.workers[holder]) == 0


@pytest.mark.parametrize("own_service", [3], indirect=True)
@pytest.mark.parametrize(
    ("sharding", "deterministic", "count"),
    [(ShardingPolicy.DYNAMIC, True, 3), *alternately(SHARDINGS, [False], [1, 3])],
    ids=name_of,
)
def test_workers_that_are_killed(own_service, gate, keeper, sharding, count, deterministic):
    dataset = pipeline(gate, EARLY_AND_LATE)
    options = {"sharding": sharding, "deterministic": deterministic}
    with Reading(readers(dataset, own_service, count, **options), 2) as reading:
        own_service.kill(own_service.named(keeper.wait()))
        own_service.kill(own_service.named(keeper.wait()))
        keeper.open()
        check(reading.result())


@pytest.mark.parametrize("own_service", [1], indirect=True)
def test_the_only_worker_is_killed_and_another_one_comes(own_service, gate, keeper):
    with Reading(readers(pipeline(gate, {200}), own_service, 1), 2) as reading:
        own_service.kill(own_service.named(keeper.wait()))
        own_service.until(lambda status: not status["workers"])
        assert "none is registered" in own_service.status()["jobs"][0]["why"]
        own_service.add(1)
        keeper.open()
        check(reading.result())


@pytest.mark.parametrize("own_service", [2], indirect=True)
@pytest.mark.parametrize("count", [1, 3])
def test_at_most_once_goes_on_without_what_was_lost(own_service, gate, keeper, count):
    gated = set(range(10, COUNT, COUNT // TASKS)) - set(range(0, COUNT, 3))
    assert len(gated) > TASKS // 2  # of most tasks one, so that the job can't end before it is looked at
    dataset = pipeline(gate, gated)
    with Reading(readers(dataset, own_service, count, visitation=Visitation.AT_MOST_ONCE)) as reading:
        own_service.kill(own_service.named(keeper.wait()))
        lost = own_service.until(lambda status: [job["lost"] for job in status["jobs"] if job["lost"]["tasks"]])
        keeper.open()
        [epoch] = together(reading.result())
    got = Counter(n for batch in epoch for n in batch.tolist())
    assert max(got.values()) == 1
    assert not gated <= set(got)
    assert set(got) < {n for n in range(COUNT) if n % 3}
    assert len(got) > 0
    assert lost[0]["elements"] == 0  # behind a filter nobody can tell


@pytest.mark.parametrize("own_service", [2], indirect=True)
def test_the_dispatcher_is_killed_and_comes_back(own_service, gate, keeper):
    workers = {process.pid for process in own_service.workers.values()}
    with Reading(readers(pipeline(gate, {200}), own_service, 1)) as reading:
        keeper.wait()
        own_service.restart_dispatcher()
        with pytest.raises(mr.JobFailedError, match=r"dispatcher was restarted and has no journal.*start the training"):
            reading.result()
    keeper.open()
    own_service.until(lambda status: {worker["pid"] for worker in status["workers"]} == workers)
    check(consume(readers(pipeline(gate, ()), own_service, 1), 2))
    assert not job_of(own_service.status(), "ours")


@pytest.mark.parametrize("own_service", [1], indirect=True)
def test_a_worker_whose_task_never_ends_leaves_all_the_same(own_service, gate, keeper):
    [first] = own_service.workers
    [slow] = own_service.add(1, "--drain-timeout", "1")
    own_service.kill(first)
    with Reading(readers(pipeline(gate, {200}), own_service, 1)) as reading:
        assert own_service.named(keeper.wait()) == slow  # where it stays
        own_service.leave(slow)
        own_service.until(lambda status: not status["workers"])
        own_service.add(1)
        assert own_service.named(keeper.wait()) != slow
        keeper.open()
        check(reading.result())
    wait_for_end(own_service.workers[slow])


@pytest.mark.parametrize("own_service", [1], indirect=True)
def test_a_worker_that_has_left_went_in_good_order_though_user_code_holds_its_process(own_service):
    def hold(number):
        threading.Thread(target=threading.Event().wait, daemon=False).start()
        return number

    [worker] = own_service.workers
    with mr.Dataset.range(2).map(hold).distribute(own_service.address) as read:
        assert sorted(read.epochs(1)) == [0, 1]
    own_service.leave(worker)
    assert wait_for_end(own_service.workers[worker]) == 0


@pytest.mark.parametrize("own_service", [2], indirect=True)
@pytest.mark.parametrize("known", [True, False])
def test_equal_steps_when_a_worker_dies_at_the_end_of_an_epoch(own_service, gate, keeper, known):
    def look(number):
        if number == 3950:
            gate.pass_through()
        return number

    dataset = mr.Dataset.range(4000).map(look)
    dataset = dataset.batch(BATCH) if known else dataset.filter(lambda number: number % 3 != 0).batch(BATCH)
    with Reading(readers(dataset, own_service, 3, equal_steps=True), 2) as reading:
        own_service.kill(own_service.named(keeper.wait()))
        keeper.open()
        read = reading.result()
    for epoch in zip(*read, strict=True):
        steps = [len(batches) for batches in epoch]
        assert len(set(steps)) == 1
        assert max(Counter(n for batches in epoch for batch in batches for n in batch.tolist()).values()) == 1
        if known:
            assert steps[0] == 4000 // BATCH // 3
        assert steps[0] > 0
