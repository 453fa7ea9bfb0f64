"""Generator functions as sources: each epoch from its beginning, by one worker."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from millrace.dataset import Dataset
from millrace.errors import ElementError, PipelineError

UNTYPED: Any = Dataset


def three() -> Iterator[int]:
    yield from (1, 2, 3)


def breaks() -> Iterator[int]:
    yield 1
    raise OSError("the queue is gone")


def drawn(rng: np.random.Generator) -> Iterator[int]:
    yield from rng.integers(1 << 40, size=5).tolist()


def test_elements_are_what_it_gives_in_each_epoch():
    dataset = Dataset.from_generator(three).map(lambda number: number * 2)
    spec = tf.TensorSpec([], tf.int64)
    theirs = tf.data.Dataset.from_generator(three, output_signature=spec).map(lambda number: number * 2)
    assert list(dataset) == list(dataset) == list(theirs.as_numpy_iterator())
    assert repr(dataset.take(2)).startswith("Dataset.from_generator(three).map(lambda at ")
    assert next(iter(Dataset.from_generator(lambda: [5, 6]).batch(3))).tolist() == [5, 6]


def test_one_without_end_is_bounded_by_take():
    assert list(Dataset.from_generator(itertools.count).take(4)) == [0, 1, 2, 3]


def test_it_draws_anew_in_each_epoch():
    dataset = Dataset.from_generator(drawn).with_options(seed=1)
    first, second = list(dataset), list(dataset)
    assert first != second
    assert list(Dataset(dataset.__pipeline__().node)) == first


def test_it_goes_on_from_a_state():
    dataset = Dataset.from_generator(drawn).with_options(seed=1)
    whole = list(dataset)
    again = Dataset(dataset.__pipeline__().node)
    epoch = iter(again)
    assert [next(epoch), next(epoch)] == whole[:2]
    other = Dataset(dataset.__pipeline__().node)
    other.load_state_dict(again.state_dict())
    assert list(other) == whole[2:]


def test_that_one_worker_runs_it_is_said():
    (warning,) = Dataset.from_generator(three).batch(2).__pipeline__().plan().warnings
    assert warning.startswith("from_generator(three) is run by one worker, from its beginning")
    (warning,) = Dataset.from_generator(three).take(2).__pipeline__().plan().warnings
    assert warning.startswith("the pipeline runs as one task on one worker")


def test_an_error_within_names_it():
    with pytest.raises(ElementError, match=r"from_generator\(breaks\) failed on .*: OSError: the queue is gone"):
        list(Dataset.from_generator(breaks))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: UNTYPED.from_generator(three()), "takes a generator function, not the generator that it returns"),
        (lambda: UNTYPED.from_generator([1]), "from_generator() takes a function of ()"),
        (lambda: UNTYPED.from_generator(lambda x: x), "but is called with ()"),
        (lambda: list(UNTYPED.from_generator(lambda: 3)), "must return a dataset or something to iterate over"),
        (lambda: UNTYPED.from_text([]), "from_text needs at least one path or pattern"),
        (lambda: UNTYPED.from_text("x", compression="gzip"), "from_text: compression must be one of None, '', 'GZIP'"),
        (lambda: UNTYPED.from_csv("x", types={"a": "int"}), "types are int, float, str, bytes or bool by column"),
        (
            lambda: UNTYPED.from_csv("x", delimiter=", "),
            "from_csv: delimiter is one ASCII character other than a quote",
        ),
        (lambda: UNTYPED.from_csv("x", names="ab"), "from_csv takes a list of names, not 'ab'"),
        (lambda: UNTYPED.from_fixed_length_records("x", 0), "record_bytes must be a whole number of at least 1"),
        (lambda: UNTYPED.from_fixed_length_records("x", 2, header_bytes=-1), "header_bytes must be a whole number"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(build, said):
    with pytest.raises(PipelineError, match=re.escape(said)):
        build()


def test_sources_are_shown_as_they_were_written():
    shown = Dataset.from_csv("/data/a.csv", names=["a", "b"], types={"a": float})
    assert repr(shown) == "Dataset.from_csv('/data/a.csv', names=['a', 'b'], types={'a': 'float'})"
    records = Dataset.from_fixed_length_records("/data/a.bin", 7, footer_bytes=2)
    assert repr(records) == "Dataset.from_fixed_length_records('/data/a.bin', 7, footer_bytes=2)"


def failing():
    for number in range(10):
        if number == 4:
            raise OSError("connection reset")
        yield number


@pytest.mark.parametrize("on_error", ["skip", lambda error: None], ids=["skip", "function"])
@pytest.mark.filterwarnings("ignore:the pipeline runs as one task")
def test_a_generator_that_fails_ends_the_epoch_whatever_on_error_says(on_error):
    seen = []
    with pytest.raises(ElementError, match=r"OSError: connection reset\. on_error can't go on, as nobody knows what"):
        for element in Dataset.from_generator(failing).with_options(on_error=on_error):
            seen.append(element)  # noqa: PERF402
    assert seen == [0, 1, 2, 3]

    def never():
        raise OSError("no such host")

    with pytest.raises(ElementError, match=r"no such host\. on_error can't go on"):
        list(Dataset.from_generator(never).with_options(on_error=on_error))
