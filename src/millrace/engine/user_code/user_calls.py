"""User calls: random generators, errors and skipped elements of the user's functions."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from millrace.elements.chunk import Chunk, Origin
from millrace.engine.user_code import memory_limit
from millrace.engine.user_code.crash_probe import CrashProbe, RunStoppedError, WorkerEndedError
from millrace.errors import ElementError, MillraceError
from millrace.graph.nodes import Opaque
from millrace.planning.random_keys import derive, states

T = TypeVar("T")

_PACKAGE = str(Path(__file__).parent.parent / "_")[:-1]


class Calls:
    """Calls of user functions by one running task.

    Args:
        seed: of the job; ``epoch`` likewise, and ``keys`` of its nodes.
        on_error: what becomes of an element that fails, as ``with_options`` has it.
        describe: names an element for messages.
        watch: says where a call is, for whoever looks after a crash.
        skips: positions that were left out so far; None: none.
        generators: nodes that have one generator for all data: where it fails, nobody knows what would have come.
    """

    def __init__(
        self,
        seed: int,
        epoch: int,
        keys: Sequence[int],
        on_error: Opaque | str | None,
        describe: Callable[[Origin, int], str],
        watch: CrashProbe | None = None,
        skips: list[int] | None = None,
        generators: Collection[int] = (),
    ) -> None:
        self._seed, self._epoch, self._keys = seed, epoch, keys
        self._on_error = on_error
        self._describe = describe
        self._watch = watch
        self._skips = [] if skips is None else skips
        self._generators = generators

    @property
    def skipped(self) -> int:
        """Number of elements left out by ``on_error`` so far."""
        return len(self._skips)

    def of_epoch(self, epoch: int, describe: Callable[[Origin, int], str]) -> Calls:
        """Return the same task's calls with the random numbers of another epoch."""
        return Calls(
            self._seed, epoch, self._keys, self._on_error, describe, self._watch, self._skips, self._generators
        )

    def lie_within(self, outer: Calls) -> None:
        """Do as the pipeline around says with what fails, unless this one says it itself; it counts what is left out.

        Args:
            outer: calls of the task in which this dataset was made.
        """
        self._skips = outer._skips
        if self._on_error is None:
            self._on_error = outer._on_error

    def call(
        self, node: int, label: str, function: Opaque, chunk: Chunk
    ) -> tuple[list[int] | None, list[Any], Exception | None]:
        """See :meth:`millrace.ops.operator.Context.call`."""
        arguments: tuple[Sequence[Any], ...] = (chunk.elements,)
        one, count = function.value, len(chunk.elements)
        if function.takes_rng:
            positions = np.asarray(chunk.positions, np.int64)
            arguments = (chunk.elements, list(states(self.key(node, chunk.origin), positions)))
            one = _Randomly(one)
        if self._watch is not None:
            arguments = (*arguments, list(chunk.positions))
            one = self._watched(self._watch, node, label, chunk.origin, one)
        rest = [iter(each) for each in arguments]
        results: list[Any] = []
        skipped: list[int] = []
        while True:
            try:
                results.extend(map(one, *rest))  # one that fails leaves those before it in the list
                failed = len(results) + len(skipped)
                if failed == count:
                    break
                # A StopIteration from the function ends map() quietly; once more, for its traceback.
                one(*[each[failed] for each in arguments])
                error: BaseException = StopIteration("raised by the function")
            except BaseException as raised:  # noqa: BLE001 - raised again, or the pipeline says what becomes of it
                failed, error = len(results) + len(skipped), raised
            try:
                keep, instead = self._failed(node, label, chunk, failed, error)
            except RunStoppedError:
                raise
            except Exception as failure:  # noqa: BLE001 - raised once what was before it has been taken
                gone = set(skipped)
                return [index for index in range(failed) if index not in gone], results, failure
            if keep:
                results.append(instead)
            else:
                skipped.append(failed)
        if not skipped:
            return None, results, None
        gone = set(skipped)
        return [index for index in range(count) if index not in gone], results, None

    def _watched(
        self, watch: CrashProbe, node: int, label: str, origin: Origin, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Wrap ``function`` to take the element's position as one more argument."""

        def call(*arguments: Any) -> Any:
            *others, position = arguments
            with watch.at(node, origin, position, lambda: f"{label} of {self._describe(origin, int(position))}"):
                return function(*others)

        return call

    def guard(self, node: int, label: str, chunk: Chunk, index: int, action: Callable[[], T]) -> tuple[bool, T | None]:
        """See :meth:`millrace.ops.operator.Context.guard`."""
        if self._watch is not None:
            watched = self._watched(self._watch, node, label, chunk.origin, action)
            action = partial(watched, chunk.positions[index])
        try:
            return True, action()
        except BaseException as error:  # noqa: BLE001 - raised again, or the pipeline says what becomes of it
            return self._failed(node, label, chunk, index, error)

    def _failed(self, node: int, label: str, chunk: Chunk, index: int, error: BaseException) -> tuple[bool, Any]:
        """Decide what becomes of element ``index``, of which ``error`` was raised: (kept, value), if not an error."""
        if _is_interrupt(error) or isinstance(error, RunStoppedError):
            raise error
        if isinstance(error, ElementError):  # of a dataset that the function made
            failure = error
        elif isinstance(error, MillraceError):  # the data or the pipeline is at fault, not the element
            self._note(error, label, chunk, index)
            raise error
        else:
            failure = self.error(label, chunk, index, error)
        if node in self._generators and not self.raises:
            raise ElementError(
                f"{failure}. on_error can't go on, as nobody knows what the generator would have given after that: "
                "catch the error in it, and go on there",
                operator=failure.operator,
                where=failure.where,
                user_traceback=failure.user_traceback,
            ) from error
        if self._on_error == "skip":
            self._skips.append(chunk.positions[index])
            return False, None
        if isinstance(self._on_error, Opaque):
            return True, self._instead(self._on_error, failure)
        if failure is error:
            self._note(failure, label, chunk, index)
            raise failure
        raise failure from error

    def key(self, node: int, origin: Origin, seed: int | None = None) -> int:
        """Key of the random numbers of a node over elements of one origin; ``seed`` in place of the job's."""
        begun = self._keys[origin.node] if origin.node >= 0 else -1 - self._keys[-1 - origin.node]
        chosen = self._seed if seed is None else seed
        return derive(chosen, self._epoch, self._keys[node], begun, origin.split, origin.repetition)

    @property
    def raises(self) -> bool:
        """Whether the first element that fails ends the task."""
        return self._on_error is None or self._on_error == "raise"

    def _instead(self, handler: Opaque, failure: ElementError) -> Any:
        try:
            return handler.value(failure)
        except BaseException as error:
            if _is_interrupt(error) or isinstance(error, MillraceError):
                raise
            raise ElementError(
                f"on_error={handler.name} failed on {failure.where}: {type(error).__name__}: {error}",
                operator=f"on_error={handler.name}",
                where=failure.where,
                user_traceback=_traceback(error),
            ) from error

    def _note(self, error: MillraceError, label: str, chunk: Chunk, index: int) -> None:
        error.add_note(f"in {label} of {self._describe(chunk.origin, int(chunk.positions[index]))}")

    def error(self, label: str, chunk: Chunk, index: int, error: BaseException) -> ElementError:
        """Make the error to raise for ``error`` at element ``index``: with operator, origin and user's traceback."""
        where = self._describe(chunk.origin, int(chunk.positions[index]))
        return ElementError(
            f"{label} failed on {where}: {type(error).__name__}: {error}{memory_limit.said(error)}",
            operator=label,
            where=where,
            user_traceback="" if isinstance(error, WorkerEndedError) else _traceback(error),
        )


def _is_interrupt(error: BaseException) -> bool:
    """Whether it is Ctrl-C, which Python raises wherever the main thread is. Any other error is the function's."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, _users_part(error.__traceback__))).rstrip()


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Traceback from the first frame that is not millrace's; all of it if every frame is."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        part = part.tb_next
    return part or trace


class _Randomly:
    """Call of ``function(element, rng=...)`` with one generator, keyed anew for each element (0.5 µs instead of 10)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._bits = np.random.SFC64(0)
        self._generator = np.random.Generator(self._bits)
        self._state: Any = self._bits.state
        self._state["has_uint32"] = 0
        self._state["uinteger"] = 0

    def __call__(self, element: Any, state: Any) -> Any:
        self._state["state"]["state"] = state
        self._bits.state = self._state
        return self._function(element, rng=self._generator)
