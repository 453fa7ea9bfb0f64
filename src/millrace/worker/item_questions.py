"""Item questions: those that a worker has asked one cache server, and what becomes of each answer. Pure."""

from __future__ import annotations

import enum
from typing import Final, Generic, Literal, TypeVar

from millrace.errors import ProtocolError
from millrace.protocol import source_cache_messages as msg

W = TypeVar("W")

FETCH: Final = "fetch"
ItemAnswer = bytes | Literal["fetch"] | None
"""The item; or that it is to be fetched, for all who wait; None: the server can't be asked."""


class NextStep(enum.Enum):
    """Step after an answer: the bytes are there, or are read from the store, to be inserted or not."""

    USE = enum.auto()
    FETCH = enum.auto()
    FETCH_FOR_ALL = enum.auto()


def next_step(answer: ItemAnswer, size: int) -> NextStep:
    """Choose what comes after the answer to a question for an item of so many bytes."""
    if isinstance(answer, bytes):
        return NextStep.USE if len(answer) == size else NextStep.FETCH
    return NextStep.FETCH if answer is None else NextStep.FETCH_FOR_ALL


class ItemQuestions(Generic[W]):
    """Questions of one connection to a cache server. Not thread-safe.

    Args:
        silent_s: seconds after which a server is taken to hang that owes an answer and says nothing, or takes in
            nothing of what it is sent.
        least_rate: bytes a second at which a server that lives sends an item, or takes one in.
    """

    def __init__(self, silent_s: float, least_rate: float) -> None:
        self._silent_s, self._least_rate = silent_s, least_rate
        self._sending = False
        self._asked: dict[int, W] = {}
        self._number = 0
        self._heard = 0.0

    @property
    def owed(self) -> bool:
        """Whether an answer is owed."""
        return bool(self._asked)

    def ask(self, waiter: W, now: float) -> int:
        """Take in a question of one who waits for the answer, and number it."""
        self._number += 1
        if not (self._asked or self._sending):
            self._heard = now
        self._asked[self._number] = waiter
        return self._number

    def forget(self, number: int) -> bool:
        """Wait no more for an answer; False: it has come."""
        return self._asked.pop(number, None) is not None

    def sends(self, size: int, now: float) -> None:
        """Note that an item of so many bytes begins to be sent."""
        self._sending = True
        self.moves(size, now)

    def sent(self) -> None:
        """Note that the item was sent."""
        self._sending = False

    def moves(self, size: int, now: float) -> None:
        """Note that an item of so many bytes is on its way, during which the server may say nothing else."""
        self._heard = max(self._heard, now + size / self._least_rate)

    def is_silent(self, now: float) -> bool:
        """Whether the server has said nothing, and taken nothing in, for too long."""
        return (self.owed or self._sending) and now - self._heard > self._silent_s

    def heard(self, header: msg.CacheAnswer, payload: memoryview, now: float) -> list[tuple[W, ItemAnswer]]:
        """Take in what the server says; return who has waited for it, and with which answer.

        Raises:
            ProtocolError: its sizes are not those of the payload.
        """
        self._heard = max(self._heard, now) if self._sending else now
        found: list[tuple[W, ItemAnswer]] = []
        match header:
            case msg.FetchItems(numbers=numbers):
                found += [(self._asked.pop(number), FETCH) for number in numbers if number in self._asked]
            case msg.FoundItems(numbers=numbers, sizes=sizes):
                if len(numbers) != len(sizes) or sum(sizes) > payload.nbytes or any(size < 0 for size in sizes):
                    raise ProtocolError(f"{len(numbers)} items came with {payload.nbytes} bytes")
                at = 0
                for number, size in zip(numbers, sizes, strict=True):
                    if number in self._asked:
                        found.append((self._asked.pop(number), bytes(payload[at : at + size])))
                    at += size
        return found

    def end(self) -> list[W]:
        """End with the connection; return those who have no answer."""
        waiting, self._asked = list(self._asked.values()), {}
        return waiting
