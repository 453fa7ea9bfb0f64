"""With a cache each epoch has the elements that it has without one, and what is kept is not made again."""

import contextlib
import itertools
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.integration.service.service_data import COUNT as RECORDS
from tests.integration.service.service_data import number_of
from tests.integration.service.service_driving import Service, as_set
from tests.pairwise import alternately

import millrace as mr

COUNT = 240
EPOCHS = 3
SEED = 5


@pytest.fixture(scope="module")
def caching(tmp_path_factory):
    """A service with a cache, for tests that end no process."""
    with Service(2, cache_dir=tmp_path_factory.mktemp("cache")) as running:
        yield running


def odd(number: int) -> bool:
    return number % 2 == 1


def several(number: int) -> list[int]:
    return [number] * (number % 3)


def filled(number: int) -> Any:
    return np.full(50, number)


def noisy(element: Any, rng: np.random.Generator) -> Any:
    return element, rng.random()


def positions(point, calls, data):
    return point(mr.Dataset.range(COUNT).shuffle(COUNT).map(calls.note).map(filled)).map(noisy).batch(7)


def filters(point, calls, data):
    return point(mr.Dataset.range(COUNT).map(calls.note).filter(odd)).shuffle(30).map(noisy).batch(5)


def flat_maps(point, calls, data):
    return point(mr.Dataset.range(COUNT).map(calls.note).flat_map(several)).map(noisy)


def tfrecords(point, calls, data):
    return point(mr.Dataset.from_tfrecords(data.paths("tfrecord")).map(number_of).map(calls.note)).shuffle(99).batch(9)


def parquet(point, calls, data):
    rows = mr.Dataset.from_parquet(data.paths("parquet")).map(lambda row: int(row["number"]))
    return point(rows.map(calls.note).filter(odd)).map(noisy)


def batches(point, calls, data):
    return point(mr.Dataset.range(COUNT).shuffle(COUNT).map(calls.note).batch(7)).map(noisy)


def random(point, calls, data):
    return point(mr.Dataset.range(COUNT).shuffle(COUNT).map(calls.note).map(noisy)).batch(7)


PIPELINES = [positions, filters, flat_maps, tfrecords, parquet, batches, random]
HOW = {
    "cache": lambda dataset: dataset.cache(),
    "always": lambda dataset: dataset.autocache(mode="cache"),
    "auto": lambda dataset: dataset.autocache(),
    "compute": lambda dataset: dataset.autocache(mode="compute"),
}


def whole(made):
    """What is called in an epoch without a cache."""
    return RECORDS if made in (tfrecords, parquet) else COUNT


@pytest.mark.filterwarnings("ignore:below the cache:millrace.MillraceWarning")
@pytest.mark.parametrize(("made", "how"), alternately(PIPELINES, ["cache", "compute"]))
def test_three_epochs_are_those_of_the_process_and_their_cache_is_filled_once(caching, data, calls, made, how, request):
    dataset = made(HOW[how], calls, data).with_options(seed=SEED)
    with dataset.distribute(caching.address, job_name=request.node.name) as distributed:
        found = [as_set(distributed) for _ in range(EPOCHS)]
    once = calls.take()
    expected = [as_set(dataset) for _ in range(EPOCHS)]
    assert found == expected
    if how == "compute":
        assert once.total() >= EPOCHS * whole(made)
        return
    # The next epoch may begin while the last blocks of the first one are written.
    assert whole(made) <= once.total() < 2 * whole(made)
    calls.take()
    with dataset.distribute(caching.address, job_name=f"{request.node.name} again") as distributed:
        assert as_set(distributed.epochs(1)) == expected[0]
    assert not calls.take()


@pytest.mark.filterwarnings("ignore:below the cache:millrace.MillraceWarning")
@pytest.mark.parametrize("made", [filters, tfrecords, random])
def test_another_job_reads_all_from_its_first_task_on(caching, data, calls, made, request):
    """And if something random is below, all of its epochs are as the first one."""
    name = request.node.name
    with made(HOW["always"], calls, data).with_options(seed=SEED).distribute(caching.address, job_name=name) as first:
        before = [as_set(first) for _ in range(2)]
    calls.take()
    dataset = made(HOW["auto"], calls, data).with_options(seed=SEED)
    with dataset.distribute(caching.address, job_name=f"{name} again") as second:
        assert [as_set(second) for _ in range(2)] == before
        (job,) = (job for job in second.status()["jobs"] if job["name"] == f"{name} again")
    assert job["mode"] == "get"
    assert not calls.take()


def test_a_job_that_comes_while_another_writes_makes_nothing_that_has_a_block(tmp_path, calls, gate, keeper):
    def made(number):
        if number == COUNT - 1:
            gate.pass_through()
        return calls.note(number)

    dataset = mr.Dataset.range(COUNT).map(made, key=str(tmp_path)).cache()
    with Service(1, cache_dir=tmp_path / "cache") as service:
        with dataset.distribute(service.address, deterministic=True, tasks=8) as first:
            epoch = first.epochs(1)
            head = list(itertools.islice(epoch, COUNT - COUNT // 8))
            keeper.wait()
            service.until(lambda status: sum(point["items"] for point in status["cache"]["points"]) == len(head))
            assert calls.take() >= Counter(head)
            service.add(1)
            with dataset.distribute(service.address, deterministic=True, tasks=8) as second:
                other = second.epochs(1)
                assert list(itertools.islice(other, len(head))) == head
                assert not {*calls.take()} & {*head}
                keeper.open()
                assert sorted([*head, *other]) == list(range(COUNT))
            assert sorted([*head, *epoch]) == list(range(COUNT))
        assert not {*calls.take()} & {*head}
        service.until(lambda status: status["cache"]["points"][0]["items"] >= COUNT)


@pytest.mark.parametrize("tasks", [1, 3, 16])
def test_one_worker_makes_each_element_in_the_first_pass_of_a_repeat_and_reads_it_in_all_others(tmp_path, calls, tasks):
    dataset = mr.Dataset.range(COUNT).map(calls.note).cache().map(filled).repeat(4)
    with (
        Service(1, cache_dir=tmp_path / "cache") as service,
        dataset.distribute(service.address, tasks=tasks) as distributed,
    ):
        found = Counter(int(element[0]) for element in distributed.epochs(1))
    assert found == Counter([*range(COUNT)] * 4)
    assert calls.take() == Counter(range(COUNT))


def test_another_service_finds_what_one_has_kept(tmp_path, calls):
    dataset = mr.Dataset.range(COUNT).map(calls.note).batch(6).cache()
    with Service(1, cache_dir=tmp_path / "cache") as service, dataset.distribute(service.address) as distributed:
        first = as_set(distributed.epochs(1))
    assert calls.take().total() == COUNT
    with Service(2, cache_dir=tmp_path / "cache") as service, dataset.distribute(service.address) as distributed:
        service.until(lambda status: status["cache"]["points"])  # the store is listed meanwhile
        assert as_set(distributed.epochs(1)) == first
        with Service(1, cache_dir=tmp_path / "cache") as beside, dataset.distribute(beside.address) as another:
            beside.until(lambda status: status["cache"]["points"])
            assert as_set(another.epochs(1)) == first
    assert not calls.take()


def test_a_folder_of_one_s_own_is_found_on_every_service_and_in_process(tmp_path, calls):
    dataset = mr.Dataset.range(COUNT).map(calls.note).cache(str(tmp_path / "mine")).batch(8).with_options(seed=SEED)
    with Service(2) as service, dataset.distribute(service.address) as distributed:
        first = [as_set(distributed), as_set(distributed)]
    made = calls.take()
    assert set(made) == set(range(COUNT))
    assert made.total() < 2 * COUNT  # a task of the second epoch may begin before its like of the first has ended
    with Service(1, cache_dir=tmp_path / "cache") as service, dataset.distribute(service.address) as distributed:
        assert [as_set(distributed), as_set(distributed)] == first
        assert service.status()["cache"]["bytes"] == 0
    assert [as_set(dataset), as_set(dataset)] == first
    assert not calls.take()


def size_of(folder):
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a draft that was published or given up meanwhile
            found += path.stat().st_size if path.is_file() else 0
    return found


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_no_more_is_kept_than_there_may_be_and_that_is_read(tmp_path, calls, share):
    many = 4096  # of one element

    def large(number):
        return np.full(many // 8, calls.note(number))

    limit = int(share * COUNT * many)
    dataset = mr.Dataset.range(COUNT).shuffle(COUNT).map(large).cache()
    with Service(2, cache_dir=tmp_path, cache_bytes=limit) as service:
        with dataset.distribute(service.address, tasks=24) as distributed:
            made = []
            for _ in range(4):
                numbers = []
                for element in distributed:
                    numbers.append(int(element[0]))
                    assert size_of(tmp_path) <= limit
                assert sorted(numbers) == list(range(COUNT))
                made.append(calls.take().total())
        cache = service.until(lambda status: status["cache"] if status["cache"]["taken"] <= limit else None)
    assert limit / 4 < cache["bytes"] <= limit
    assert min(made) < COUNT
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*") if path.parent.name != ".drafts") <= limit


@pytest.mark.filterwarnings("ignore:below the cache:millrace.MillraceWarning")
@pytest.mark.filterwarnings("ignore:cache after .* keeps nothing:millrace.MillraceWarning")
@pytest.mark.parametrize("how", ["cache", "auto"])
def test_an_epoch_goes_on_anywhere_with_the_same_random_values(caching, tmp_path, calls, how, request):
    name = request.node.name

    def pipeline(how):
        return random(HOW[how], calls, None).with_options(seed=SEED)

    with pipeline("always").distribute(caching.address, job_name=f"{name} before") as distributed:
        first, _ = as_set(distributed), as_set(distributed)
    with pipeline(how).distribute(caching.address, job_name=name) as distributed:
        assert as_set(distributed) == first
        epoch = iter(distributed)
        head = list(itertools.islice(epoch, 9))
        state = json.loads(json.dumps(epoch.state_dict()))
        rest = list(epoch)
    assert state["epoch"] == 1
    second = as_set([*head, *rest])
    values = Counter(value for _, values in [*head, *rest] for value in values.tolist())
    assert values == Counter(value for _, values in pipeline(how) for value in values.tolist())
    for service in (caching.address, None):
        with pipeline(how).distribute(service, job_name=name, workers=1 if service is None else "auto") as again:
            again.load_state_dict(state)
            assert as_set([*head, *again]) == second
    here = pipeline(how)
    here.load_state_dict(state)
    assert as_set([*head, *here]) == second
