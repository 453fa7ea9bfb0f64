"""Saved datasets: what was written is read, as it was, and nothing that is not whole."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from millrace.dataset import Dataset
from millrace.errors import CodecError, PipelineError, SourceCorruptError, SourceNotFoundError
from millrace.sources import saved


def element(number: int) -> dict[str, Any]:
    return {
        "x": np.full((number % 5, 2), number, np.float32),
        "n": number,
        "name": str(number),
        "raw": b"\0" * (number % 3),
    }


def fails(number: int) -> int:
    if number == 900:
        raise ValueError(number)
    return number


def alike(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


@pytest.mark.parametrize("place", ["folder", "memory://saved/elements"])
def test_what_was_saved_is_loaded_in_its_order(tmp_path, monkeypatch, place):
    monkeypatch.setattr(saved, "_BLOCK_BYTES", 30_000)
    path = str(tmp_path / "data") if place == "folder" else place
    dataset = Dataset.range(900).map(element)
    dataset.save(path)
    loaded = Dataset.load(path)
    assert len(loaded) == 900
    assert alike(list(loaded), list(dataset))
    assert len(loaded.__pipeline__().tables()[0].splits) > 2
    assert [each["n"] for each in loaded.skip(500).take(3)] == [500, 501, 502]  # positions are known
    assert [batch["n"].tolist() for batch in loaded.take(5).padded_batch(3)] == [[0, 1, 2], [3, 4]]
    assert sorted(each["n"] for each in loaded.shuffle(100)) == list(range(900))
    assert repr(loaded) == f"Dataset.load({path!r})" or len(path) > 38


def test_elements_are_those_of_tf_data(tmp_path):
    numbers = np.arange(7)
    tf.data.Dataset.from_tensor_slices(numbers).batch(2).save(str(tmp_path / "theirs"))
    theirs = tf.data.Dataset.load(str(tmp_path / "theirs")).as_numpy_iterator()
    Dataset.from_arrays(numbers).batch(2).save(tmp_path / "ours")
    assert [batch.tolist() for batch in Dataset.load(tmp_path / "ours")] == [batch.tolist() for batch in theirs]


def test_an_epoch_is_kept_and_no_more_is_random(tmp_path):
    dataset = Dataset.range(50).shuffle(50).with_options(seed=1)
    first = list(dataset)
    dataset.save(tmp_path)  # the second
    loaded = Dataset.load(tmp_path)
    assert list(loaded) == list(loaded) != first
    Dataset.range(0).save(tmp_path / "nothing")
    assert list(Dataset.load(tmp_path / "nothing")) == []


def test_what_is_there_is_not_written_over(tmp_path):
    Dataset.range(3).save(tmp_path)
    with pytest.raises(
        PipelineError, match=r"holds a saved dataset, which others may be reading; save to another path"
    ):
        Dataset.range(4).save(tmp_path)
    assert list(Dataset.load(tmp_path)) == [0, 1, 2]


def test_a_run_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(saved, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(saved, "MESSAGE_BYTES", 1000)
    with pytest.raises(Exception, match="900"):
        Dataset.range(1000).map(fails).save(tmp_path)
    with pytest.raises(CodecError):
        Dataset.from_list([1, object()]).save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(
        SourceNotFoundError, match=r"holds no saved dataset, or one that is not whole: .*ds\.save\(path\)"
    ):
        list(Dataset.load(tmp_path))


def test_damage_is_found(tmp_path):
    Dataset.range(1000).save(tmp_path)
    (block,) = tmp_path.glob("*.block")
    whole = block.read_bytes()
    block.write_bytes(whole[:-1])
    with pytest.raises(
        SourceCorruptError, match=rf"{re.escape(str(block))} has {len(whole) - 1} bytes, and saved.json"
    ):
        list(Dataset.load(tmp_path))
    block.write_bytes(whole[:100] + b"?" + whole[101:])
    with pytest.raises(SourceCorruptError, match=re.escape(str(block))):
        list(Dataset.load(tmp_path))
    for text in ("{", json.dumps({"format": 9, "blocks": []})):
        (tmp_path / "saved.json").write_text(text)
        with pytest.raises(
            SourceCorruptError, match=r"saved\.json is (not what save\(\) writes|of format 9, and this)"
        ):
            list(Dataset.load(tmp_path))


def test_a_path_is_needed():
    load: Any = Dataset.load
    for wrong in (None, 3, ""):
        with pytest.raises(PipelineError, match="load"):
            load(wrong)


@pytest.mark.parametrize("place", ["folder", "memory://saved/by-two"])
def test_of_two_that_save_to_one_path_one_is_refused(tmp_path, place):
    path = str(tmp_path / "data") if place == "folder" else place

    def slow() -> Any:
        yield 0
        saved.save(path, iter([10, 11]))
        yield 1

    with pytest.raises(PipelineError, match="each rank to one of its own"):
        saved.save(path, slow())
    assert list(Dataset.load(path)) == [10, 11]
    if place == "folder":
        assert sorted(each.suffix for each in (tmp_path / "data").iterdir()) == [".block", ".json"]
