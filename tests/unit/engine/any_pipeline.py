"""Pipelines of any make, drawn by Hypothesis.

Each pipeline is built beside a reference of plain lists. Where the order is random the reference still knows which
elements there are, and where even that is left to chance (the first of a shuffled dataset) how many and of which.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.elements.tree import flatten
from millrace.planning.units import Cardinality, UnitMap, Units

Element = tuple[int, ...]


def numbers(element: Any) -> Element:
    """All numbers in an element."""
    return tuple(sorted(int(n) for leaf in flatten(element)[0] for n in np.asarray(leaf).ravel().tolist()))


def plus(element: Any) -> Any:
    return _each(element, lambda n: n + 1_000_000)


def kept(element: Any) -> bool:
    return sum(numbers(element)) % 3 > 0


def doubled(element: Any) -> list[Any]:
    return [element, element]


def some(element: Any) -> Any:
    copies = sum(numbers(element)) % 3
    return Dataset.from_list([element] * copies) if copies == 2 else iter([element] * copies)


def length(element: Any) -> int:
    return sum(numbers(element)) % 7


def key(element: Any) -> int:
    return sum(numbers(element)) % 3


def window(key: int, elements: Dataset) -> Dataset:
    return elements.batch(100)


def sequence(element: Any) -> Any:
    return np.array(numbers(element), np.int64)


def small(element: Any) -> bool:
    return sum(numbers(element)) % 37 != 36


def summed(state: int, element: Any) -> tuple[int, Any]:
    state += sum(numbers(element)) % 1000
    return state, _each(element, lambda n: n + state)


def tokens(row: Any) -> Any:
    return row["tokens"][row["segment_ids"] > 0]


def _each(element: Any, change: Any) -> Any:
    if isinstance(element, list):
        return [_each(part, change) for part in element]
    return tuple(_each(part, change) for part in element) if isinstance(element, tuple) else change(element)


@dataclass
class Case:
    """A dataset and what is known of it.

    Attributes:
        elements: numbers of each element; None if chance decides what an element is.
        ordered: they come in this order.
        numbers: how often each number comes at most.
        lost: how many numbers may be missing; None if chance decides.
        count: elements; None if unknown.
        kind: what an element is: ``int``, ``tuple``, ``batch``, or ``pile`` if they are not all alike.
        batch: (rows, how many may have fewer), right after batch.
    """

    dataset: Dataset
    elements: list[Element] | None
    ordered: bool = True
    numbers: Counter[int] = field(default_factory=Counter)
    lost: int | None = 0
    count: int | None = None
    kind: str = "int"
    batch: tuple[int, int] | None = None

    def exactly(self, dataset: Dataset, elements: list[Element], **changes: Any) -> Case:
        """What follows where the elements are known."""
        found = Counter(n for element in elements for n in element)
        new = replace(self, dataset=dataset, elements=elements, count=len(elements), numbers=found, batch=None)
        return replace(new, **changes)

    def units(self) -> Units | None:
        """Units of the whole; None if it cannot be planned."""
        units = UnitMap(self.dataset.__pipeline__().graph, self.dataset.__pipeline__().tables())
        root = len(self.dataset.__pipeline__().graph.nodes) - 1
        return units.of(root) if units.plannable(root) else None

    def one_to_one(self) -> bool:
        units = self.units()
        return units is not None and units.yields is Cardinality.ONE

    def in_parts(self, parts: int) -> Case:
        """What several processes that share the work make of it together: each may have short batches of its own."""
        units = self.units()
        if units is None or not units.collecting:
            return replace(self, ordered=self.ordered and units is None)
        lost = self.lost if self.lost == 0 else None
        batch = self.batch and (self.batch[0], self.batch[1] * parts)
        return replace(self, elements=None, ordered=False, count=None, lost=lost, batch=batch)

    def check(self, found: list[Any]) -> None:
        got = [numbers(element) for element in found]
        if self.elements is not None:
            if self.ordered:
                assert got == self.elements
            assert Counter(got) == Counter(self.elements)
        if self.count is not None:
            assert len(got) == self.count
        counted = Counter(n for element in got for n in element)
        assert counted <= self.numbers
        if self.lost is not None:
            assert self.numbers.total() - counted.total() <= self.lost
        if self.batch is not None:
            sizes = [len(flatten(element)[0][0]) for element in found]
            assert max(sizes, default=0) <= self.batch[0]
            assert sum(size < self.batch[0] for size in sizes) <= self.batch[1]


def from_source(draw: Any, runs: Any, first: int) -> Case:
    kind = draw(st.sampled_from(["range", "list", "map_style", "counted", "sequential"]))
    if kind in ("counted", "sequential"):
        sizes = draw(st.lists(st.sampled_from([0, 1, 5, 9, 17, 30]), min_size=1, max_size=7))
        count = sum(sizes)
        dataset = runs.sequential(*sizes, first=first, counted=kind == "counted")
    else:
        count = draw(st.sampled_from([0, 1, 2, 10, 31, 64, 100]))
        values = range(first, first + count)
        dataset = (
            Dataset.range(first, first + count)
            if kind == "range"
            else (Dataset.from_list if kind == "list" else Dataset.from_map_style)(list(values))
        )
    return Case(dataset, None).exactly(dataset, [(n,) for n in range(first, first + count)])


KEEP_INT = ["map", "doubled", "shuffle", "cut", "repeat", "prefetch"]
ALWAYS = ["map", "doubled", "shuffle", "shuffle", "cut", "enumerate", "repeat", "prefetch"]


def grown(draw: Any, runs: Any, case: Case, first: int) -> Case:
    """The case with one operator more."""
    choices = list(KEEP_INT if case.kind == "pile" else ALWAYS)
    if case.elements is not None:
        choices += ["filter", "filter", "some"]
        choices += ["take_while", "scan", "unique"] if case.ordered else []
    if case.kind in ("int", "tuple"):
        choices += ["batch", "batch", "padded_batch", "pack"]
        choices += ["windows"] if case.elements is not None and case.ordered else []
    if case.kind == "int" and first < 300_000:
        choices += ["concatenate", "sample", "zip"]
    if case.kind == "batch" and first < 300_000 and case.elements is None:
        choices += ["both"]
    if case.kind == "batch":
        choices += ["unbatch", "rebatch", "rebatch"]
    if case.elements is not None and case.kind in ("int", "tuple"):
        choices += ["bucket", "window"]
    return OPERATORS[draw(st.sampled_from(choices))](draw, runs, case, first)


def _map(draw: Any, runs: Any, case: Case, first: int) -> Case:
    dataset = case.dataset.map(plus)
    more = Counter({n + 1_000_000: times for n, times in case.numbers.items()})
    elements = case.elements and [tuple(n + 1_000_000 for n in element) for element in case.elements]
    return replace(case, dataset=dataset, elements=elements, numbers=more)


def _doubled(draw: Any, runs: Any, case: Case, first: int) -> Case:
    dataset = case.dataset.flat_map(doubled)
    if case.elements is not None:
        return case.exactly(dataset, [element for element in case.elements for _ in range(2)])
    twice = Counter({n: 2 * times for n, times in case.numbers.items()})
    lost, count = (None if value is None else 2 * value for value in (case.lost, case.count))
    return replace(case, dataset=dataset, numbers=twice, lost=lost, count=count, batch=None)


def _some(draw: Any, runs: Any, case: Case, first: int) -> Case:
    elements = [element for element in case.elements or [] for _ in range(sum(element) % 3)]
    return case.exactly(case.dataset.flat_map(some), elements)


def _filter(draw: Any, runs: Any, case: Case, first: int) -> Case:
    return case.exactly(case.dataset.filter(kept), [e for e in case.elements or [] if sum(e) % 3])


def _take_while(draw: Any, runs: Any, case: Case, first: int) -> Case:
    elements = case.elements or []
    end = next((index for index, element in enumerate(elements) if sum(element) % 37 == 36), len(elements))
    return case.exactly(case.dataset.take_while(small), elements[:end])


def _scan(draw: Any, runs: Any, case: Case, first: int) -> Case:
    state, outputs = 3, []
    for element in case.elements or []:
        state += sum(element) % 1000
        outputs.append(tuple(n + state for n in element))
    return case.exactly(case.dataset.scan(3, summed), outputs)


def _unique(draw: Any, runs: Any, case: Case, first: int) -> Case:
    assume(case.kind == "int")
    return case.exactly(case.dataset.unique(), list(dict.fromkeys(case.elements or [])))


def _windows(draw: Any, runs: Any, case: Case, first: int) -> Case:
    size, shift, stride, drop = draw(st.tuples(st.integers(1, 4), st.integers(1, 7), st.integers(1, 3), st.booleans()))
    elements, span = case.elements or [], (size - 1) * stride + 1
    groups = [elements[at : at + span : stride] for at in range(0, len(elements), shift)]
    windows = [tuple(sorted(n for each in group for n in each)) for group in groups if len(group) == size or not drop]
    return case.exactly(case.dataset.window(size, shift, stride, drop), windows, kind="pile")


def _shuffle(draw: Any, runs: Any, case: Case, first: int) -> Case:
    seed = draw(st.sampled_from([None, 5]))
    reshuffle = draw(st.booleans())
    return replace(case, dataset=case.dataset.shuffle(draw(st.integers(1, 20)), seed, reshuffle), ordered=False)


def _cut(case: Case, dataset: Dataset, part: slice) -> Case:
    if case.elements is not None and case.ordered:
        return case.exactly(dataset, case.elements[part])
    count = None if case.count is None else len(range(case.count)[part])
    return replace(case, dataset=dataset, elements=None, ordered=False, lost=None, count=count)


def _take_skip_or_shard(draw: Any, runs: Any, case: Case, first: int) -> Case:
    count = draw(st.sampled_from([-1, 0, 1, 10, 47, 90]))
    shards = draw(st.integers(1, 4))
    index = draw(st.integers(0, shards - 1))
    which = draw(st.sampled_from(["take", "skip", "shard"]))
    if which == "take":
        return _cut(case, case.dataset.take(count), slice(None if count < 0 else count))
    if which == "skip":
        count = count // 4
        return _cut(case, case.dataset.skip(count), slice(0) if count < 0 else slice(count, None))
    return _cut(case, case.dataset.shard(shards, index), slice(index, None, shards))


def _enumerate(draw: Any, runs: Any, case: Case, first: int) -> Case:
    assume(case.kind != "batch" and case.count is not None)
    start = draw(st.integers(0, 5)) + 2_000_000
    dataset = case.dataset.enumerate(start)
    if case.elements is not None and case.ordered:
        elements = [tuple(sorted((*element, start + i))) for i, element in enumerate(case.elements)]
        return case.exactly(dataset, elements, kind="tuple")
    assert case.count is not None
    more = case.numbers + Counter(range(start, start + case.count))
    return replace(case, dataset=dataset, elements=None, numbers=more, kind="tuple", batch=None)


def _repeat(draw: Any, runs: Any, case: Case, first: int) -> Case:
    times = draw(st.sampled_from([0, 1, 2, 2, 3]))
    dataset = case.dataset.repeat(times)
    elements = None if case.elements is None else case.elements * times
    many = Counter({n: times * each for n, each in case.numbers.items() if times})
    lost, count = (None if value is None else times * value for value in (case.lost, case.count))
    batch = case.batch and (case.batch[0], case.batch[1] * times)
    return replace(case, dataset=dataset, elements=elements, numbers=many, lost=lost, count=count, batch=batch)


def _prefetch(draw: Any, runs: Any, case: Case, first: int) -> Case:
    size = draw(st.sampled_from([1, 3, -1]))
    return replace(case, dataset=case.dataset.prefetch(size).autocache())


def _batch(draw: Any, runs: Any, case: Case, first: int) -> Case:
    return _batched(draw, case, "batch")


def _padded(draw: Any, runs: Any, case: Case, first: int) -> Case:
    return _batched(draw, case, "padded_batch")


def _batched(draw: Any, case: Case, name: str) -> Case:
    size, drop = draw(st.sampled_from([1, 2, 3, 5, 8, 30])), draw(st.booleans())
    dataset = getattr(case.dataset, name)(size, drop_remainder=drop)
    whole = None if case.count is None else case.count // size
    if case.elements is not None and case.ordered and case.one_to_one():
        groups = [case.elements[at : at + size] for at in range(0, len(case.elements), size)]
        batches = [tuple(sorted(n for each in group for n in each)) for group in groups]
        kept = batches[:whole] if drop else batches
        return case.exactly(dataset, kept, kind="batch", batch=(size, 0 if drop else 1))
    count = None if case.count is None else whole if drop else -(-case.count // size)
    wide = 3  # numbers of an element: no more than two enumerates and a zip
    lost = None if case.lost is None else case.lost + (size - 1) * wide * drop
    new = replace(case, dataset=dataset, elements=None, ordered=False, lost=lost, count=count, kind="batch")
    return replace(new, batch=(size, 0 if drop else 1))


def _unbatch(draw: Any, runs: Any, case: Case, first: int) -> Case:
    new = replace(case, dataset=case.dataset.unbatch(), elements=None, ordered=False, count=None)
    return replace(new, kind="tuple", batch=None)


def _rebatch(draw: Any, runs: Any, case: Case, first: int) -> Case:
    size = draw(st.integers(1, 9))
    dataset = case.dataset.rebatch(size)
    return replace(case, dataset=dataset, elements=None, ordered=False, count=None, batch=(size, 1))


def _bucket(draw: Any, runs: Any, case: Case, first: int) -> Case:
    sizes = draw(st.tuples(*[st.integers(1, 5)] * 3))
    dataset = case.dataset.bucket_by_sequence_length(length, [2, 5], sizes, no_padding=True)
    buckets = [0, 0, 0]
    for element in case.elements or []:
        buckets[(sum(element) % 7 >= 2) + (sum(element) % 7 >= 5)] += 1
    count = sum(-(-held // size) for held, size in zip(buckets, sizes, strict=True))
    return replace(case, dataset=dataset, elements=None, ordered=False, count=count, kind="batch", batch=None)


def _window(draw: Any, runs: Any, case: Case, first: int) -> Case:
    size = draw(st.integers(1, 6))
    dataset = case.dataset.group_by_window(key, window, window_size=size)
    held = Counter(sum(element) % 3 for element in case.elements or [])
    count = sum(-(-each // size) for each in held.values())
    return replace(case, dataset=dataset, elements=None, ordered=False, count=count, kind="batch", batch=(size, 3))


def _pack(draw: Any, runs: Any, case: Case, first: int) -> Case:
    rows = case.dataset.map(sequence).pack(5, window=draw(st.integers(1, 3)), too_long="split", padding_values=-1)
    return replace(case, dataset=rows.map(tokens), elements=None, ordered=False, count=None, kind="pile", batch=None)


def _concatenate(draw: Any, runs: Any, case: Case, first: int) -> Case:
    other = pipeline(draw, runs, first + 100_000, 2, kind="int")
    dataset = case.dataset.concatenate(other.dataset)
    return _together(case, other, dataset, ordered=case.ordered and other.ordered)


def _both(draw: Any, runs: Any, case: Case, first: int) -> Case:
    """Batches, then batches of something else."""
    other = pipeline(draw, runs, first + 100_000, 2, kind="int")
    other = _batched(draw, other, "batch")
    new = _together(case, other, case.dataset.concatenate(other.dataset), ordered=False)
    return replace(new, kind="pile", batch=None)


def _together(case: Case, other: Case, dataset: Dataset, *, ordered: bool) -> Case:
    if case.elements is not None and other.elements is not None:
        return case.exactly(dataset, case.elements + other.elements, ordered=ordered)
    lost = None if case.lost is None or other.lost is None else case.lost + other.lost
    count = None if case.count is None or other.count is None else case.count + other.count
    both = case.numbers + other.numbers
    return replace(case, dataset=dataset, elements=None, ordered=False, numbers=both, lost=lost, count=count)


def _sample(draw: Any, runs: Any, case: Case, first: int) -> Case:
    other = pipeline(draw, runs, first + 100_000, 2, kind="int")
    weights = draw(st.sampled_from([None, [0.9, 0.1], [1, 5]]))
    seed, stop = draw(st.sampled_from([None, 3])), draw(st.booleans())
    dataset = Dataset.sample_from_datasets([case.dataset, other.dataset], weights, seed, stop)
    new = _together(case, other, dataset, ordered=False)
    return replace(new, elements=None, lost=None, count=None) if stop else new


def _choose(draw: Any, runs: Any, case: Case, first: int) -> Case:
    other = pipeline(draw, runs, first + 100_000, 2, kind="int")
    choices = draw(st.sampled_from([[0, 1], [1, 0, 0], Dataset.range(2).repeat(), Dataset.range(2).map(int).repeat()]))
    stop = draw(st.booleans())
    dataset = Dataset.choose_from_datasets([case.dataset, other.dataset], choices, stop)
    new = _together(case, other, dataset, ordered=False)
    return replace(new, elements=None, lost=None, count=None) if stop else new


def _zip(draw: Any, runs: Any, case: Case, first: int) -> Case:
    other = pipeline(draw, runs, first + 100_000, 2, kind="int")
    dataset = Dataset.zip(case.dataset, other.dataset)
    if case.elements is not None and other.elements is not None and case.ordered and other.ordered:
        pairs = zip(case.elements, other.elements, strict=False)
        return case.exactly(dataset, [tuple(sorted(one + two)) for one, two in pairs], kind="tuple")
    count = None if case.count is None or other.count is None else min(case.count, other.count)
    both = case.numbers + other.numbers
    new = replace(case, dataset=dataset, elements=None, ordered=False, numbers=both, lost=None, count=count)
    return replace(new, kind="tuple", batch=None)


OPERATORS = {
    "map": _map,
    "doubled": _doubled,
    "some": _some,
    "filter": _filter,
    "take_while": _take_while,
    "scan": _scan,
    "unique": _unique,
    "windows": _windows,
    "shuffle": _shuffle,
    "cut": _take_skip_or_shard,
    "enumerate": _enumerate,
    "repeat": _repeat,
    "prefetch": _prefetch,
    "batch": _batch,
    "padded_batch": _padded,
    "unbatch": _unbatch,
    "rebatch": _rebatch,
    "bucket": _bucket,
    "window": _window,
    "pack": _pack,
    "concatenate": _concatenate,
    "both": _both,
    "sample": _sample,
    "choose": _choose,
    "zip": _zip,
}


def pipeline(draw: Any, runs: Any, first: int = 0, most: int = 6, kind: str | None = None) -> Case:
    case = from_source(draw, runs, first)
    for _ in range(draw(st.integers(1, most))):
        if kind is None:
            case = grown(draw, runs, case, first)
        else:
            choices = KEEP_INT + (["filter", "some"] if case.elements is not None else [])
            case = OPERATORS[draw(st.sampled_from(choices))](draw, runs, case, first)
        assume(case.numbers.total() < 2000)
    return case
