"""Life cycle of saved datasets: kept, made again, gone on with, taken over, removed; and files that are sequential."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import itertools
import json
import os
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.blocks.stores import open_store
from millrace.dataset import Dataset
from millrace.errors import ElementError, PipelineError, SourceCorruptError, SourceError, StateError, UnsureError
from millrace.policies import saved_data
from millrace.sources import saved_blocks, saved_place, saving, storage
from millrace.sources.store_requests import StoreRequests

PLACES = ["folder", "memory://saving"]
_numbers = itertools.count()


class Computed:
    """Function that knows what it was called with, and fails where it is told to. Its key is all that is seen of it."""

    def __init__(self, nbytes: int = 1000, fails_at: int = -1, error: type[BaseException] = ValueError) -> None:
        self.calls: list[int] = []
        self.nbytes, self.fails_at, self.error = nbytes, fails_at, error

    def __call__(self, number: int) -> Any:
        if number == self.fails_at:
            raise self.error(number)
        self.calls.append(number)
        return np.full(self.nbytes, number % 251, np.uint8)


@pytest.fixture(params=PLACES)
def path(request, tmp_path) -> str:
    return str(tmp_path / "data") if request.param == "folder" else f"{request.param}/{next(_numbers)}"


def names(path: str) -> list[str]:
    """All that is at a place."""
    return sorted(name for name, _ in saved_place.SavedPlace(path)._names())


def values(path: str) -> list[int]:
    return [int(each[0]) for each in Dataset.load(path)]


def range_of(count: int, function: Computed, key: str = "v1") -> Dataset:
    return Dataset.range(count).map(function, key=key)


# -- kept, made again --------------------------------------------------------------------------------------------------


def test_what_is_there_of_the_same_is_left_as_it_is(path):
    first, second = Computed(), Computed()
    made = range_of(50, first).save(path, if_exists="refresh")
    before = names(path)
    kept = range_of(50, second).save(path, if_exists="refresh")
    assert (made.made, made.reason) == (True, "nothing was there")
    assert not kept.made
    assert "by the same pipeline from the same data" in kept.reason
    assert (sorted(first.calls), second.calls) == (list(range(50)), [])
    assert names(path) == before
    assert kept.info == made.info == Dataset.saved_info(path)
    assert (kept.info.elements, kept.info.files) == (50, 1)
    assert kept.info.made is not None
    assert "Dataset.range(50).map(" in kept.info.made.of.pipeline


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (lambda ds: ds.map(lambda n: n + 1), lambda ds: ds.map(lambda n: n + 2), "a function of the pipeline, or what"),
        (lambda ds: ds.batch(2), lambda ds: ds.batch(3), "pipeline was"),
        (lambda ds: ds.take(5), lambda ds: ds.take(6), "pipeline was"),
        (lambda ds: ds.shuffle(5, seed=1), lambda ds: ds.shuffle(5, seed=2), "pipeline was"),
        (lambda ds: ds.with_options(seed=1), lambda ds: ds.with_options(seed=2), "pipeline"),
        (lambda ds: ds.with_options(on_error="skip"), lambda ds: ds, "pipeline"),
    ],
)
def test_another_pipeline_is_saved_in_the_place_of_the_former(tmp_path, then, now, said):
    ds = Dataset.range(10)
    then(ds).save(tmp_path)
    assert not then(ds).save(tmp_path, if_exists="refresh").made
    result = now(ds).save(tmp_path, if_exists="refresh")
    assert result.made
    assert said in result.reason
    assert repr(list(Dataset.load(tmp_path))) == repr(list(now(ds)))


@pytest.mark.parametrize(
    "same",
    [
        lambda ds: ds.prefetch(3),
        lambda ds: ds.map(lambda n: n, num_parallel_calls=2),
        lambda ds: ds.shuffle(10),  # a seed that nobody chose
    ],
)
def test_what_changes_no_output_makes_nothing_anew(tmp_path, same):
    def of(ds: Dataset) -> Dataset:
        return ds.map(lambda n: n) if same(ds).element_spec is None else same(ds)

    of(Dataset.range(10)).save(tmp_path)
    dataset = of(Dataset.range(10))
    list(dataset)  # the next epoch is another one
    assert not dataset.save(tmp_path, if_exists="refresh").made


def test_a_source_that_changed_is_read_again(tmp_path):
    data = tmp_path / "numbers.txt"
    data.write_text("one\ntwo\n")
    dataset = Dataset.from_text(str(data))
    dataset.save(tmp_path / "saved")
    assert not Dataset.from_text(str(data)).save(tmp_path / "saved", if_exists="refresh").made
    data.write_text("one\ntwo\nthree\n")
    result = Dataset.from_text(str(data)).save(tmp_path / "saved", if_exists="refresh")
    assert "the data have changed since: 1 part of files with 8 B then, 1 part of files with 14 B now" in result.reason
    assert list(Dataset.load(tmp_path / "saved")) == ["one", "two", "three"]


def test_what_is_too_old_is_made_again_or_refused_with_its_age(path, monkeypatch):
    clock = [1_800_000_000.0]
    for module in ("saving", "saved_remains"):
        monkeypatch.setattr(f"millrace.sources.{module}.time", SimpleNamespace(time=lambda: clock[0]))
    Dataset.range(3).save(path)
    clock[0] += 3 * 86_400
    assert not Dataset.range(3).save(path, if_exists="refresh", max_age=dt.timedelta(days=4)).made
    assert len(Dataset.load(path, max_age=4 * 86_400)) == 3
    with pytest.raises(SourceError, match=r"was saved 3 d ago, and max_age is 2 d; save\(path, if_exists=.refresh"):
        Dataset.load(path, max_age=dt.timedelta(days=2))
    result = Dataset.range(3).save(path, if_exists="refresh", max_age=dt.timedelta(days=2))
    assert result.made
    assert "it was made 3 d ago, and max_age is 2 d" in result.reason
    assert len(Dataset.load(path, max_age=1)) == 3


def test_who_reads_goes_on_while_others_replace_what_is_read(path, monkeypatch):
    clock = [1_800_000_000.0]
    for module in ("saving", "saved_remains"):
        monkeypatch.setattr(f"millrace.sources.{module}.time", SimpleNamespace(time=lambda: clock[0]))
    monkeypatch.setattr(saved_blocks, "BLOCK_BYTES", 10_000)
    range_of(100, Computed()).save(path)
    reading = iter(Dataset.load(path))
    early = [int(next(reading)[0]) for _ in range(5)]
    assert range_of(90, Computed()).save(path, if_exists="replace").reason == "it was to be replaced"
    assert values(path) == list(range(90))
    assert early + [int(each[0]) for each in reading] == list(range(100))
    late = iter(Dataset.load(path))
    assert len(names(path)) == 3  # files of both, and the manifest
    clock[0] += 86_401
    range_of(90, Computed()).save(path, if_exists="refresh")  # which changes nothing but that
    assert len(names(path)) == 2
    assert [int(each[0]) for each in late] == list(range(90))
    range_of(80, Computed()).save(path, if_exists="replace", keep_replaced=0)
    assert len(names(path)) == 2
    with pytest.raises(SourceError, match="a later save has replaced it, and its keep_replaced= was shorter"):
        gone = Dataset.load(path)
        len(gone)
        range_of(70, Computed()).save(path, if_exists="replace", keep_replaced=0)
        list(gone)


def test_a_part_of_an_epoch_is_never_taken_for_the_whole(path):
    def dataset() -> Dataset:
        return range_of(100, Computed())

    partly = dataset()
    for _ in zip(range(60), partly, strict=False):
        pass
    rest = dataset()
    rest.load_state_dict(partly.state_dict())
    with pytest.raises(UnsureError, match="a state was loaded, so that the next epoch may be the rest of one"):
        rest.save(path, if_exists="refresh")
    assert rest.save(path).info.elements == 40
    result = dataset().save(path, if_exists="refresh")
    assert "nothing says by which pipeline" in result.reason
    assert values(path) == list(range(100))
    assert not rest.save(path, if_exists="refresh").made  # its next epoch is whole


def test_a_state_that_was_loaded_is_kept_though_an_interrupted_save_could_be_gone_on_with(path):
    with pytest.raises(ElementError):
        range_of(100, Computed(fails_at=33)).save(path, file_bytes=10_000)
    partly, rest = range_of(100, Computed()), range_of(100, Computed())
    for _ in zip(range(60), partly, strict=False):
        pass
    rest.load_state_dict(partly.state_dict())
    assert rest.save(path, file_bytes=10_000).reason == "nothing was there"
    assert values(path) == list(range(60, 100))


def test_an_epoch_with_weights_that_were_set_is_another_one(path):
    def dataset() -> Dataset:
        parts = [Dataset.range(500).repeat(), Dataset.range(1000, 1500).repeat()]
        return Dataset.sample_from_datasets(parts, [0.9, 0.1], seed=3).take(300)

    other = dataset()
    with other.__pipeline__().read_epoch() as epoch:
        next(epoch)
        epoch.set_weights([0.1, 0.9])
    with pytest.raises(UnsureError, match="set_weights has set other weights than those in the pipeline"):
        other.save(path, if_exists="refresh")
    other.save(path)
    assert dataset().save(path, if_exists="refresh").made
    assert list(Dataset.load(path)) == list(dataset())


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"", b"{", b"\xff\xfe", b"[]", b'{"format": 2}', b'{"format": "x", "files": []}'])
def test_a_manifest_that_is_none_is_saved_over_by_who_refreshes_and_by_nobody_else(tmp_path, garbage):
    Dataset.range(3).save(tmp_path)
    (tmp_path / "saved.json").write_bytes(garbage)
    with pytest.raises(PipelineError, match="holds a saved dataset"):
        Dataset.range(4).save(tmp_path)
    result = Dataset.range(4).save(tmp_path, if_exists="refresh")
    assert result.made
    assert result.reason.startswith("nobody knows when it was made, and it is damaged: ")
    assert list(Dataset.load(tmp_path)) == [0, 1, 2, 3]


def test_what_a_later_millrace_saved_is_left_to_it(tmp_path):
    (tmp_path / "saved.json").write_text(json.dumps({"format": 3, "blocks": []}))
    with pytest.raises(SourceCorruptError, match="is of format 3, and this millrace reads up to 2"):
        Dataset.range(4).save(tmp_path, if_exists="refresh")


def test_files_that_are_gone_or_cut_are_made_again(tmp_path):
    for harm in (lambda file: file.unlink(), lambda file: file.write_bytes(file.read_bytes()[:-1])):
        Dataset.range(3).save(tmp_path, if_exists="refresh")
        current = json.loads((tmp_path / "saved.json").read_text())["files"][0]["file"]
        harm(tmp_path / current)
        result = Dataset.range(3).save(tmp_path, if_exists="refresh")
        assert "and it is damaged: 000000-" in result.reason
        assert list(Dataset.load(tmp_path)) == [0, 1, 2]


def test_what_nobody_can_judge_is_not_refreshed_but_may_be_replaced(tmp_path):
    lock = threading.Lock()

    def unsure(number: int) -> int:
        with lock:
            return number

    dataset = Dataset.range(3).map(unsure)
    dataset.save(tmp_path)
    with pytest.raises(UnsureError, match=r'if_exists="refresh".* cannot tell .*key="v3".*"replace" saves in any case'):
        dataset.save(tmp_path, if_exists="refresh")
    assert dataset.save(tmp_path, if_exists="replace").made


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"if_exists": "overwrite"}, r"if_exists=\) takes one of 'error', 'refresh', 'replace'"),
        ({"max_age": 3}, r"max_age=\) goes with if_exists"),
        ({"max_age": -3, "if_exists": "refresh"}, r"max_age=\) takes a timedelta or a number of seconds, not -3"),
        ({"keep_replaced": "a day"}, r"keep_replaced=\) takes a timedelta"),
        ({"file_bytes": 0}, "file_bytes"),
        ({"file_bytes": "large"}, "file_bytes"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_done(tmp_path, options, said):
    with pytest.raises(PipelineError, match=said):
        Dataset.range(3).save(tmp_path / "data", **options)
    assert not (tmp_path / "data").exists()


# -- interrupted, and gone on with -------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_save_that_was_interrupted_is_gone_on_with_from_its_last_complete_file(tmp_path_factory, data):
    count = data.draw(st.integers(1, 60))
    stops = data.draw(st.lists(st.integers(0, count - 1), max_size=3))
    nbytes, file_bytes = data.draw(st.integers(1, 3000)), data.draw(st.integers(1, 9000))
    shuffled = data.draw(st.booleans())
    remote = data.draw(st.booleans())
    path = f"memory://resumed/{next(_numbers)}" if remote else str(tmp_path_factory.mktemp("resumed") / "data")

    def dataset(function: Computed) -> Dataset:
        found = range_of(count, function)
        return found.shuffle(count, seed=3) if shuffled else found

    for stop in stops:
        error = data.draw(st.sampled_from([ValueError, KeyboardInterrupt]))
        with contextlib.suppress(ElementError, KeyboardInterrupt):
            dataset(Computed(nbytes, stop, error)).save(path, file_bytes=file_bytes, if_exists="refresh")
    last = Computed(nbytes)
    result = dataset(last).save(path, file_bytes=file_bytes, if_exists="refresh")
    assert values(path) == [int(each[0]) for each in dataset(Computed(nbytes))]
    assert len(names(path)) == result.info.files + 1  # no orphans
    assert ("was gone on with" in result.reason) <= (len(set(last.calls)) < count or bool(stops))


def test_what_is_gone_on_with_is_not_computed_again(path):
    with pytest.raises(ElementError):
        range_of(40, Computed(fails_at=33)).save(path, file_bytes=10_000)
    with pytest.raises(SourceError, match="holds no saved dataset"):
        list(Dataset.load(path))
    later = Computed()
    result = range_of(40, later).save(path, file_bytes=10_000)
    assert "nothing was there; an interrupted save had" in result.reason
    assert min(later.calls) > 20
    assert values(path) == list(range(40))


def test_what_is_written_of_progress_grows_with_the_data_and_a_failure_loses_nothing(path, monkeypatch):
    monkeypatch.setattr(saved_data, "SMALL_PROGRESS_BYTES", 2000)
    monkeypatch.setattr(saved_data, "PROGRESS_SHARE", 0.1)
    noted = list[int]()
    inner = saved_place.SavedPlace.put

    def put(place: saved_place.SavedPlace, name: str, data: bytes) -> None:
        if name == place.progress:
            noted.append(len(data))
        inner(place, name, data)

    monkeypatch.setattr(saved_place.SavedPlace, "put", put)
    with pytest.raises(KeyboardInterrupt):
        saving.save(path, Numbers(200, interrupt_at(198)), file_bytes=2000)
    assert 3 < len(noted) < 60
    assert sum(noted) < 2000 * 20 + 0.2 * 198 * 1100  # of 198 elements, two in a file
    last = Numbers(200)
    saving.save(path, last, file_bytes=2000)
    assert last.begun >= 196
    assert values(path) == [number % 251 for number in range(200)]
    assert len(names(path)) == Dataset.saved_info(path).files + 1


def test_what_another_pipeline_left_is_removed(path):
    with pytest.raises(ElementError):
        range_of(40, Computed(fails_at=33)).save(path, file_bytes=10_000)
    assert len(names(path)) > 2
    result = range_of(40, Computed(), "v2").save(path)
    assert result.reason == "nothing was there"
    assert len(names(path)) == 2


def test_a_progress_file_that_is_garbage_is_removed_with_its_files(path):
    with pytest.raises(ElementError):
        range_of(40, Computed(fails_at=33)).save(path, file_bytes=10_000)
    place = saved_place.SavedPlace(path)
    (progress,) = (name for name in names(path) if name.endswith(".json"))
    place.put(progress, b"{")
    later = Computed()
    assert range_of(40, later).save(path).reason == "nothing was there"
    assert sorted(later.calls) == list(range(40))
    assert len(names(path)) == 2


def test_a_progress_file_that_names_what_no_saver_writes_removes_nothing_of_it(tmp_path):
    other, path = tmp_path / "other.txt", tmp_path / "data"
    other.write_text("somebody's")
    with pytest.raises(ElementError):
        range_of(40, Computed(fails_at=33)).save(path, file_bytes=10_000)
    (progress,) = path.glob("saving-*.json")
    known = json.loads(progress.read_text())
    known["files"].append({"file": "../other.txt", "elements": [1], "bytes": [10]})
    progress.write_text(json.dumps(known))
    range_of(40, Computed()).save(path, file_bytes=10_000)
    assert other.read_text() == "somebody's"
    assert len(names(str(path))) == Dataset.saved_info(path).files + 1


def test_what_was_published_before_its_saver_died_is_not_gone_on_with(path, monkeypatch):
    with monkeypatch.context() as patch:  # it dies before it removes its progress file
        patch.setattr(saved_place.SavedPlace, "remove", lambda place, gone: None)
        patch.setattr(saved_place.SavedPlace, "leave", lambda place, unfinished: os.close(place._lock or os.dup(2)))
        range_of(40, Computed()).save(path, file_bytes=10_000)
    assert any("saving-" in name for name in names(path))
    later = Computed()
    result = range_of(40, later).save(path, file_bytes=10_000, if_exists="replace", keep_replaced=0)
    assert result.reason == "it was to be replaced"
    assert sorted(later.calls) == list(range(40))
    assert values(path) == list(range(40))
    assert len(names(path)) == result.info.files + 1


def test_what_is_too_old_is_not_gone_on_with(path, monkeypatch):
    clock = [1_800_000_000.0]
    for module in ("saving", "saved_remains"):
        monkeypatch.setattr(f"millrace.sources.{module}.time", SimpleNamespace(time=lambda: clock[0]))
    with pytest.raises(ElementError):
        range_of(40, Computed(fails_at=33)).save(path, file_bytes=10_000)
    clock[0] += 3600
    later = Computed()
    range_of(40, later).save(path, if_exists="refresh", max_age=1800)
    assert sorted(later.calls) == list(range(40))


class Numbers:
    """Pipeline of numbers, computed one by one; ``before`` is called with each before it is handed out."""

    def __init__(self, count: int, before: Callable[[int], None] = lambda number: None) -> None:
        self.count, self.before, self.at, self.begun = count, before, 0, 0

    @contextlib.contextmanager
    def read_epoch(self) -> Iterator[Iterator[Any]]:
        self.begun = self.at
        yield self._rest()

    def _rest(self) -> Iterator[Any]:
        while self.at < self.count:
            number, self.at = self.at, self.at + 1
            self.before(number)
            yield np.full(1000, number, np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]

    def forget_state(self) -> None:
        self.at = 0

    def made_of(self) -> saved_data.MadeOf:
        return saved_data.MadeOf("numbers", "aa", "bb")


def test_in_a_bucket_who_comes_later_takes_the_work_over_and_the_other_one_stops():
    path, later = "memory://saving/taken-over", Numbers(40)

    def another(number: int) -> None:
        if number == 33:
            assert "an interrupted save had" in saving.save(path, later, file_bytes=10_000).reason

    with pytest.raises(PipelineError, match="each rank to one of its own"):
        saving.save(path, Numbers(40, another), file_bytes=10_000)
    assert 20 < later.begun < 34
    assert values(path) == list(range(40))
    assert len(names(path)) == Dataset.saved_info(path).files + 1


def test_in_a_bucket_who_was_taken_over_from_notices_at_its_next_file():
    path, taken = "memory://saving/noticed", list[str]()

    def stop(number: int) -> None:
        if number == 38:  # it is at work on its last file
            taken.extend(names(path))
            raise KeyboardInterrupt

    def another(number: int) -> None:
        if number == 20:
            with contextlib.suppress(KeyboardInterrupt):
                saving.save(path, Numbers(40, stop), file_bytes=10_000)

    first = Numbers(40, another)
    with pytest.raises(PipelineError, match=r"has taken over what was being saved to .* each rank to one of its own"):
        saving.save(path, first, file_bytes=10_000)
    assert first.at < 40
    assert set(names(path)) == set(taken)  # what the later one goes on with is untouched
    last = Numbers(40)
    saving.save(path, last, file_bytes=10_000)
    assert last.begun > 20
    assert values(path) == list(range(40))
    assert len(names(path)) == Dataset.saved_info(path).files + 1


def test_in_a_folder_the_second_is_told_at_once_and_the_first_goes_on(tmp_path):
    path = str(tmp_path)

    def another(number: int) -> None:
        if number == 33:
            with pytest.raises(PipelineError, match=r"another process is saving to .* now: wait for it"):
                saving.save(path, Numbers(40), if_exists="refresh")

    saving.save(path, Numbers(40, another), file_bytes=10_000)
    assert values(path) == list(range(40))
    assert len(names(path)) == Dataset.saved_info(path).files + 1


@pytest.mark.parametrize("if_exists", ["error", "refresh", "replace"])
def test_who_finds_at_the_end_that_another_was_faster_is_refused_or_content_with_the_same(path, monkeypatch, if_exists):
    def no_locks(_handle: int, _how: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", no_locks)

    def another(number: int) -> None:
        if number == 5:
            saving.save(path, Numbers(10))

    if if_exists == "refresh":
        result = saving.save(path, Numbers(10, another), if_exists=if_exists)
        assert (result.made, result.reason) == (False, "another process has saved the same meanwhile")
    else:
        with pytest.raises(PipelineError, match="each rank to one of its own"):
            saving.save(path, Numbers(10, another), if_exists=if_exists)
    assert values(path) == list(range(10))
    assert len(names(path)) == 2


def test_of_several_that_begin_at_once_one_wins_and_the_others_are_refused(tmp_path, monkeypatch):
    count, entered = 4, saved_place.SavedPlace.enter
    together = threading.Barrier(count)

    def enter(place: saved_place.SavedPlace, *given: Any) -> Any:
        together.wait(timeout=100)  # all have seen that nothing is there
        found = entered(place, *given)
        together.wait(timeout=100)  # and nobody is gone before all have entered
        return found

    monkeypatch.setattr(saved_place.SavedPlace, "enter", enter)
    for turn in range(60):
        path, refused, made = str(tmp_path / str(turn)), list[Exception](), list[str]()
        threads = [threading.Thread(target=_save_or_be_refused, args=(path, made, refused)) for _ in range(count)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert made == ["nothing was there"]
        assert len(refused) == count - 1
        assert values(path) == [0, 1]
        assert len(names(path)) == 2


def _save_or_be_refused(path: str, made: list[str], refused: list[Exception]) -> None:
    try:
        made.append(saving.save(path, Numbers(2)).reason)
    except PipelineError as error:
        refused.append(error)


def test_what_is_tidied_up_during_a_save_stops_nobody(path, monkeypatch):
    clock = [1_800_000_000.0]
    for module in ("saving", "saved_remains"):
        monkeypatch.setattr(f"millrace.sources.{module}.time", SimpleNamespace(time=lambda: clock[0]))
    saving.save(path, Numbers(10))
    saving.save(path, Numbers(10), if_exists="replace")
    clock[0] += 2 * 86_400

    def another(number: int) -> None:
        if number == 5:
            before = storage.read(f"{path}/saved.json")
            assert not saving.save(path, Numbers(10), if_exists="refresh").made
            assert storage.read(f"{path}/saved.json") != before  # the files of the first one are gone

    assert saving.save(path, Numbers(12, another), if_exists="replace").made
    assert values(path) == list(range(12))
    assert len(names(path)) == 3  # with what was there until now


def test_files_stay_as_long_as_was_promised_when_they_were_replaced(path, monkeypatch):
    clock = [1_800_000_000.0]
    for module in ("saving", "saved_remains"):
        monkeypatch.setattr(f"millrace.sources.{module}.time", SimpleNamespace(time=lambda: clock[0]))
    saving.save(path, Numbers(10))
    reading = iter(Dataset.load(path))
    next(reading)
    saving.save(path, Numbers(11), if_exists="replace", keep_replaced=dt.timedelta(days=7))
    clock[0] += 6 * 86_400
    assert not saving.save(path, Numbers(11), if_exists="refresh", keep_replaced=0).made
    saving.save(path, Numbers(12), if_exists="replace")
    assert len(list(reading)) == 9
    assert len(names(path)) == 4
    clock[0] += 3 * 86_400
    saving.save(path, Numbers(12), if_exists="refresh", keep_replaced=dt.timedelta(days=30))
    assert len(names(path)) == 2


class Refusing(Numbers):
    """Pipeline that cannot go on from a state once it is asked for elements, as with another number of tasks."""

    def _rest(self) -> Iterator[Any]:
        if self.at:
            raise StateError("the state is of an epoch of 8 tasks, here it has 16")
        yield from super()._rest()


def test_what_cannot_be_gone_on_with_is_dropped_and_made_from_the_beginning(path):
    with pytest.raises(KeyboardInterrupt):
        saving.save(path, Numbers(40, interrupt_at(33)), file_bytes=10_000)
    result = saving.save(path, Refusing(40), file_bytes=10_000)
    assert result.reason.endswith("could not be gone on with: the state is of an epoch of 8 tasks, here it has 16")
    assert values(path) == list(range(40))
    assert len(names(path)) == result.info.files + 1


def interrupt_at(stop: int) -> Callable[[int], None]:
    def before(number: int) -> None:
        if number == stop:
            raise KeyboardInterrupt

    return before


@pytest.mark.parametrize("fails_at", [-1, 5])
def test_in_a_bucket_who_begins_and_fails_stops_nobody(fails_at):
    path = f"memory://saving/begun-{fails_at}"

    def another(number: int) -> None:
        if number == 33:
            with pytest.raises(KeyboardInterrupt):
                later = Numbers(40, interrupt_at(33)) if fails_at < 0 else Other(40, interrupt_at(fails_at))
                saving.save(path, later, file_bytes=10_000)

    assert saving.save(path, Numbers(40, another), file_bytes=10_000).made
    assert values(path) == list(range(40))
    assert len(names(path)) == Dataset.saved_info(path).files + 1


class Other(Numbers):
    """Another pipeline."""

    def made_of(self) -> saved_data.MadeOf:
        return saved_data.MadeOf("others", "cc", "bb")


def no_locks(_handle: int, _how: int) -> None:
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def test_without_locks_files_that_anothers_progress_file_lists_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", no_locks)
    path = str(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        saving.save(path, Numbers(40, interrupt_at(20)), file_bytes=10_000)
    for file in tmp_path.iterdir():
        os.utime(file, (time.time() - 90_000,) * 2)

    def another(number: int) -> None:
        if number == 38:  # what was gone on with is older than a day
            before = set(names(path))
            with pytest.raises(KeyboardInterrupt):
                saving.save(path, Other(40, interrupt_at(0)), file_bytes=10_000)
            assert {name for name in before if name.endswith(".block")} <= set(names(path))

    result = saving.save(path, Numbers(40, another), file_bytes=10_000)
    assert "was gone on with" in result.reason
    assert values(path) == list(range(40))


def test_what_dead_savers_left_goes_also_where_the_dataset_stays_as_it_is(tmp_path):
    path = str(tmp_path)
    saving.save(path, Numbers(10))
    with pytest.raises(KeyboardInterrupt):
        saving.save(path, Other(40, interrupt_at(20)), file_bytes=10_000, if_exists="replace")
    token = next(tmp_path.glob("saving-*.lock")).name[len("saving-") : -len(".lock")]
    (tmp_path / f"saved.json.{token}.draft").write_text("")  # it was killed while it published
    assert not saving.save(path, Numbers(10), if_exists="refresh").made
    assert len(names(path)) == 2
    assert values(path) == list(range(10))


def test_in_a_bucket_what_is_left_goes_when_nobody_has_written_for_a_day(monkeypatch):
    path = "memory://saving/left"
    saving.save(path, Numbers(10))
    with pytest.raises(KeyboardInterrupt):
        saving.save(path, Other(40, interrupt_at(20)), file_bytes=10_000, if_exists="replace")
    before = names(path)
    saving.save(path, Numbers(10), if_exists="refresh")
    assert names(path) == before  # it may live
    later = time.time() + saved_place.ABANDONED_S + 60
    monkeypatch.setattr("millrace.sources.saved_place.time", SimpleNamespace(time=lambda: later))
    saving.save(path, Numbers(10), if_exists="refresh")
    assert len(names(path)) == 2


def test_without_hard_links_the_first_one_is_published_too(tmp_path, monkeypatch):
    def refused(*_: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    Dataset.range(3).save(tmp_path)
    assert list(Dataset.load(tmp_path)) == [0, 1, 2]
    assert len(names(str(tmp_path))) == 2


def test_files_without_a_progress_file_in_a_bucket_go_when_nobody_can_be_at_work_on_them(monkeypatch):
    path = "memory://saving/orphans"
    stranger, other = "000000-0123456789abcdef.block", "notes.txt"
    for name in (stranger, other):
        storage.write(f"{path}/{name}", b"x")
    Dataset.range(3).save(path)
    assert stranger in names(path)
    later = time.time() + saved_place.ABANDONED_S + 60
    monkeypatch.setattr("millrace.sources.saved_place.time", SimpleNamespace(time=lambda: later))
    Dataset.range(4).save(path, if_exists="replace")
    assert stranger not in names(path)
    assert other in names(path)  # nobody's business


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SourceError, match=r"cannot be written: No space left on device; free some room there"):
            Dataset.range(3).save(tmp_path)
        assert os.listdir(tmp_path) == []
        with pytest.raises(SourceError, match="No space left"):
            range_of(40, Computed()).save(tmp_path, file_bytes=10_000)
        assert os.listdir(tmp_path) == []
    assert range_of(40, Computed()).save(tmp_path, file_bytes=10_000).made


def test_a_temporary_folder_that_is_full_is_said(monkeypatch):
    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(SourceError, match=r"cannot be written to .* first: No space left .*set TMPDIR to another disk"):
        Dataset.range(3).save("memory://saving/no-room")
    assert names("memory://saving/no-room") == []


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_have_the_size_that_was_asked_for_and_no_more_of_them_is_held(tmp_path):
    element = np.zeros(1 << 18, np.uint8)
    dataset = Dataset.range(320).map(lambda number: element + number % 200).with_options(buffer_bytes=1 << 20)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        dataset.save(tmp_path, file_bytes=30 << 20)
        held = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    info = Dataset.saved_info(tmp_path)
    assert (info.elements, info.files) == (320, 3)
    assert held < 12 << 20  # of 80 MiB, in files of 30 MiB
    sizes = [each.stat().st_size for each in sorted(tmp_path.glob("*.block"))]
    assert all(28 << 20 < size < 32 << 20 for size in sizes[:2])
    assert sum(sizes) < 81 << 20


def test_without_a_choice_the_store_is_measured_where_there_is_enough_to_write(tmp_path, monkeypatch):
    made = Dataset.range(3).save(tmp_path / "small").info.made
    assert made is not None
    assert (made.file_bytes, made.why_file_bytes) == (0, "")
    monkeypatch.setattr(saving, "LEAST_FILE_BYTES", 20_000)
    monkeypatch.setattr(saved_blocks, "BLOCK_BYTES", 5_000)
    monkeypatch.setattr(saved_blocks, "MESSAGE_BYTES", 5_000)
    monkeypatch.setattr(saving, "_CALIBRATION_S", 0.01)
    for path in (str(tmp_path / "large"), "memory://saving/measured"):
        made = range_of(100, Computed()).save(path).info.made
        assert made is not None
        assert saved_data.LEAST_FILE_BYTES <= made.file_bytes <= saved_data.MOST_FILE_BYTES
        assert "the first bytes of a file take" in made.why_file_bytes
        assert len(names(path)) == 2
        assert values(path) == list(range(100))


def test_a_store_that_cannot_be_measured_gets_the_largest_files(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "LEAST_FILE_BYTES", 20_000)
    monkeypatch.setattr(saved_blocks, "BLOCK_BYTES", 5_000)
    monkeypatch.setattr(saved_blocks, "MESSAGE_BYTES", 5_000)

    def broken(location: str) -> Any:
        raise SourceError(f"{location} does not answer")

    monkeypatch.setattr(open_store, "open_store", broken)
    made = range_of(100, Computed()).save(tmp_path).info.made
    assert made is not None
    assert made.file_bytes == saved_data.MOST_FILE_BYTES
    assert "the store could not be measured: " in made.why_file_bytes


def blocks(path: Any) -> int:
    return len(Dataset.load(path).__pipeline__().tables()[0].splits)


@pytest.mark.parametrize("mixed", [False, True])
def test_reads_are_as_large_as_blocks_and_go_forward_also_for_random_samples(tmp_path, monkeypatch, mixed):
    monkeypatch.setattr(saved_blocks, "BLOCK_BYTES", 50_000)
    range_of(1000, Computed()).save(tmp_path, file_bytes=500_000)
    reads: list[tuple[str, int, int]] = []
    inner = storage.read_range

    def counting(location: str, start: int, stop: int) -> bytes:
        reads.append((location, start, stop))
        return inner(location, start, stop)

    dataset = Dataset.load(tmp_path)
    if mixed:
        dataset = dataset.reservoir(1000, seed=1).with_options(buffer_bytes=64 << 20)
    tasks = dataset.__pipeline__().plan().length
    assert tasks is not None
    monkeypatch.setattr(storage, "read_range", counting)
    got = [int(each[0]) for each in dataset]
    assert Counter(got) == Counter(number % 251 for number in range(1000))
    assert (got == [number % 251 for number in range(1000)]) != mixed
    passes = tasks if mixed else 1  # a refill is a pass, and a task has one here
    assert len(set(reads)) == blocks(tmp_path)
    assert len(reads) <= passes * blocks(tmp_path) + (0 if mixed else tasks - 1)  # a task's edge lies in a block
    assert seeks(reads) <= passes * Dataset.saved_info(tmp_path).files + (0 if mixed else tasks - 1)


def seeks(reads: list[tuple[str, int, int]]) -> int:
    """Number of reads that don't begin where the one before them ended."""
    ends = [("", 0), *((location, stop) for location, _, stop in reads)]
    return sum((location, start) != end for (location, start, _), end in zip(reads, ends, strict=False))


def test_a_store_is_asked_once_for_each_block_and_once_about_each_file(monkeypatch):
    path = "memory://saving/requests"
    monkeypatch.setattr(saved_blocks, "BLOCK_BYTES", 50_000)
    range_of(1000, Computed()).save(path, file_bytes=500_000)
    info = Dataset.saved_info(path)
    asked: Counter[str] = Counter()
    read, stat = StoreRequests.read, storage.stat

    def counting(self: StoreRequests, entry: Any, watch: Any) -> bytes:
        asked["blocks"] += 1
        return read(self, entry, watch)

    def looking(location: str) -> Any:
        asked["files"] += 1
        return stat(location)

    monkeypatch.setattr("millrace.sources.reads.is_far", lambda location: "://" in location)
    monkeypatch.setattr(StoreRequests, "read", counting)
    monkeypatch.setattr(storage, "stat", looking)
    dataset = Dataset.load(path)
    tasks = dataset.__pipeline__().plan().length
    assert tasks is not None
    assert asked == {"files": info.files}
    assert len(list(dataset)) == 1000
    assert asked["files"] == info.files
    assert blocks(path) <= asked["blocks"] <= blocks(path) + tasks - 1
