"""Saved datasets: what was written is read, as it was, and nothing that is not whole."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from millrace.dataset import Dataset
from millrace.errors import CodecError, PipelineError, SourceCorruptError, SourceError, SourceNotFoundError
from millrace.sources import saved_blocks


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
    monkeypatch.setattr(saved_blocks, "BLOCK_BYTES", 30_000)
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
    monkeypatch.setattr(saved_blocks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(saved_blocks, "MESSAGE_BYTES", 1000)
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
    with pytest.raises(
        SourceCorruptError, match=rf"{re.escape(str(block))} is damaged: .*if_exists=\"replace\"\) makes it again"
    ):
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
    refused = []

    def slow() -> Any:
        yield 0
        try:
            Dataset.from_list([10, 11]).save(path)
        except PipelineError as error:
            refused.append(error)
        yield 1

    try:
        Dataset.from_generator(slow, key="v1").save(path)
    except PipelineError as error:
        refused.append(error)
    (said,) = refused
    assert "each rank to one of its own" in str(said)
    # In a folder it is known that somebody is at work; in a bucket the first to end is.
    assert list(Dataset.load(path)) == ([0, 1] if place == "folder" else [10, 11])
    if place == "folder":
        assert sorted(each.suffix for each in (tmp_path / "data").iterdir()) == [".block", ".json"]


def test_what_the_first_format_has_is_read(tmp_path):
    Dataset.range(30).save(tmp_path, file_bytes=1)
    known = json.loads((tmp_path / "saved.json").read_text())
    first = [
        {"file": each["file"], "name": "0" * 32, "elements": each["elements"][0], "bytes": each["bytes"][0]}
        for each in known["files"]
    ]
    assert len(first) > 2
    (tmp_path / "saved.json").write_text(json.dumps({"format": 1, "blocks": first}))
    assert list(Dataset.load(tmp_path)) == list(range(30))
    assert Dataset.saved_info(tmp_path).made is None
    with pytest.raises(SourceError, match="did not note when"):
        Dataset.load(tmp_path, max_age=10)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "000000-0123456789abcdef.block/../x", "x.block"])
def test_a_manifest_names_no_files_but_those_that_save_writes(tmp_path, name):
    file = {"file": name, "elements": [1], "bytes": [1]}
    for contents in ({"files": [file]}, {"files": [], "replaced": [{"files": [name], "at": 0.0}]}):
        (tmp_path / "saved.json").write_text(json.dumps({"format": 2, **contents}))
        with pytest.raises(SourceCorruptError, match="names files or blocks that are none"):
            list(Dataset.load(tmp_path))


def test_a_block_is_read_where_it_was_written_and_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_blocks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(saved_blocks, "MESSAGE_BYTES", 1000)
    Dataset.range(2000).map(lambda number: np.full(100, number)).save(tmp_path)
    (known,) = json.loads((tmp_path / "saved.json").read_text())["files"]
    size = known["bytes"][0]
    assert known["bytes"][:3] == [size] * 3
    file = tmp_path / known["file"]
    whole = bytearray(file.read_bytes())
    whole[size : 2 * size] = whole[2 * size : 3 * size]
    file.write_bytes(whole)
    with pytest.raises(SourceCorruptError, match=rf"{file.name} has at byte {size} a block that was not written"):
        list(Dataset.load(tmp_path))
