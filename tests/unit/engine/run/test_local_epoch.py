"""Datasets iterated in process: ends of all kinds, errors, what functions return, memory."""

from __future__ import annotations

import gc
import itertools
import operator
import sys
import threading
from collections import Counter
from typing import Any, cast

import numpy as np
import pytest

from millrace.dataset import Dataset
from millrace.engine.threads import operator_threads
from millrace.errors import ElementError, ElementTooLargeError, MillraceError, PipelineError, SourceError


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads for everything, however cheap."""
    monkeypatch.setattr(operator_threads, "_WORTH_A_THREAD_S", 0.0)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("millrace")]


def busy() -> Dataset:
    """A pipeline with threads of every kind."""
    ones = Dataset.range(10_000).map(lambda n: n).prefetch(3)
    return Dataset.zip(ones, Dataset.range(20_000).map(lambda n: -n).prefetch()).prefetch(5).batch(4).prefetch(2)


def test_an_epoch_and_another(on_threads):
    dataset = busy().with_options(seed=1)
    first = [batch[0].tolist() for batch in dataset]
    assert list(itertools.chain.from_iterable(first)) == list(range(10_000))
    assert [batch[0].tolist() for batch in dataset] == first
    assert threads() == []


def test_break_leaves_nothing(on_threads):
    for number, _ in enumerate(busy()):
        if number == 3:
            break
    assert threads() == []


def test_close_is_idempotent_and_ends_iteration(on_threads):
    elements = iter(busy())
    next(elements)
    assert threads()
    elements.close()
    assert threads() == []
    elements.close()
    assert list(elements) == []


def test_a_with_block_closes_also_on_an_error(on_threads):
    with pytest.raises(RuntimeError, match="mine"), iter(busy()) as elements:
        next(elements)
        raise RuntimeError("mine")
    assert threads() == []


def test_an_iterator_in_a_cycle_is_closed_by_the_collector_of_any_thread(on_threads):
    elements = iter(busy())
    next(elements)
    cycle: list[Any] = [elements]
    cycle.append(cycle)
    del elements, cycle
    collector = threading.Thread(target=gc.collect)
    collector.start()
    collector.join(timeout=20)
    assert threads() == []


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("side", [0, 1])
def test_an_error_on_one_side_ends_the_threads_of_the_other(on_threads, kind, parallel, side):
    def fails(number: int) -> int:
        if abs(number) == 100:
            raise kind("stop")
        return number

    sides = [Dataset.range(1000).map(lambda n: n).prefetch(), Dataset.range(1000).map(lambda n: n).prefetch()]
    sides[side] = Dataset.range(1000).map(fails, num_parallel_calls=parallel)
    elements = iter(Dataset.zip(*sides))
    # It is an interrupt on the thread that pulls, which with parallel=2 may make the call; elsewhere it is an error.
    expected = {1: (KeyboardInterrupt,), 2: (KeyboardInterrupt, ElementError)}[parallel]
    with pytest.raises(expected if kind is KeyboardInterrupt else ElementError) as caught:
        list(elements)
    # The error holds on to what it went through, and still nothing runs.
    assert caught.value.__traceback__ is not None
    assert threads() == []


def test_an_error_ends_the_threads_of_nested_datasets_too(on_threads):
    def nested(number: int) -> Dataset:
        return Dataset.range(1000).prefetch(2)

    outer = Dataset.range(5).interleave(nested, cycle_length=3)
    for inputs in (
        [outer, Dataset.range(9).map(lambda n: 1 // (n - 8))],
        [outer.prefetch(1), Dataset.from_map_style(Faulty())],
    ):
        elements = iter(Dataset.zip(*inputs))
        with pytest.raises(ElementError) as caught:
            list(elements)
        assert caught.value.__traceback__ is not None
        assert threads() == []


def test_who_asks_on_after_an_error_gets_it_again_and_no_end(on_threads):
    elements = iter(Dataset.range(100).map(lambda n: 1 // (n - 50)).prefetch(1).batch(7))
    errors = []
    for _ in range(3):
        with pytest.raises(ElementError, match="item 50") as caught:
            list(elements)
        errors.append(caught.value)
    assert len({(error.operator, error.where, error.user_traceback) for error in errors}) == 1
    assert not elements.state_dict()["ended"]


def test_who_asks_on_after_ctrl_c_is_told_and_gets_no_end():
    def interrupt(number: int) -> int:
        if number == 2:
            raise KeyboardInterrupt
        return number

    elements = iter(Dataset.range(10).map(interrupt))
    with pytest.raises(KeyboardInterrupt):
        list(elements)
    with pytest.raises(MillraceError, match="interrupted"):
        next(elements)


def test_several_threads_may_read_from_one_iterator(on_threads):
    elements = iter(Dataset.range(20_000).filter(lambda n: n >= 0))
    found: list[int] = []
    errors: list[BaseException] = []

    def read() -> None:
        try:
            found.extend(elements)
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout=60)
    finally:
        sys.setswitchinterval(before)
    assert errors == []
    assert sorted(found) == list(range(20_000))


def test_another_thread_may_close_an_iterator_that_is_read(on_threads):
    elements = iter(busy())
    begun = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            for _ in elements:
                begun.set()
        except BaseException as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(timeout=20)
    elements.close()
    reader.join(timeout=20)
    assert not reader.is_alive()
    assert errors == []
    assert threads() == []


def test_two_threads_may_read_two_epochs_of_one_dataset(on_threads):
    dataset = Dataset.range(2000).shuffle(10, seed=1).map(lambda n: n).batch(8)
    found: list[list[int]] = []

    def read(number: int) -> None:
        found.append([n for batch in dataset.__pipeline__().read_epoch(number) for n in batch.tolist()])

    readers = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(timeout=60)
    assert {tuple(sorted(each)) for each in found} == {tuple(range(2000))}
    assert len({tuple(each) for each in found}) == 4


def test_tasks_of_one_program_run_on_several_threads(runs, on_threads):
    inputs = [Dataset.range(500).shuffle(9), Dataset.range(1000, 1500).prefetch(3)]
    dataset = Dataset.sample_from_datasets(inputs, seed=1).map(lambda n: n).filter(lambda n: n % 5 > 0).shuffle(20)
    made = runs.program(dataset, tasks=24)
    found: dict[int, list[int]] = {}
    together = threading.Barrier(4)

    def lane(first: int) -> None:
        together.wait(timeout=20)
        for index in range(first, made.plan.length, 4):
            with made.run(made.plan.task(index), 0) as run:
                found[index] = [element for chunk in run for element in chunk.elements]

    lanes = [threading.Thread(target=lane, args=(first,)) for first in range(4)]
    for each in lanes:
        each.start()
    for each in lanes:
        each.join(timeout=60)
    made.close()
    assert [n for index in sorted(found) for n in found[index]] == runs.epoch(dataset, tasks=24)
    counted = {each.label: each.elements for each in made.measures()}
    assert counted["range()"] == 500
    assert next(elements for label, elements in counted.items() if label.startswith("filter")) == 800


# -- endless -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.range(10).repeat(),
        Dataset.range(10).shuffle(5).repeat(),
        Dataset.range(10).filter(lambda n: n % 2 == 0).repeat(),
        Dataset.range(10).filter(lambda n: n % 2 == 0).batch(3).unbatch().repeat(),
        Dataset.range(10).repeat().filter(lambda n: n % 2 == 0).batch(3).unbatch(),
        Dataset.range(10).repeat().shuffle(4).map(lambda n: n).prefetch(),
        Dataset.sample_from_datasets([Dataset.range(10).repeat(), Dataset.range(10).repeat()], seed=1),
        Dataset.sample_from_datasets([Dataset.range(10), Dataset.range(10).repeat()], seed=1).batch(3).unbatch(),
        Dataset.range(3).concatenate(Dataset.range(10).repeat()).concatenate(Dataset.range(5).repeat()),
        Dataset.range(10).filter(lambda n: n >= 0).repeat().take(5).repeat(),
        Dataset.zip(Dataset.range(10).repeat(), Dataset.range(10).repeat(2).repeat()).map(operator.itemgetter(1)),
    ],
    ids=str,
)
def test_data_without_end_can_be_read_for_long_and_stopped(dataset):
    with iter(dataset) as elements:
        found = Counter(int(n) for n in itertools.islice(elements, 10_000))
    assert found.total() == 10_000
    assert set(found) <= set(range(10))
    assert threads() == []


def test_an_exhausted_part_of_an_endless_mixture_is_not_looked_for_for_ever(runs, on_threads):
    mixed = Dataset.sample_from_datasets([Dataset.range(5).map(lambda n: n), Dataset.range(100, 200).repeat()], seed=1)
    sequenced = mixed.filter(lambda n: n >= 0).take(3000)
    assert runs.program(sequenced).plan.task(0).is_sequence
    found = runs.epoch(sequenced)
    assert len(found) == 3000
    assert [n for n in found if n < 5] == list(range(5))


def test_nested_datasets_without_end_and_with_leftovers():
    endless = Dataset.range(3).interleave(lambda n: Dataset.from_list([n]).repeat(), cycle_length=3)
    with iter(endless) as elements:
        assert Counter(itertools.islice(elements, 300)) == {0: 100, 1: 100, 2: 100}
    nested = Dataset.range(4).flat_map(lambda n: Dataset.range(2000).filter(lambda k: k % 2 == 0).batch(300))
    assert [len(batch) for batch in nested] == [300, 300, 300, 100] * 4


# -- errors ------------------------------------------------------------------------------------------------------------


def test_names_of_elements_reach_through_what_combines_and_reorders(runs, tmp_path):
    for name in "abcdef":
        (tmp_path / name).write_text(name)

    def fails_on(what: bytes) -> Any:
        def check(element: Any) -> Any:
            if element["bytes"] == what:
                raise ValueError("bad")
            return element

        return check

    files = Dataset.from_files(str(tmp_path / "*"))
    others = Dataset.from_files([str(tmp_path / "e"), str(tmp_path / "f")])
    for dataset in (
        files,
        files.shuffle(3, seed=1),
        files.repeat(3).shuffle(4, seed=1),
        files.take(2).concatenate(files.skip(2)),
        files.shard(2, 0).concatenate(files.shard(2, 1).shuffle(2, seed=3)).shuffle(2, seed=4),
        Dataset.sample_from_datasets([files.take(4), others], seed=1),
        files.prefetch().cache().shuffle(2).repeat(2).repeat(2),
    ):
        with pytest.raises(ElementError) as caught:
            runs.epoch(dataset.map(fails_on(b"e")), tasks=3)
        assert caught.value.where == str(tmp_path / "e"), dataset
    with pytest.raises(ElementError) as caught:
        runs.epoch(Dataset.zip(files, files.skip(1)).map(lambda pair: 1 // (pair[0]["bytes"] != b"b")))
    assert caught.value.where == f"{tmp_path / 'b'} with {tmp_path / 'c'}"


@pytest.mark.parametrize(
    ("build", "where"),
    [
        (lambda source: source, "part-1, record 9"),
        (lambda source: source.skip(3).shard(2, 0), "part-1, record 9"),
        (lambda source: source.repeat(2).take(17), "part-1, record 9"),
        (lambda source: source.shuffle(1), "element 9 of shuffle() in task 0"),
        (lambda source: source.batch(1).unbatch(), "an element made from batch()"),
        (lambda source: source.flat_map(lambda n: [n]), "an element made from part-1"),
        (lambda source: source.batch(2, drop_remainder=True).map(lambda batch: batch[1]), "element 4 of batch()"),
        (lambda source: source.filter(bool).batch(1).map(lambda b: b[0]), "element 8 of batch() in task 0"),
    ],
)
def test_names_of_records(runs, build, where):
    source = runs.sequential(5, 10)
    with pytest.raises(ElementError) as caught:
        runs.epoch(build(source).map(lambda n: 1 // int(n != 9)), tasks=1)
    assert caught.value.where == where
    assert "ZeroDivisionError" in caught.value.user_traceback
    assert "test_local_epoch.py" in caught.value.user_traceback
    assert "millrace/engine" not in caught.value.user_traceback


def test_an_error_of_a_nested_dataset_says_where_it_was_nested():
    dataset = Dataset.range(5).flat_map(lambda n: Dataset.range(4).map(lambda k: k // (n != 3)))
    with pytest.raises(ElementError, match="item 0") as caught:
        list(dataset)
    assert caught.value.__notes__ == [
        f"in {next(str(node) for node in dataset.__pipeline__().graph.nodes[1:])} of item 3"
    ]
    assert len(list(dataset.with_options(on_error="skip"))) == 16


def test_elements_that_do_not_fit_into_a_batch_are_named():
    ragged = Dataset.range(20).map(lambda number: np.zeros(3 if number == 13 else 4)).skip(10).batch(5)
    with pytest.raises(PipelineError) as caught:
        list(ragged)
    assert str(caught.value).endswith("Here the batch's first element is item 10, and element 3 is item 13.")
    with pytest.raises(PipelineError, match=r"None cannot be a part .* element 2 is item 3\.$"):
        list(Dataset.range(5).filter(lambda n: n > 0).map(lambda n: None if n == 3 else n).batch(9))


def test_missing_data_are_never_an_element_to_skip():
    dataset = Dataset.range(3).flat_map(lambda n: Dataset.from_files(f"/does/not/exist/{n}"))
    with pytest.raises(SourceError, match="/does/not/exist/0"):
        list(dataset.with_options(on_error="skip"))


def test_a_function_must_return_something_to_iterate_over():
    with pytest.raises(PipelineError, match="must return a dataset or something to iterate over, not int"):
        list(Dataset.range(3).flat_map(lambda n: n))
    with pytest.raises(PipelineError, match="and returned one dict: put it in a list"):
        list(Dataset.range(3).flat_map(lambda n: {"n": n}))


class Faulty:
    """A map-style data set with a hole."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise OSError("cannot identify image file")
        return index


def test_an_item_that_fails_is_named_skipped_or_replaced():
    dataset = Dataset.from_map_style(Faulty())
    with pytest.raises(ElementError, match=r"Faulty\[7\] failed: OSError: cannot identify image file"):
        list(dataset)
    assert list(dataset.with_options(on_error="skip")) == [n for n in range(20) if n != 7]
    assert [len(batch) for batch in dataset.batch(5).with_options(on_error="skip")] == [5, 5, 5, 4]
    replaced = dataset.batch(5).with_options(on_error=lambda error: -1)
    assert [batch.tolist() for batch in replaced][1] == [5, 6, -1, 8, 9]
    instead: list[Any] = [7, []]
    assert list(dataset.with_options(on_error=lambda error: instead))[6:9] == [6, instead, 8]


def test_a_sample_that_is_skipped_alone_ends_neither_a_mixture_nor_a_cache():
    class First:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> int:
            if index == 0:
                raise OSError("cannot identify image file")
            return index

    faulty = Dataset.from_map_style(First())
    mixed = Dataset.choose_from_datasets([faulty, Dataset.range(100, 120)], [0, 1])
    assert sorted(mixed.with_options(on_error="skip")) == [*range(1, 20), *range(100, 119)]
    kept = faulty.cache().with_options(on_error="skip")
    assert [list(kept), list(kept)] == [[*range(1, 20)]] * 2


def test_a_list_is_no_function_that_may_fail():
    class List:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            raise RuntimeError(f"no {index}")

    with pytest.raises(RuntimeError, match="no 0"):
        list(Dataset.from_list(cast("list[int]", List())).batch(2).with_options(on_error="skip"))


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "operator_name", "where"),
    [
        (Dataset.range(10).map(lambda n: bytes(3000) if n == 6 else b""), "map(<lambda>)", "item 6"),
        (Dataset.range(10).map(lambda n: np.zeros(200)).batch(2), "batch()", "element 0 of batch()"),
        (Dataset.from_list([b"", bytes(5000)]).shuffle(2), "from_list(items)", "item 1"),
        (Dataset.range(4).map(lambda n: bytes(3000)).prefetch().batch(2), "map(<lambda>)", "item 0"),
    ],
)
@pytest.mark.usefixtures("on_threads")
def test_an_element_larger_than_all_buffers_is_refused(dataset, operator_name, where):
    with pytest.raises(ElementTooLargeError) as caught:
        list(dataset.with_options(buffer_bytes=2500))
    said = str(caught.value)
    assert f"({where})" in said
    assert "may hold 2500" in said
    assert "with_options(buffer_bytes=...)" in said
    assert said.startswith(operator_name.split("(")[0])
    assert len(list(dataset.with_options(buffer_bytes=1 << 20))) > 1


def test_many_small_elements_may_be_more_than_the_buffers():
    dataset = Dataset.range(5000).map(lambda n: bytes(100)).shuffle(7).prefetch().with_options(buffer_bytes=2000)
    assert len(list(dataset)) == 5000


def test_a_file_too_large_is_refused_before_it_is_read(tmp_path):
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(10**11)
    with pytest.raises(
        ElementTooLargeError, match=r"large has 100000000000 bytes, and the pipeline may hold 268435456"
    ):
        list(Dataset.from_files(str(large)))


def test_files_are_read_some_at_a_time(runs, tmp_path):
    for number in range(20):
        (tmp_path / f"{number:02}").write_bytes(bytes(1 << 20))
    made = runs.program(Dataset.from_files(str(tmp_path / "*")), tasks=1, chunk=100)
    with made.run(made.plan.task(0), 0) as run:
        sizes = [len(chunk) for chunk in run]
    made.close()
    assert sum(sizes) == 20
    assert max(sizes) <= 4


def test_chunks_suit_what_elements_cost(runs):
    def sizes(function: Any, count: int) -> list[int]:
        dataset = Dataset.range(count).map(function, num_parallel_calls=1)
        made = runs.program(dataset, tasks=1)
        with made.run(made.plan.task(0), 0) as run:
            found = [len(chunk) for chunk in run]
        made.close()
        return found

    assert max(sizes(lambda n: n, 200_000)) > 1000
    large = sizes(lambda n: np.empty(10_000_000, np.uint8), 60)
    assert large[0] == 1  # what an element is like is learnt from one
    assert max(large) <= 8
    assert max(large[10:]) == 1
