"""What ``cache()`` keeps in process."""

import contextlib
import gc
import itertools
import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pytest

from millrace import Dataset, MillraceWarning
from millrace.blocks.stores.memory_store import MemoryStore
from millrace.engine.cache import local_cache
from millrace.engine.cache.find_cache_points import find_points
from millrace.planning.split_table import Split, splits_table
from millrace.sources import storage


def test_blocks_of_a_folder_are_checked_once_and_not_each_epoch(tmp_path, monkeypatch):
    dataset = Dataset.range(1000).cache(str(tmp_path))
    assert list(dataset) == list(range(1000))
    checked = []

    def counted(data):
        checked.append(data)
        return crc32(data)

    assert list(dataset) == list(range(1000))
    monkeypatch.setattr("millrace.blocks.block_reader.crc32", counted)
    assert list(dataset) == list(range(1000))
    assert not checked


LIKE_THE_FIRST = pytest.mark.filterwarnings("ignore:below the cache after:millrace.errors.MillraceWarning")
SEEN: list[int] = []


def seen(number: int) -> int:
    SEEN.append(number)
    return number


def noisy(number: int, rng: np.random.Generator) -> tuple[int, float]:
    return number, float(rng.random())


def even(number: int) -> bool:
    return number % 2 == 0


def several(number: int) -> list[int]:
    return [number] * (number % 3)


@pytest.fixture
def made() -> Iterator[list[int]]:
    SEEN.clear()
    yield SEEN
    SEEN.clear()


WHERE = ["memory", "folder"]


@pytest.fixture(params=WHERE)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "memory" else str(tmp_path / "cache")


def test_nothing_is_made_in_later_epochs(made, path):
    dataset = Dataset.range(100).map(seen, key="seen").filter(even).cache(path).batch(7).with_options(seed=3)
    first = repr(list(dataset))
    assert sorted(made) == list(range(100))
    assert [repr(list(dataset)) for _ in range(2)] == [first, first]
    assert len(made) == 100


def first_of(dataset: Dataset, count: int) -> list[Any]:
    with contextlib.closing(iter(dataset)) as iterator:
        return list(itertools.islice(iterator, count))


PASSES: dict[str, tuple[Any, int]] = {
    "repeat for ever": (lambda kept: kept.repeat(), 1000),
    "repeat": (lambda kept: kept.repeat(4), 400),
    "shuffle, repeat": (lambda kept: kept.shuffle(100).map(noisy).repeat(), 1000),
    "map, repeat, batch": (lambda kept: kept.map(noisy).repeat(4).batch(7), 58),
    "map, batch, repeat": (lambda kept: kept.map(even).batch(7).repeat(4), 60),
    "repeat for ever, shuffle": (lambda kept: kept.repeat().shuffle(20), 1000),
    "concatenate": (lambda kept: kept.concatenate(kept.map(even)), 200),
}


@pytest.mark.parametrize("passes", PASSES)
def test_the_first_pass_makes_and_all_later_ones_read_in_one_task_as_well(made, path, passes):
    above, count = PASSES[passes]
    source = Dataset.range(100).map(seen, key=f"seen {passes}")
    found = first_of(above(source.cache(path)).with_options(seed=3), count)
    assert sorted(made) == list(range(100))
    assert repr(found) == repr(first_of(above(source.autocache()).with_options(seed=3), count))


def test_passes_that_a_shuffle_mixes_find_what_the_others_have_made(made, path):
    kept = Dataset.range(30).map(seen, key="seen").cache(path)
    assert sorted(kept.repeat(4).shuffle(120)) == sorted([*range(30)] * 4)
    assert len(made) < 110  # of 120: how many pieces are under way at a time is up to the threads


def test_files_are_read_once_for_all_passes(made, path, tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(str(number))

    def content(file: dict[str, Any]) -> int:
        return seen(int(file["bytes"]))

    files = Dataset.from_files(str(tmp_path / "*.txt")).map(content, key="content").filter(even).cache(path)
    assert Counter(first_of(files.shuffle(20).repeat(), 100)) == Counter(dict.fromkeys(range(0, 20, 2), 10))
    assert sorted(made) == list(range(20))


def test_a_pass_that_skipped_an_element_is_made_again(made, path):
    def fails(number: int) -> int:
        if seen(number) == 7:
            raise ValueError(number)
        return number

    dataset = Dataset.range(10).map(fails, key="fails").cache(path).repeat(3).with_options(on_error="skip")
    assert list(dataset) == [number for number in range(10) if number != 7] * 3
    assert len(made) == 30


def test_of_a_task_that_skipped_an_element_others_are_kept_all_the_same(made, path):
    def fails(number: int) -> int:
        if seen(number) == 7:
            raise ValueError(number)
        return number

    dataset = Dataset.range(20_000).map(fails, key="fails").cache(path).with_options(on_error="skip")
    assert len(list(dataset)) == 19_999
    made.clear()
    assert len(list(dataset)) == 19_999
    assert 0 < len(made) < 5_000


class Point(NamedTuple):
    x: int
    y: int


def test_a_batch_of_kept_and_new_namedtuples_is_one(path):
    dataset = Dataset.range(100).map(lambda number: Point(number, -number)).cache(path).repeat(2).batch(7)
    batches = list(dataset)
    assert [len(batch.x) for batch in batches] == [7] * 28 + [4]
    assert [x for batch in batches for x in batch.x] == [*range(100)] * 2


def test_who_caches_what_is_random_is_told_once_that_epochs_are_alike():
    dataset = Dataset.range(10).map(noisy).cache()
    with pytest.warns(
        MillraceWarning, match=r"^below the cache after map\(noisy\) every epoch is like the first, with"
    ):
        first = list(dataset)
    assert list(dataset) == first
    assert len(list(dataset.take(5))) == 5
    assert len(list(Dataset.range(10).shuffle(10).cache())) == 10  # another order in each epoch, of the same elements


@LIKE_THE_FIRST
def test_what_is_random_below_is_as_in_the_first_epoch_and_above_it_is_not(path):
    dataset = Dataset.range(50).shuffle(50).map(noisy).cache(path).map(noisy).with_options(seed=3)
    below, above = zip(*[zip(*dataset, strict=True) for _ in range(3)], strict=True)
    assert len(set(below)) == 1
    assert len(set(above)) == 3


@LIKE_THE_FIRST
@pytest.mark.parametrize("kept", [True, False])
def test_shuffles_and_repeats_below_are_as_in_the_first_epoch_whether_or_not_all_is_kept(monkeypatch, kept):
    if not kept:
        monkeypatch.setattr(local_cache, "_memory_store", lambda parts: MemoryStore(10))
    dataset = Dataset.range(20).shuffle(20).map(noisy).repeat(2).cache().with_options(seed=3)
    epochs = [list(dataset) for _ in range(3)]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len(epochs[0]) == 40


@LIKE_THE_FIRST
@pytest.mark.parametrize("steps", [0, 1, 13, 59, 60])
def test_an_epoch_goes_on_from_its_state(made, path, steps):
    def pipeline() -> Dataset:
        kept = Dataset.range(90).map(seen, key="seen").flat_map(several).shuffle(10).map(noisy)
        return kept.cache(path).map(noisy).with_options(seed=3)

    dataset = pipeline()
    assert len(list(dataset)) == 90
    iterator = iter(dataset)
    head = [next(iterator) for _ in range(steps)]
    state = iterator.state_dict()
    rest = list(iterator)
    for again in (dataset, pipeline()):
        again.load_state_dict(state)
        assert list(again) == rest
    assert len(head) + len(rest) == 90


def test_a_task_that_was_broken_off_keeps_nothing_that_is_not_whole(made, path):
    dataset = Dataset.range(100).map(seen, key="seen").flat_map(several).cache(path).with_options(seed=3)
    expected = list(Dataset.range(100).flat_map(several))
    for steps in (1, 20, 50):
        iterator = iter(dataset)
        assert [next(iterator) for _ in range(steps)] == expected[:steps]
        iterator.close()
    assert list(dataset) == expected


def test_memory_is_given_back_with_the_dataset():
    dataset = Dataset.range(1000).map(seen, key="seen").cache()
    list(dataset)
    store = local_cache._memory[0]
    before = len(store.blocks())
    dataset = Dataset.range(1)
    gc.collect()
    assert len(store.blocks()) < before
    assert list(dataset) == [0]


def test_two_datasets_of_one_prefix_share_what_is_kept(made):
    prefix = Dataset.range(100).map(seen, key="seen").cache()
    assert len(list(prefix.batch(10))) == 10
    assert len(list(prefix.map(even))) == 100
    assert len(made) == 100


class Held:
    """An object that nobody can write."""

    def __init__(self, number: int) -> None:
        self.lock = threading.Lock()


class Unsure:
    """Nobody can tell what it does from what it is."""

    def __init__(self, made: list[int]) -> None:
        self.made = made
        self.lock = threading.Lock()

    def __call__(self, number: int) -> int:
        with self.lock:
            self.made.append(number)
        return number


def test_a_function_that_is_unsure_is_kept_in_memory_for_the_same_dataset(made):
    dataset = Dataset.range(100).map(Unsure(made)).cache()
    assert list(dataset) == list(dataset) == list(range(100))
    assert len(made) == 100
    assert list(Dataset.range(100).map(Unsure(made)).cache()) == list(range(100))
    assert len(made) == 200


def test_in_a_folder_an_unsure_function_is_warned_about(made, tmp_path):
    dataset = Dataset.range(10).map(Unsure(made)).cache(str(tmp_path))
    with pytest.warns(MillraceWarning, match=r"cache after map\(Unsure\) keeps nothing: .*Unsure"):
        assert list(dataset) == list(range(10))
    assert not list(tmp_path.iterdir())


class Counting:
    """Another object after each call, by what it holds."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, number: int) -> int:
        self.calls += 1
        return number


def test_what_changes_as_it_is_called_is_kept_as_it_was_first():
    function = Counting()
    dataset = Dataset.range(10).map(function, num_parallel_calls=1).cache()
    for _ in range(3):
        assert list(dataset) == list(range(10))
    assert function.calls == 10


class Bound:
    """A leaf that cannot be copied, as a tensor with a gradient is."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.asarray(self.number)

    def __deepcopy__(self, _memo: Any) -> Any:
        raise RuntimeError("only leaves of the graph can be copied")


def test_elements_that_cannot_be_copied_are_warned_about():
    with pytest.warns(
        MillraceWarning, match=r"cache after map\(Bound\) keeps nothing more in this epoch: .*RuntimeError"
    ):
        assert [each.number for each in Dataset.range(10).map(Bound).cache()] == list(range(10))


@LIKE_THE_FIRST
def test_files_whose_names_are_no_text_are_kept(tmp_path):
    names = [os.fsdecode(os.fsencode(tmp_path / "a") + byte) for byte in (b"\xff", b"\xfe")]
    for name in names:
        Path(name).write_bytes(b"x")
    batches = Dataset.from_files(names).filter(bool).batch(8).cache()
    assert [len(batch) for batch in batches] == [len(batch) for batch in batches] == [2]


def test_files_that_have_no_version_are_kept_for_this_process_alone():
    dataset = Dataset.from_tfrecords("http://127.0.0.1:9/a.tfrecord").cache().cache("kept")
    tables = {0: splits_table([Split("http://127.0.0.1:9/a.tfrecord", 0, -1, bytes=10, version="")])}
    here, kept = find_points(dataset.__pipeline__().graph, tables, seed=0)
    assert "the server of http://127.0.0.1:9/a.tfrecord gives no version of it" in here.why
    assert (here.fingerprint, kept.fingerprint, kept.why) == ("", "", here.why)


def test_elements_that_have_no_form_as_bytes_are_warned_about(made):
    dataset = Dataset.range(10).map(seen, key="seen").map(Held).cache()
    for _ in range(2):
        with pytest.warns(MillraceWarning, match=r"cache after map\(Held\) keeps nothing more in this epoch: .*Held"):
            assert len(list(dataset)) == 10
    assert len(made) == 20


def test_a_folder_that_cannot_be_made_is_warned_about(made, tmp_path):
    (tmp_path / "file").write_text("")
    dataset = Dataset.range(10).map(seen, key="seen").cache(str(tmp_path / "file" / "cache"))
    with pytest.warns(MillraceWarning, match=r"cache after map\(seen\) keeps nothing: .*Not a directory"):
        assert list(dataset) == list(range(10))


def test_autocache_keeps_nothing_in_process(made):
    dataset = Dataset.range(10).map(seen).autocache()
    assert list(dataset) == list(dataset) == list(range(10))
    assert len(made) == 20


def test_shuffled_elements_of_a_bucket_are_read_by_few_requests(monkeypatch):
    asked = []

    def counted(location, ranges):
        asked.append(sum(stop - start for start, stop in ranges))
        return read_ranges(location, ranges)

    rows = Dataset.range(4000).map(lambda number: np.full(300, number)).cache(f"memory://{uuid.uuid4().hex}")
    dataset = rows.shuffle(1000, seed=1)
    assert sorted(int(row[0]) for row in dataset) == list(range(4000))
    read_ranges = storage.read_ranges
    monkeypatch.setattr(storage, "read_ranges", counted)
    assert sorted(int(row[0]) for row in dataset) == list(range(4000))
    assert len(asked) <= 300
    assert sum(asked) <= 1.5 * 4000 * 2400
