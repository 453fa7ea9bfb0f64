"""Plan: an epoch cut into tasks, before any worker is involved.

Pure: the same graph, split tables and seed give the same tasks anywhere. Epochs don't matter here; they decide which
data a unit is (:mod:`millrace.planning.units`), not where tasks begin.

Where an operator collects a varying number of elements, tasks leave some over. These go to *tails*: after every
:data:`FAN_IN` tasks one tail takes what they left and leaves the rest to a tail of the next level, and so on to the one
at the end of the round, which flushes. Tails stand right behind the tasks they serve:

    tasks   0 1 ... 15 | 16 takes 0..15 | 17 ... 32 | 33 takes 17..32 | ... | the last takes 16, 33, ...
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from millrace.errors import StateError
from millrace.graph.operator_graph import Graph
from millrace.planning.chunks import chunk_bounds, most_chunks, units_of_a_split
from millrace.planning.endless_repeats import endlessly_repeated
from millrace.planning.sequencing import generator_notices
from millrace.planning.split_table import SplitTable, TableSummary
from millrace.planning.units import INFINITE, Cardinality, UnitMap, Units, UnplannableError

FAN_IN = 16
"""Number of tasks whose leftovers one tail takes."""

_TASK_BYTES = 32 << 20
_SMALL_TASK_BYTES = 1 << 20
_SMALL_TASK_ELEMENTS = 64
_SOME_TASKS = 16
_MOST_TASKS_OF_SMALL_CHUNKS = 64
_GROUPS_PER_TASK = 8
_LEAST_GROUPS = 3
_FEW_TASKS = 32
_SPLITS_OF_A_TASK = 4
"""Splits of which a task in chunks has some part, at least, where it need not have whole ones."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Outputs ``first`` to ``last`` of a run over the units ``[start, stop)``, of which each gives one.

    Attributes:
        start: first unit.
        stop: one past the last unit.
        first: number of the first output.
        last: one past the number of the last output.
        index: task number of the run, which seeds what is random in it; -1: that of the task which has the piece.
    """

    start: int
    stop: int
    first: int
    last: int
    index: int = -1

    @classmethod
    def of(cls, start: int, stop: int) -> Piece:
        """Make the piece of all outputs of these units."""
        return cls(start, stop, 0, stop - start)

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def whole(self) -> bool:
        """Whether it is all that its units give, in whatever run."""
        return self.index < 0 and len(self) == self.stop - self.start

    def cut(self, begin: int, end: int) -> Piece:
        """Cut out outputs ``begin`` to ``end``, numbered from 0, of a piece of which none was read."""
        if self.whole:
            return Piece.of(self.start + begin, self.start + end)
        return msgspec.structs.replace(self, first=self.first + begin, last=self.first + end)

    def behind(self, count: int, index: int) -> Piece:
        """Remainder after ``count`` outputs that were read in a run of task ``index``."""
        number = index if self.index < 0 else self.index
        return msgspec.structs.replace(self, first=self.first + count, index=number) if count else self


class Task(msgspec.Struct, frozen=True):
    """Range of the graph's units, or a tail that takes what other tasks left over.

    Attributes:
        index: number within the epoch; order of indices is the order of the data.
        start: first unit.
        stop: one past the last unit; -1 if the task is the whole graph, run as one sequence.
        inputs: for a tail, the tasks whose leftovers it takes, in this order; then it has no units of its own.
        parent: the tail that takes this task's leftovers; -1 if the task flushes them itself.
        parts: what it runs instead of its range, one after the other, where an epoch was dealt anew.
    """

    index: int
    start: int
    stop: int
    inputs: tuple[int, ...] = ()
    parent: int = -1
    parts: tuple[Piece, ...] = ()

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Pieces that it runs, where each unit gives one output."""
        return self.parts or (Piece.of(self.start, self.stop),)

    @property
    def is_sequence(self) -> bool:
        """Whether this task runs the whole graph in order."""
        return self.stop < 0

    @property
    def is_tail(self) -> bool:
        """Whether this task has no units of its own."""
        return self.start == self.stop


WHOLE = Task(0, 0, -1)
"""Task that is the whole graph, without a plan."""


class Plan:
    """Tasks of an epoch, computed when asked for.

    Attributes:
        length: number of tasks, tails included; None without end.
        exact: each unit gives one element.
        equal: consumers that are dealt the tasks in turn get equally many elements, but for the last ``left_out``.
        left_out: number of elements that nobody gets, so that all get equally many.
        chunks: number of chunks that no task reads two of, but for the outputs at their edges; 0: there are none.
        cycle: units in a pass of what is repeated without end, if it could give nothing; else 0.
        warnings: what the user should know about it, a sentence each.
    """

    equal = False
    left_out = 0
    chunks = 0

    def __init__(
        self,
        units: int,
        size: int,
        *,
        period: int = INFINITE,
        tails: bool = False,
        exact: bool = False,
        cycle: int = 0,
        mains: int | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.warnings, self.exact, self.cycle = warnings, exact, cycle
        self._units, self._size, self._tails = units, size, tails
        self._period = min(period, units)
        self._sequence = units < 0
        if self._sequence:
            self.length: int | None = 1
            return
        self._mains = (-(-self._period // size) if units else 0) if mains is None else mains
        self._levels = _levels(self._mains) if tails else 0
        self._round = _tree(self._mains, self._levels) if tails and self._mains > 1 else self._mains
        rounds = -(-units // self._period) if units else 0
        self.length = None if units >= INFINITE else rounds * self._round

    def task(self, index: int) -> Task:
        """Compute task number ``index``.

        Raises:
            IndexError: if there is none.
        """
        if index < 0 or (self.length is not None and index >= self.length):
            raise IndexError(f"task {index} of a plan of {self.length}")
        if self._sequence:
            return WHOLE
        turn, within = divmod(index, self._round) if self._period < self._units else (0, index)
        if self._round == self._mains:
            return self._main(index, turn, within, -1)
        return self._descend(within, turn)

    @property
    def mains(self) -> int | None:
        """Number of tasks that are no tails; None without end."""
        if self.length is None or not self.length or self._sequence:
            return self.length
        return self.length // self._round * self._mains

    def main(self, number: int) -> int:
        """Index of the ``number``-th task that is no tail, from 0 on."""
        if self._sequence:
            return number
        turn, within = divmod(number, self._mains) if self._period < self._units else (0, number)
        return turn * self._round + within + sum(within // _full(level) for level in range(1, self._levels))

    def before(self, index: int) -> int:
        """Count the outputs of the tasks before ``index``, where each unit gives one; without tails."""
        turn, within = divmod(index, self._mains) if self._mains else (0, 0)
        return min(turn * self._period + min(within * self._size, self._period), self._units)

    def between(self, start: int, stop: int) -> Iterator[Piece]:
        """Pieces of outputs ``start`` to ``stop`` of all tasks in their order, where each unit gives one."""
        if start < stop:
            yield Piece.of(start, stop)

    def undivided(self) -> list[Piece]:
        """Pieces that no task has."""
        return []

    def chunk(self, number: int) -> tuple[int, int]:
        """Tasks of chunk ``number``, tails behind them included: the first, and one past the last."""
        raise IndexError(f"chunk {number} of a plan without chunks")

    def _main(self, index: int, turn: int, number: int, parent: int) -> Task:
        start = number * self._size
        stop = min(start + self._size, self._period)
        first = turn * self._period
        return Task(index, first + start, min(first + stop, self._units), (), parent)

    def _descend(self, within: int, turn: int) -> Task:
        first_index, first_main, mains, level, parent = turn * self._round, 0, self._mains, self._levels, -1
        index = first_index + within
        low = 1
        while low < level and within >= _full_tree(low - 1):
            low += 1
        if low < level:  # on each level from there up it is below the first tail
            level, mains = low, _full(low)
        while True:
            if level == 0:
                return self._main(index, turn, first_main, parent)
            tail = first_index + _tree(mains, level) - 1
            full_mains = _full(level - 1)
            full = _tree(full_mains, level - 1)
            children = -(-mains // full_mains)
            if index == tail:
                last = mains - (children - 1) * full_mains
                ends = [first_index + (child + 1) * full - 1 for child in range(children - 1)]
                inputs = (*ends, first_index + (children - 1) * full + _tree(last, level - 1) - 1)
                return Task(index, 0, 0, inputs, parent)
            child = (index - first_index) // full
            parent = tail
            first_index += child * full
            first_main += child * full_mains
            mains = min(full_mains, mains - child * full_mains)
            level -= 1


def _levels(mains: int) -> int:
    """Count the levels of tails above ``mains`` tasks."""
    level = 0
    while _full(level) < mains:
        level += 1
    return level


def _full(level: int) -> int:
    """Count the tasks below a full tail of ``level`` levels."""
    return int(FAN_IN**level)


def _tree(mains: int, level: int) -> int:
    """Count the tasks in a tree of ``level`` levels of tails over ``mains`` tasks."""
    count = 0
    while level and mains:
        level -= 1
        whole, mains = divmod(mains, _full(level))
        count += whole * _full_tree(level) + 1
    return count + mains


def _full_tree(level: int) -> int:
    """Count the tasks in a tree of ``level`` levels of tails without a gap."""
    return (_full(level + 1) - 1) // (FAN_IN - 1)


def tail_inputs(task: int, tasks: int | None) -> tuple[int, ...]:
    """List the tasks that leave something to a task of a plan with tails; nothing if it is no tail.

    It is for who reads the tasks and does not have the plan: where tails stand follows from how many tasks there are.

    Args:
        task: its index.
        tasks: length of the plan, tails included; None without end.
    """
    if tasks is None:
        mains = INFINITE
    else:
        mains = bisect.bisect_left(range(tasks + 1), tasks, key=lambda mains: _tree(mains, _levels(mains)))
    return Plan(mains, 1, tails=True).task(task).inputs


class EqualPlan(Plan):
    """Plan with equally many outputs for ``ranks`` consumers that are dealt its tasks in turn.

    It is cut into rounds of a task for each rank, all of one size. The remainder of the division, fewer elements than
    there are ranks, is at the end and left out.

    Args:
        units: of the graph, each of which gives one element.
        size: outputs of a task, at most.
        ranks: number of consumers.
        pieces: what is left of the units, where the epoch was begun with another plan; empty: all.
    """

    equal = True

    def __init__(self, units: int, size: int, ranks: int, pieces: Sequence[Piece] = ()) -> None:
        super().__init__(units, size, exact=True)
        self._pieces = pieces or [Piece.of(0, units)]
        self._ends = list(itertools.accumulate(map(len, self._pieces)))
        self._each, self.left_out = divmod(self._ends[-1], ranks)
        self._ranks = ranks
        self._rounds = math.ceil(self._each / size)
        self.length = self._mains = self._rounds * ranks

    def task(self, index: int) -> Task:
        """Compute task number ``index``.

        Raises:
            IndexError: if there is none.
        """
        if not 0 <= index < self._rounds * self._ranks:
            raise IndexError(f"task {index} of a plan of {self.length}")
        parts = tuple(self.between(self.before(index), self.before(index + 1)))
        alone = len(parts) == 1 and parts[0].whole
        return Task(index, parts[0].start, parts[0].stop, parts=() if alone else parts)

    def before(self, index: int) -> int:
        """Count the outputs of the tasks before ``index``."""
        turn, rank = divmod(index, self._ranks)
        each, size = self._of_rank(turn), self._of_rank(turn + 1) - self._of_rank(turn)
        return self._ranks * each + rank * size

    def _of_rank(self, turn: int) -> int:
        """Count the outputs that a rank has before a round."""
        return self._each * turn // self._rounds if turn < self._rounds else self._each

    def undivided(self) -> list[Piece]:
        """Pieces that no task has."""
        return list(self.between(self._ends[-1] - self.left_out, self._ends[-1]))

    def between(self, start: int, stop: int) -> Iterator[Piece]:
        """Pieces of outputs ``start`` to ``stop`` of all tasks in their order."""
        number = bisect.bisect_right(self._ends, start)
        while start < stop:
            piece, end = self._pieces[number], self._ends[number]
            begin = end - len(piece)
            yield piece.cut(start - begin, min(stop, end) - begin)
            start, number = end, number + 1


class ChunkedPlan(Plan):
    """Plan whose tasks lie within chunks of the data, so that these can be read in any order.

    Args:
        bounds: units before each chunk, and all units: at least one in each chunk.
        size: units of a task, about.
        tails: as in :class:`Plan`, and ``exact``.
    """

    def __init__(self, bounds: Sequence[int], size: int, *, tails: bool = False, exact: bool = False) -> None:
        sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
        wanted = math.ceil(max(sizes) / size)
        if tails and wanted > FAN_IN:  # a tail takes from one chunk, but for those above it
            wanted = math.ceil(wanted / FAN_IN) * FAN_IN
        self._each, self._bounds, self.chunks = min(wanted, *sizes), bounds, len(sizes)
        super().__init__(bounds[-1], size, tails=tails, exact=exact, mains=self._each * len(sizes))
        assert self.length is not None
        self._firsts = [*(self.main(number * self._each) for number in range(self.chunks)), self.length]

    def chunk(self, number: int) -> tuple[int, int]:
        """Tasks of chunk ``number``, tails behind them included: the first, and one past the last."""
        return self._firsts[number], self._firsts[number + 1]

    def before(self, index: int) -> int:
        """Count the outputs of the tasks before ``index``, where each unit gives one; without tails."""
        return self._units if index >= self._mains else self._begin(index)

    def _main(self, index: int, turn: int, number: int, parent: int) -> Task:
        del turn  # there is one
        stop = self._units if number + 1 == self._mains else self._begin(number + 1)
        return Task(index, self._begin(number), stop, (), parent)

    def _begin(self, number: int) -> int:
        chunk, part = divmod(number, self._each)
        start, stop = self._bounds[chunk], self._bounds[chunk + 1]
        return start + (stop - start) * part // self._each


def make_plan(
    graph: Graph,
    tables: Mapping[int, SplitTable] | Mapping[int, TableSummary],
    *,
    tasks: int | None = None,
    seed: int = 0,
    ranks: int | None = None,
    pieces: Sequence[Piece] = (),
    chunks: int = 0,
) -> Plan:
    """Cut one epoch of ``graph`` into tasks.

    Args:
        graph: its structure; user functions are not looked at.
        tables: split table of every source, or its summary, by node id.
        tasks: number of tasks wanted (tails not counted); None: by the data's size.
        seed: the job's seed.
        ranks: consumers that are to get equally many elements; None: it does not matter.
        pieces: what is left of the epoch; empty: all of it.
        chunks: of the epoch, as in its shape; at most as many as it has units.

    Raises:
        StateError: an epoch has not so many elements as the pieces.
    """
    return plan_of(UnitMap(graph, tables, seed), tasks, ranks, pieces, chunks)


def plan_of(
    units_of: UnitMap,
    tasks: int | None = None,
    ranks: int | None = None,
    pieces: Sequence[Piece] = (),
    chunks: int = 0,
) -> Plan:
    """Make a plan as :func:`make_plan` does, of an analysis that is there already."""
    graph = units_of.graph
    try:
        root = units_of.of(graph.id_of(graph.root))
    except UnplannableError as error:
        warning = f"the pipeline runs as one task on one worker, in order: {error}. {error.remedy}"
        return Plan(-1, 1, warnings=(warning,))
    if pieces and (max(piece.stop for piece in pieces) > root.count or sum(map(len, pieces)) > root.count):
        raise StateError(f"the state is damaged: it says that more is left than the {root.count} elements of an epoch")
    if (ranks is not None or pieces) and root.yields is Cardinality.ONE and root.count < INFINITE:
        return EqualPlan(root.count, _size(root, tasks), ranks or 1, pieces)
    if chunks:
        return _chunked(units_of, root, tasks, chunks)
    return Plan(
        root.count,
        _size(root, tasks),
        period=root.period,
        tails=root.collecting,
        exact=root.yields is Cardinality.ONE,
        cycle=_cycle(units_of) if root.count >= INFINITE else 0,
        warnings=generator_notices(graph),
    )


def _chunked(units_of: UnitMap, root: Units, tasks: int | None, chunks: int) -> Plan:
    if not 0 < chunks <= most_chunks(units_of):
        raise StateError(
            f"the state is damaged: it says that the {root.count} units of an epoch are read in {chunks} chunks"
        )
    of_shuffle = chunk_bounds(units_of, chunks).tolist()
    # Where units of the root are batches, one at an edge has elements of two chunks.
    bounds = [bound * root.count // of_shuffle[-1] for bound in of_shuffle]
    size = _size(root, tasks)
    if tasks is None:
        # A job has some tasks ahead, which should be a small part of a chunk.
        elements = _SMALL_TASK_ELEMENTS / root.reads
        small = min(root.count / chunks / _SOME_TASKS, max(elements, root.count / chunks / _MOST_TASKS_OF_SMALL_CHUNKS))
        size = max(_whole_groups(root), min(size, math.ceil(small)))
        # A split is read anew for each task that has a part of it.
        size = max(size, math.ceil(_SPLITS_OF_A_TASK * units_of_a_split(units_of)))
    return ChunkedPlan(bounds, size, tails=root.collecting, exact=root.yields is Cardinality.ONE)


def _cycle(units_of: UnitMap) -> int:
    node = endlessly_repeated(units_of)
    return 0 if node is None else units_of.of(units_of.graph.id_of(node)).count


def _size(root: Units, tasks: int | None) -> int:
    """Units per task: about 32 MiB of stored data or a sensible number of elements.

    There are more and smaller tasks if there is little data, so that a few workers find work; never so few elements
    that a tail would get most of them.
    """
    if root.count >= INFINITE:
        per_task = (
            root.target / root.reads if not root.bytes else min(root.target / root.reads, _TASK_BYTES / root.bytes)
        )
        refill = math.ceil(root.refill / root.reads) if root.refill else 0
        return max(1, int(per_task), _whole_groups(root), refill)
    if tasks is not None:
        wanted = max(1, tasks)
    else:
        elements, size = root.count * root.reads, root.count * root.bytes
        wanted = max(1, math.ceil(elements / root.target), math.ceil(size / _TASK_BYTES))
        affordable = max(elements / _SMALL_TASK_ELEMENTS, size / _SMALL_TASK_BYTES)
        wanted = max(wanted, min(_SOME_TASKS, int(affordable)))
        wanted = min(wanted, max(1, root.count // _whole_groups(root)))
        wanted = min(wanted, math.ceil(elements / root.refill)) if root.refill else wanted
    period = min(root.period, root.count)
    return max(1, math.ceil(period / max(1, round(wanted * period / max(root.count, 1)))))


def _whole_groups(root: Units) -> int:  # so that a tail gets a sixteenth of a task, or a sixth if there is little
    groups = min(max(root.count * root.reads / root.group / _FEW_TASKS, _LEAST_GROUPS), _GROUPS_PER_TASK)
    return math.ceil(groups * root.group / root.reads) if root.collecting else 1
