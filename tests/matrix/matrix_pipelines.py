"""A pipeline for every operator and every source, of about twenty steps an epoch; workers get this file too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import millrace as mr
from millrace import Dataset, samplers

EPOCHS = 3
TASKS = 6


def numbers(count: int = 400) -> Dataset:
    return Dataset.range(count)


def random(number: Any, rng: np.random.Generator) -> tuple[Any, float]:
    return number, float(rng.random())


def some(number: int) -> list[int]:
    return [number] * (number % 3)


def part(number: int) -> Dataset:
    return Dataset.range(number, number + number % 4)


def kept(number: int) -> bool:
    return number % 3 > 0


def length(number: int) -> int:
    return number % 40


def ragged(number: int) -> np.ndarray:
    return np.arange(number % 7)


def summed(pairs: list[tuple[int, bool]], rng: np.random.Generator) -> tuple[int, int, float]:
    return sum(number for number, kept in pairs if kept), len(pairs), float(rng.random())


def key(number: int) -> int:
    return number % 3


def window(key: int, elements: Dataset) -> Dataset:
    return elements.batch(20)


def generated(rng: np.random.Generator) -> Iterator[int]:
    yield from rng.integers(1000, size=400).tolist()


def low(pair: tuple[int, int]) -> bool:
    return pair[0] < 390


def add(state: int, number: int) -> tuple[int, int]:
    return state + number, state


def fails(number: int) -> int:
    if number % 5 == 0:
        raise ValueError(number)
    return number


class MapStyle:
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        return index


class Backwards:
    """Sampler of one's own."""

    def positions(self, size: int, seed: int, epoch: int) -> np.ndarray:
        return (np.arange(size)[::-1] + epoch) % size


def files(root: Path, ending: str) -> list[str]:
    return [str(root / f"{number}.{ending}") for number in range(7)]


OPERATORS = {
    "range": lambda root: numbers().batch(20),
    "from_list": lambda root: Dataset.from_list(list(range(400))).batch(20),
    "from_files": lambda root: Dataset.from_files(str(root / "files" / "*.bin")).batch(20),
    "from_tfrecords": lambda root: Dataset.from_tfrecords(files(root, "tfrecord")).padded_batch(20),
    "from_webdataset": lambda root: Dataset.from_webdataset(files(root, "tar")).padded_batch(20),
    "from_parquet": lambda root: Dataset.from_parquet(files(root, "parquet"), columns=["number"]).batch(20),
    "from_text": lambda root: Dataset.from_text(files(root, "txt")).batch(20),
    "from_csv": lambda root: Dataset.from_csv(files(root, "csv"), types={"name": bytes}).batch(20),
    "from_fixed_length_records": lambda root: Dataset.from_fixed_length_records(files(root, "fixed"), 5).batch(20),
    "from_generator": lambda root: Dataset.from_generator(generated).map(random).batch(20),
    "load": lambda root: Dataset.load(root / "saved").batch(20),
    "from_arrays": lambda root: Dataset.from_arrays({"x": np.arange(800).reshape(400, 2), "y": np.arange(400)}).batch(
        20
    ),
    "from_map_style": lambda root: Dataset.from_map_style(MapStyle()).batch(20),
    "map": lambda root: numbers().map(random).batch(20),
    "filter": lambda root: numbers(600).filter(kept).batch(20),
    "take_while": lambda root: numbers().enumerate().take_while(low).batch(20),
    "scan": lambda root: numbers().shuffle(400).scan(0, add).map(random).batch(20),
    "unique": lambda root: numbers(200).repeat(2).unique().map(random).batch(10),
    "flat_map": lambda root: numbers().flat_map(some).batch(20),
    "interleave": lambda root: numbers(270).interleave(part, cycle_length=3, block_length=2).batch(20),
    "shuffle": lambda root: numbers().shuffle(400).map(random).batch(20),
    "sample": lambda root: numbers(200).sample(samplers.WithReplacement(400)).map(random).batch(20),
    "sample by weights": lambda root: numbers().sample(samplers.Weighted(range(400))).map(random).batch(20),
    "sample classes": lambda root: numbers().sample(samplers.ClassBalanced([n % 7 for n in range(400)])).batch(20),
    "sample windows": lambda root: numbers().sample(samplers.Windowed(30)).batch(20),
    "sample a curriculum": lambda root: numbers().sample(samplers.Curriculum(range(400), (0.2, 0.6, 1.0))).batch(20),
    "sample by one's own": lambda root: numbers().sample(Backwards()).map(random).batch(20),
    "rejection_resample": lambda root: (
        numbers(400).rejection_resample(key, [0.5, 0.3, 0.2], [1 / 3] * 3).map(random).batch(20)
    ),
    "rejection_resample by an estimate": lambda root: numbers(400).rejection_resample(key, [0.5, 0.3, 0.2]).batch(20),
    "reservoir": lambda root: numbers().reservoir(150).map(random).batch(20),
    "reservoir of what is read in sequence": lambda root: (
        Dataset.from_parquet(files(root, "parquet"), columns=["number"]).reservoir(150, with_replacement=True).batch(20)
    ),
    "reservoir of what is filtered": lambda root: (
        numbers(600).filter(kept).reservoir(70, levels=[200]).map(random).batch(20)
    ),
    "shuffle in a window": lambda root: numbers(600).flat_map(some).shuffle(50).map(random).batch(30),
    "batch": lambda root: numbers().batch(20, drop_remainder=True).map(random),
    "batch collated": lambda root: numbers(590).filter(kept).batch(20, collate=summed, fill_remainder="mask"),
    "ragged_batch": lambda root: numbers().map(ragged).ragged_batch(20),
    "padded_batch": lambda root: numbers().map(ragged).padded_batch(20),
    "bucket_by_sequence_length": lambda root: numbers().bucket_by_sequence_length(
        length, [10, 20], [20, 20, 20], no_padding=True
    ),
    "group_by_window": lambda root: numbers().group_by_window(key, window, window_size=20),
    "pack": lambda root: numbers().map(ragged).pack(60, window=4),
    "window": lambda root: numbers(60).map(random).window(5, shift=3),
    "window of what is filtered": lambda root: numbers(90).filter(kept).window(5, shift=3),
    "rebatch": lambda root: numbers(600).filter(kept).batch(8).rebatch(20),
    "unbatch": lambda root: numbers(40).batch(8).unbatch().map(random).batch(2),
    "repeat": lambda root: numbers(200).shuffle(200).repeat(2).batch(20),
    "repeat of what collects": lambda root: numbers(300).filter(kept).batch(20).repeat(2),
    "take": lambda root: numbers().take(390).batch(20),
    "skip": lambda root: numbers().skip(10).batch(20),
    "shard": lambda root: numbers(800).shard(2, 1).batch(20),
    "zip": lambda root: Dataset.zip(numbers(), numbers().map(random)).batch(20),
    "concatenate": lambda root: numbers(200).concatenate(numbers(300).filter(kept)).batch(20),
    "sample_from_datasets": lambda root: Dataset.sample_from_datasets([numbers(200), numbers(200)], seed=3).batch(20),
    "sample_from_datasets that begin again": lambda root: Dataset.sample_from_datasets(
        [numbers(100).map(random), numbers(200).map(random)], seed=3, cycle=True
    ).batch(20),
    "sample_from_datasets by weights that change": lambda root: (
        Dataset.sample_from_datasets(
            [numbers(100).shuffle(100).repeat(), numbers(200).repeat()], {0: [3, 1], 1: [1, 3]}, seed=3
        )
        .map(random)
        .take(400)
        .batch(20)
    ),
    "sample_from_datasets by weights that change within an epoch": lambda root: Dataset.sample_from_datasets(
        [numbers(200), numbers(200)], {0: [3, 1], 130: [0, 1]}, seed=3, weights_by="element"
    ).batch(20),
    "choose_from_datasets": lambda root: Dataset.choose_from_datasets(
        [numbers(100).shuffle(100), numbers(300)], [0, 1, 1], cycle=True
    ).batch(20),
    "choose_from_datasets as one sequence": lambda root: (
        Dataset.choose_from_datasets(
            [numbers(200), numbers(50), numbers(200)], numbers(450).map(key), stop_on_empty_dataset=False
        )
        .map(random)
        .batch(20)
    ),
    "assert_cardinality": lambda root: numbers(600).filter(kept).assert_cardinality(400).batch(20),
    "enumerate": lambda root: numbers().enumerate().batch(20),
    "prefetch": lambda root: numbers(600).filter(kept).batch(20).prefetch(2),
    "cache": lambda root: numbers().cache().batch(20),
    "autocache": lambda root: numbers().autocache().batch(20),
    "with_options": lambda root: numbers(500).map(fails).batch(20).with_options(on_error="skip"),
    "one sequence": lambda root: numbers(600).filter(kept).take(390).batch(20),
}


def read(
    address: str, name: str, root: str, states: Any, steps: int | None, tasks: int | None = TASKS
) -> tuple[list[tuple[int, str]], list[Any]]:
    """Goes on from ``states`` (None: begins): so many steps, (epoch, element as text), and the states behind each.

    In process if the address is empty.
    """
    dataset = OPERATORS[name](Path(root)).with_options(seed=9)
    reader = dataset.distribute(address, deterministic=True, tasks=tasks) if address else dataset
    found: list[tuple[int, str]] = []
    if states is not None:
        reader.load_state_dict(states)
    behind = [reader.state_dict()]
    while (steps is None or len(found) < steps) and _epoch(behind[-1]) < EPOCHS:
        for element in reader:
            behind.append(reader.state_dict())
            found.append((behind[-1]["epoch"], repr(element)))
            if len(found) == steps:
                break
        else:
            behind[-1] = reader.state_dict()  # the end was seen
    if isinstance(reader, mr.DistributedDataset):
        reader.close()
    return found, behind


def _epoch(state: Any) -> int:
    epoch: int = state["epoch"] + state["ended"]
    return epoch
