"""Checkpoints: which epoch of which data was read how far. Pure; no elements, no buffers, no workers.

A plan is a function of split tables, graph, seed and number of tasks. So a state that identifies these and says which
tasks were yielded, and how far others, is all that is needed to go on, anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

import msgspec

from millrace.errors import StateError
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import outline
from millrace.planning.chunks import MOST_CHUNKS
from millrace.planning.epoch_shape import EpochShape
from millrace.planning.progress import TaskSet
from millrace.planning.split_table import SplitTable
from millrace.planning.weight_changes import carried, check_numbers, longest

VERSION = 1
CYCLE_LENGTH = 4
"""Tasks that ranks of coordinated reads read at a time, unless the user says otherwise."""
MOST_READ = 1 << 27
"""Most tasks of an epoch that a state can tell of, with as many elements each as there are."""
MOST_ALONE = 1 << 20
"""Most tasks of which a state can say that they leave nothing over."""
MOST_RANKS = 1 << 16
"""Most ranks that one run can have had."""
_BLOCKS = 32
_BLOCK_DIGITS = 4
_AT_ONCE = 4096


class PipelineIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Identity of a pipeline over its data: it must be the same where a state is loaded.

    Attributes:
        graph: digest of operators and parameters, without functions and options.
        sources: of each source, what :func:`_source` says.
        tasks: number of tasks of an epoch; None: endless.
        behind: digest of the operators behind ``distribute()``, "" without any; None: not known here.
    """

    graph: str = ""
    sources: list[str] = []
    tasks: int | None = None
    behind: str | None = None


Part = tuple[int, int, list[int]]


class OwnEpochState(msgspec.Struct, frozen=True, array_like=True):
    """State of an epoch of a job's own, which is filled from the epochs of those that it shares a window with.

    Attributes:
        number: of the epoch.
        left: elements that are still to come; unless ``known`` as many more as the group's epoch has still to come.
        known: it is known how many elements the epoch has.
    """

    number: int = 0
    left: int = 0
    known: bool = False

    @property
    def over(self) -> bool:
        """Whether all of it was yielded."""
        return self.known and not self.left


class Checkpoint(EpochShape, frozen=True, kw_only=True):
    """State of one reader, and the shape of the epoch that it reads.

    Attributes:
        version: of this format.
        seed: of the epoch's order and all that is random; None: nothing was read yet, and none was chosen.
        epoch: its number.
        graph: see :class:`PipelineIdentity`; ``sources`` and ``tasks`` likewise, empty where nothing was read yet.
        done: number of the task below which all were yielded to their end.
        later: further tasks yielded to their end, as :meth:`TaskSet.text`.
        begun: outputs yielded of other tasks.
        ended: the reader was told that there is no more in this epoch.
        rank: number of this reader among ``ranks``.
        ranks: number of readers; what is left of the epoch is what none of them has.
        helpers: the readers are processes of one DataLoader without a service, each with tasks of its own.
        alone: (``low``, :meth:`TaskSet.text`) of tasks that are known to give what they would leave over themselves.
        behind: digest of the operators behind ``distribute()``; "": none.
        counts: of these operators, how many elements each has had that counts them.
        parts: (task, output, path) of outputs that count as not yielded though operators behind ``distribute()`` have
            handed out the first of what they make of them: all before the path, see
            :mod:`millrace.engine.run.arrival_operators`.
        turn: of coordinated reads, the slot whose round comes next.
        cycle_length: of coordinated reads, the number of slots; 0: :data:`CYCLE_LENGTH`, or they are not coordinated.
        own: epoch of the job's own, where ``epoch`` is its group's; None: they are the same.
    """

    version: int = VERSION
    seed: int | None = None
    epoch: int = 0
    graph: str = ""
    sources: list[str] = []
    tasks: int | None = None
    done: int = 0
    later: str = ""
    begun: list[tuple[int, int]] = []
    ended: bool = False
    rank: int = 0
    ranks: int = 1
    helpers: bool = False
    alone: tuple[int, str] = (0, "")
    behind: str = ""
    counts: list[int] = []
    parts: list[Part] = []
    turn: int = 0
    own: OwnEpochState | None = None
    cycle_length: int = 0

    @property
    def slots(self) -> int:
        """Tasks that were read at a time, where reads were coordinated."""
        return self.cycle_length or CYCLE_LENGTH

    @property
    def identity(self) -> PipelineIdentity:
        """Identity of the pipelines that it can be loaded into."""
        return PipelineIdentity(self.graph, self.sources, self.tasks, self.behind)

    @property
    def next_epoch(self) -> int:
        """Number of the epoch that is read next."""
        return self.epoch + self.ended

    @property
    def untouched(self) -> bool:
        """Whether nothing of its epoch was yielded."""
        return not (self.done or self.later or self.begun or self.ended or self.parts)

    @property
    def anonymous(self) -> bool:
        """Whether it was saved before anything was read, and perhaps by any of several ranks."""
        return self.untouched and self.ranks == 1

    def tasks_done(self) -> TaskSet:
        """Tasks that were yielded to their end."""
        return TaskSet.parse(self.done, self.later)

    def tasks_alone(self) -> TaskSet:
        """Tasks that leave nothing over, as their tails began without them."""
        return TaskSet.parse(*self.alone)


def pack(checkpoint: Checkpoint) -> dict[str, Any]:
    """Convert a checkpoint to a dict of plain values, which any checkpoint format takes."""
    state = {name: getattr(checkpoint, name) for name in Checkpoint.__struct_fields__}
    lists = {"sources": [*checkpoint.sources], "begun": [[*pair] for pair in checkpoint.begun]}
    pieces = [[*msgspec.structs.astuple(piece)] for piece in checkpoint.pieces]
    rare = {"behind": checkpoint.behind, "counts": [*checkpoint.counts], "turn": checkpoint.turn}
    rare["cycle_length"] = checkpoint.cycle_length
    rare["parts"] = [[task, output, [*path]] for task, output, path in checkpoint.parts]
    rare["reweighted"] = [
        [each.node, each.element, [*each.weights], *filter(None, [each.replaced])] for each in checkpoint.reweighted
    ]
    rare["own"] = None if checkpoint.own is None else [*msgspec.structs.astuple(checkpoint.own)]
    found = {**state, **lists, "alone": [*checkpoint.alone], "pieces": pieces, **rare}
    return {name: value for name, value in found.items() if name not in rare or value}


def unpack(state: Any) -> Checkpoint:
    """Restore a checkpoint from the dict of :func:`pack`.

    Raises:
        StateError: if this is no such dict.
    """
    version = state.get("version") if isinstance(state, Mapping) else None
    if version is None:
        raise StateError(f"a state is a dict that state_dict() gave, not {type(state).__name__} {str(state)[:60]}")
    if version != VERSION:
        raise StateError(f"the state has version {version!r}, this millrace reads {VERSION}: load it with a newer one")
    unknown = sorted(set(state) - set(Checkpoint.__struct_fields__))
    if unknown:
        raise StateError(f"the state has {', '.join(map(repr, unknown))}, which state_dict() never writes")
    try:
        found = msgspec.convert(dict(state), Checkpoint)
    except msgspec.ValidationError as error:
        raise StateError(f"the state is damaged: {error}") from error
    check(found)
    return found


def check(found: Checkpoint) -> None:
    """Refuse a state that nobody can have saved.

    Raises:
        StateError: says what is wrong.
    """
    try:
        known = found.tasks_done(), found.tasks_alone()
    except ValueError as error:
        raise StateError(f"the state is damaged: {error}") from error
    check_numbers(found.reweighted)
    counts = [found.shares, found.epoch, found.ranks - 1, *(number for pair in found.begun for number in pair)]
    counts += [found.turn, found.cycle_length, *found.counts]
    counts += [number for *place, path in found.parts for number in (*place, *path)]
    tops = [tasks.low + tasks.bits.bit_length() for tasks in known]
    tops += [task + 1 for task, _ in found.begun if not found.helpers]
    if found.own is not None:
        counts += [found.own.number, found.own.left if found.own.known else 0]
    if min(counts) < 0 or not 0 <= found.rank < found.ranks:
        raise StateError(f"the state is damaged: no number in it can be {min([*counts, found.rank])}")
    for piece in found.pieces:
        if not 0 <= piece.first <= piece.last <= piece.stop - piece.start or piece.start < 0:
            raise StateError(f"the state is damaged: {piece} cannot be left of an epoch")
    if found.tasks is not None and not found.helpers and max(tops) > found.tasks:
        raise StateError(f"the state is damaged: task {max(tops) - 1} of {found.tasks}")
    if max(tops, default=0) > MOST_READ:
        raise StateError(f"the state is damaged: task {max(tops) - 1:,}, and no epoch was read that far")
    if len(known[1]) > MOST_ALONE:
        raise StateError(f"the state is damaged: {len(known[1]):,} tasks of which nothing is left over")
    if not 0 <= found.chunks <= MOST_CHUNKS or (found.chunks and found.shares and not found.pieces):
        raise StateError(f"the state is damaged: {found.chunks:,} chunks, for {found.shares} ranks")
    if max(found.ranks, found.shares) > MOST_RANKS:
        raise StateError(f"the state is damaged: rank {found.rank} of {max(found.ranks, found.shares):,}")


class TasksRead(msgspec.Struct, frozen=True, array_like=True):
    """Tasks of an epoch that a reader has read to their end, and how many outputs of others, as messages say it.

    Attributes:
        low: all tasks below were read; ``later``: and those of this :meth:`TaskSet.text`.
        begun: (task, outputs that were read) of others.
    """

    low: int = 0
    later: str = ""
    begun: list[tuple[int, int]] = []

    def done(self) -> TaskSet:
        """Tasks that were read to their end."""
        return TaskSet.parse(self.low, self.later)


class Merged(EpochShape, frozen=True, kw_only=True):
    """Progress of all readers of one epoch together, and its shape."""

    epoch: int
    done: int = 0
    later: str = ""
    begun: list[tuple[int, int]] = []
    alone: tuple[int, str] = (0, "")

    def tasks_done(self) -> TaskSet:
        """Tasks that were yielded to their end."""
        return TaskSet.parse(self.done, self.later)

    def tasks_alone(self) -> TaskSet:
        """Tasks that leave nothing over, as their tails began without them."""
        return TaskSet.parse(*self.alone)


def name_of(checkpoints: Iterable[Checkpoint]) -> str:
    """Name these states together, whatever order they are in: 16 hexadecimal digits."""
    return _digest(msgspec.msgpack.encode(sorted(checkpoints, key=lambda each: each.rank)), 16)


_SHOWN = {"slots": "cycle_length"}
"""Names of properties as users know them."""


def alike(checkpoints: Sequence[Checkpoint]) -> None:
    """Refuse states that are not of one run.

    Raises:
        StateError: says what differs, or whose is twice there.
    """
    first = checkpoints[0]
    for other in checkpoints[1:]:
        if bool(first.sources) != bool(other.sources):
            late = first if first.sources else other
            raise StateError(
                f"one of the states was saved before its rank had begun to read, and that of rank {late.rank} after it "
                "had: save the states of all ranks at the same step"
            )
        of_epoch = ("tasks", "shares", "pieces", "chunks") if other.epoch == first.epoch else ()
        for name in ("seed", "graph", "behind", "sources", "ranks", "helpers", "slots", *of_epoch):
            if getattr(other, name) != getattr(first, name):
                raise StateError(
                    f"the states are not of one run: {_SHOWN.get(name, name)} is {getattr(first, name)!r} with rank "
                    f"{first.rank} and {getattr(other, name)!r} with rank {other.rank}"
                )
    for epoch in {each.epoch for each in checkpoints}:
        longest(each.reweighted for each in checkpoints if each.epoch == epoch)
    ranks = [checkpoint.rank for checkpoint in checkpoints]
    unbegun = all(each.anonymous and each.epoch == first.epoch for each in checkpoints)  # each says the same
    if len(set(ranks)) < len(ranks) and not unbegun:
        raise StateError(f"these are the states of ranks {sorted(ranks)}: give each rank's once")


def merge(checkpoints: Sequence[Checkpoint]) -> Merged:
    """Merge what the readers of one run, at unequal steps perhaps, have yielded of the epoch that is not over for all.

    Raises:
        StateError: they are not all there, not of one run, or too far apart.
    """
    alike(checkpoints)
    first = checkpoints[0]
    absent = sorted(set(range(first.ranks)) - {checkpoint.rank for checkpoint in checkpoints})
    if absent:
        raise StateError(
            f"what is left of an epoch is known from the states of all {first.ranks} ranks; "
            f"missing: {', '.join(map(str, absent))}"
        )
    epoch = min(checkpoint.next_epoch for checkpoint in checkpoints)
    ahead = next((checkpoint for checkpoint in checkpoints if checkpoint.epoch > epoch), None)
    if ahead is not None:
        raise StateError(
            f"rank {ahead.rank} is in epoch {ahead.epoch} and another rank in epoch {epoch}: what was read of that one "
            "is no longer known. Save the states of all ranks before any begins the next epoch"
        )
    return said(checkpoints, epoch)


def said(checkpoints: Sequence[Checkpoint], epoch: int) -> Merged:
    """Merge what these states, of all ranks or of some, say that was yielded of an epoch."""
    done, alone, begun = TaskSet(), TaskSet(), dict[int, int]()
    there = [checkpoint for checkpoint in checkpoints if checkpoint.epoch == epoch]
    shape: EpochShape = max(there, key=lambda each: each.reused, default=EpochShape())
    # An epoch that nobody has begun has the last weights that were set in the one before.
    last = max((each.epoch for each in checkpoints if each.epoch <= epoch), default=epoch)
    known = longest(each.reweighted for each in checkpoints if each.epoch == last)
    shape = msgspec.structs.replace(shape, reweighted=known if last == epoch else carried(known))
    for checkpoint in there:
        done |= checkpoint.tasks_done()
        alone |= checkpoint.tasks_alone()
        for task, outputs in checkpoint.begun:
            begun[task] = max(outputs, begun.get(task, 0))
    left = sorted((task, outputs) for task, outputs in begun.items() if task not in done)
    gives = alone.low, alone.text()
    return Merged(epoch=epoch, done=done.low, later=done.text(), begun=left, alone=gives, **shape.fields())


def parts_of(checkpoints: Iterable[Checkpoint], epoch: int) -> list[Part]:
    """Merge the :attr:`Checkpoint.parts` of an epoch in these states; of each output the furthest."""
    found: dict[tuple[int, int], list[int]] = {}
    for checkpoint in checkpoints:
        for task, output, path in checkpoint.parts if checkpoint.epoch == epoch else ():
            found[task, output] = max(path, found.get((task, output), []))
    return [(task, output, path) for (task, output), path in sorted(found.items())]


# -- identity ----------------------------------------------------------------------------------------------------------


def identity(graph: Graph, tables: Mapping[int, SplitTable], tasks: int | None) -> PipelineIdentity:
    """Identity of this pipeline over these sources, which states must agree with."""
    return PipelineIdentity(graph_digest(graph), prints(graph, tables), tasks)


def graph_digest(graph: Graph) -> str:
    """Hash the operators and their parameters: what decides which outputs a task has, the functions aside."""
    return _digest(msgspec.json.encode(outline(graph)), 16)


def prints(graph: Graph, tables: Mapping[int, SplitTable]) -> list[str]:
    """Identify the sources' split tables, in about two hundred characters each."""
    return [_source(str(graph.nodes[number]), tables[number]) for number in sorted(tables)]


def fit(state: PipelineIdentity, here: PipelineIdentity) -> None:
    """Refuse a state of another pipeline, or of other data.

    Raises:
        StateError: says what changed, and in which source and split.
    """
    if state.graph and here.graph and state.graph != here.graph:
        raise StateError(
            "the state is of a pipeline with other operators or parameters; what a task yields would be another. "
            "Functions and with_options may change, the rest may not, nor may coordinated= and incomplete= of "
            "distribute(): load it into the pipeline that it was saved from"
        )
    if None not in (state.behind, here.behind) and state.behind != here.behind:
        there = "other operators" if state.behind and here.behind else "operators" if state.behind else "no operators"
        raise StateError(
            f"the state is of a pipeline with {there} behind distribute(): load it into the pipeline that it was saved "
            "from"
        )
    if state.sources and here.sources and state.sources != here.sources:
        raise StateError(f"the state is of other data: {_difference(state.sources, here.sources)}")
    if state.sources and here.sources and state.tasks != here.tasks:
        raise StateError(
            f"the state is of an epoch of {state.tasks or 'endless'} tasks, here it has {here.tasks or 'no end'}; "
            "give the same tasks= as there"
        )


def fit_rounds(state: Checkpoint, ranks: int | None, cycle_length: int) -> None:
    """Refuse states of coordinated reads of other rounds than there are here, or of rounds in another order.

    Raises:
        StateError: says what is another, and why that matters.
    """
    there = state.ranks
    if there != ranks and not state.anonymous:
        raise StateError(
            f"the state is of {there} ranks, and here num_consumers is {ranks}: with coordinated=True each step is a "
            f"round of one batch for each rank, and other ranks would need other rounds. Go on with {there} ranks"
        )
    if state.slots != cycle_length:
        raise StateError(
            f"the state is of cycle_length={state.slots}, and here it is {cycle_length}: ranks that have read "
            f"unequally many rounds would get others in each step. Go on with cycle_length={state.slots}"
        )


def _source(label: str, table: SplitTable) -> str:
    """Describe a table as ``label|count|digest of each block of splits``: this names the first block that differs."""
    entries = _entries(table)
    edges = _edges(len(table.names))
    blocks = [_digest_of_list(islice(entries, end - first), _BLOCK_DIGITS) for first, end in pairwise(edges)]
    whole = _digest(msgspec.json.encode([table.count, *blocks]), 8)
    return f"{label[:80]}|{table.count}|{len(table.names)}|{whole}{''.join(blocks)}"


def _entries(table: SplitTable) -> Iterator[tuple[str | int, ...]]:
    """Properties of files and splits that decide what is read; not when they were written."""
    if table.pieces is None:
        yield from zip(table.names, table.sizes, strict=True)
    for split in table.splits:
        yield split.location, split.start, split.stop, split.count, split.bytes


def _digest_of_list(entries: Iterator[tuple[str | int, ...]], digits: int) -> str:
    """Hash a list in JSON, of which a part at a time is held."""
    state, before = hashlib.blake2b(digest_size=digits // 2), b"["
    while part := list(islice(entries, _AT_ONCE)):
        state.update(before + _json(part)[1:-1])
        before = b","
    state.update(b"]" if before == b"," else b"[]")
    return state.hexdigest()


def _json(entries: list[tuple[str | int, ...]]) -> bytes:
    try:
        return msgspec.json.encode(entries)
    except UnicodeEncodeError:  # names of files that are no text
        return msgspec.json.encode([(str(name).encode(errors="surrogateescape"), *rest) for name, *rest in entries])


def _edges(count: int) -> list[int]:
    blocks = min(count, _BLOCKS)
    return [block * count // blocks for block in range(blocks + 1)] if blocks else []


def _difference(there: Sequence[str], here: Sequence[str]) -> str:
    if len(there) != len(here):
        return f"it has {len(there)} sources, there are {len(here)} here"
    label, old, new = next(
        (new.rsplit("|", 3)[0], old.rsplit("|", 3)[1:], new.rsplit("|", 3)[1:])
        for old, new in zip(there, here, strict=True)
        if old != new
    )
    if old[1] != new[1]:
        return f"{label} had {old[1]} splits and has {new[1]}"
    if old[0] != new[0]:
        return f"{label} had {old[0]} elements and has {new[0]}"
    edges = _edges(int(new[1]))
    width = _BLOCK_DIGITS
    for block, (first, end) in enumerate(pairwise(edges)):
        at = 8 + block * width
        if old[2][at : at + width] != new[2][at : at + width]:
            which = f"split {first}" if end == first + 1 else f"one of splits {first} to {end - 1}"
            return f"{label}: {which} is another"
    return f"{label} is another"


def _digest(data: bytes, digits: int) -> str:
    return hashlib.blake2b(data, digest_size=digits // 2).hexdigest()


def parse_all(states: Any) -> tuple[Checkpoint, ...]:
    """Parse one state, or the list of all ranks' states; what several say alike is said once.

    Raises:
        StateError: if it is neither, or they are not of one run.
    """
    given: Iterable[Any] = states if isinstance(states, (list, tuple)) else [states]
    found = tuple({msgspec.msgpack.encode(each): each for each in map(unpack, given)}.values())
    if not found:
        raise StateError("there is no state in an empty list")
    alike(found)
    return found
