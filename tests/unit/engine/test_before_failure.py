"""What comes before an element that fails is handed out before the error, whatever the operator, on threads or not."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.dataset import Dataset
from millrace.engine.threads import operator_threads
from millrace.errors import ElementError, ElementTooLargeError, MillraceError, PipelineError, SourceError

BAD, COUNT = 70, 100


def check(number: int) -> int:
    if number == BAD:
        raise ValueError(number)
    return number


def ones() -> Dataset:
    return Dataset.range(COUNT)


def checked() -> Dataset:
    return ones().map(check)


def batches(size: int) -> list[list[int]]:
    return [list(range(start, start + size)) for start in range(0, BAD // size * size, size)]


def ragged(number: int) -> np.ndarray[Any, Any]:
    return np.full(1 + (number == BAD), number)


def made(number: int) -> Iterator[int]:
    yield number
    check(number)
    yield -number


class Items:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return check(index)


def first(count: int) -> list[int]:
    return list(range(count))


CASES: dict[str, tuple[Dataset, Any, type[MillraceError]]] = {
    "map": (checked(), first(BAD), ElementError),
    "a map before others": (checked().map(lambda n: n).filter(lambda n: n >= 0), first(BAD), ElementError),
    "a map after others": (ones().filter(lambda n: n % 2 == 0).map(check), first(BAD)[::2], ElementError),
    "the earlier of two": (
        ones().map(check).map(lambda n: 1 // (n - 20)),
        [1 // (n - 20) for n in range(20)],
        ElementError,
    ),
    "filter": (ones().filter(lambda n: check(n) % 2 == 0), first(BAD)[::2], ElementError),
    "a predicate": (ones().filter(lambda n: True if n < BAD else None), first(BAD), PipelineError),
    "flat_map": (ones().flat_map(made), [n for k in range(BAD) for n in (k, -k)] + [BAD], ElementError),
    "a function of flat_map": (ones().flat_map(lambda n: [check(n)]), first(BAD), ElementError),
    "interleave": (ones().interleave(lambda n: [check(n)], cycle_length=3), first(BAD), ElementError),
    "nested": (ones().flat_map(lambda n: Dataset.from_list([n]).map(check)), first(BAD), ElementError),
    "batch": (checked().batch(4), batches(4), ElementError),
    "a ragged batch": (ones().map(ragged).batch(7), [[[n] for n in batch] for batch in batches(7)], PipelineError),
    "padded_batch": (checked().padded_batch(4), batches(4), ElementError),
    "bucket": (ones().bucket_by_sequence_length(check, [1000], [4, 4]), batches(4), ElementError),
    "window": (ones().group_by_window(lambda n: check(n) * 0, lambda _, e: e.batch(4), 4), batches(4), ElementError),
    "a reduced window": (ones().group_by_window(lambda n: 0, lambda _, e: e.map(check), 4), first(BAD), ElementError),
    "pack": (
        ones().map(lambda n: [check(n)]).pack(4).map(lambda row: row["tokens"]),
        batches(4),
        ElementError,
    ),
    "rebatch": (checked().batch(5).rebatch(10), batches(10), ElementError),
    "unbatch": (checked().batch(5).unbatch(), first(BAD), ElementError),
    "prefetch": (checked().prefetch(3), first(BAD), ElementError),
    "enumerate": (checked().enumerate(), [(n, n) for n in range(BAD)], ElementError),
    "zip": (Dataset.zip(checked(), ones()), [(n, n) for n in range(BAD)], ElementError),
    "a zip of streams": (
        Dataset.zip(checked().filter(lambda n: True), ones().filter(lambda n: True)),
        [(n, n) for n in range(BAD)],
        ElementError,
    ),
    "mixture": (Dataset.sample_from_datasets([checked()]), first(BAD), ElementError),
    "a mixture of streams": (
        Dataset.sample_from_datasets([checked().filter(lambda n: True)]),
        first(BAD),
        ElementError,
    ),
    "concatenate": (Dataset.range(3).concatenate(checked()), [0, 1, 2, *first(BAD)], ElementError),
    "take": (checked().take(90), first(BAD), ElementError),
    "items": (Dataset.from_map_style(Items()), first(BAD), ElementError),
    "an element that is too large": (
        ones().map(lambda n: np.zeros(1 + 2_000_000 * (n == BAD))).map(len).with_options(buffer_bytes=1 << 20),
        [1] * BAD,
        ElementTooLargeError,
    ),
}


@pytest.mark.parametrize("threads", [False, True], ids=["", "threads"])
@pytest.mark.parametrize("case", CASES)
def test_comes_first(case: str, threads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if threads:
        monkeypatch.setattr(operator_threads, "_WORTH_A_THREAD_S", 0.0)
    dataset, expected, kind = CASES[case]
    read: list[Any] = []
    with pytest.raises(kind):
        read.extend(element.tolist() if isinstance(element, np.ndarray) else element for element in dataset)
    assert read == expected


def test_records_before_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "part.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(20):
            member = tarfile.TarInfo(f"{number:02}.txt")
            member.size = 512
            tar.addfile(member, io.BytesIO(bytes(512)))
    elements = iter(Dataset.from_webdataset(str(path)))  # lists it
    os.truncate(path, 1024 * 15 + 700)
    read: list[str] = []
    with pytest.raises(SourceError):
        read.extend(element["__key__"] for element in elements)
    assert read == [f"{number:02}" for number in range(15)]


def test_files_before_a_missing_one(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_bytes(b"x")
    dataset = Dataset.from_files(str(tmp_path / "*.txt"))
    elements = iter(dataset)
    (tmp_path / "15.txt").unlink()
    read: list[str] = []
    with pytest.raises(SourceError):
        read.extend(element["path"][-6:] for element in elements)
    assert read == [f"{number:02}.txt" for number in range(15)]
