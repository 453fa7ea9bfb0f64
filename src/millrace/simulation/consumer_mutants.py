"""Bugs of a consumer's core, to be planted like :mod:`millrace.simulation.mutants`."""

from __future__ import annotations

from typing import Any

from millrace.client import consumer_io as io
from millrace.client.consumer_core import ConsumerCore
from millrace.client.consumer_progress import EpochProgress
from millrace.client.credit import CreditPool
from millrace.client.epoch_buffer import EpochBuffer
from millrace.protocol import messages as msg
from millrace.simulation.planting import MutantList, always

CONSUMER_MUTANTS = MutantList()
_is, _replaces, _always = CONSUMER_MUTANTS.add, CONSUMER_MUTANTS.replaces, always

_accept, _holds, _hand_out = EpochBuffer.accept, EpochBuffer.holds, EpochProgress.hand_out
_report, _let_in, _ask = ConsumerCore._report, ConsumerCore._let_in, ConsumerCore._ask  # noqa: SLF001

_is(
    "hasty-receipt",
    "A consumer says that it has all of a task when it has the first outputs.",
    EpochBuffer,
    "holds",
    lambda self, task: (_holds(self, task)[0], True),
)
_is(
    "lost-credit",
    "What a consumer has used takes room in its buffer for ever, and nothing is let in beyond that.",
    CreditPool,
    "used",
    _always({}),
    (CreditPool, "force", _always({})),
)
_is(
    "forgotten-loss",
    "A consumer whose connection to a worker broke waits for what was to come from it.",
    ConsumerCore,
    "_disconnected",
    _always(None),
)
_is(
    "overrun",
    "A consumer uses what it has, how much others have or not.",
    EpochProgress,
    "hand_out",
    lambda self, limit, *times: _hand_out(self, None, *times),
)
_is(
    "closed-door",
    "What is larger than a worker's share of a consumer's buffer is not let in, though its user waits for that.",
    CreditPool,
    "force",
    _always({}),
)


@_replaces("lost-ack", "A consumer that comes back does not say again what it has.", ConsumerCore, "_report")
def _forgetful_report(self: ConsumerCore, now: float, *, everything: bool = False) -> None:
    if not everything:
        _report(self, now)


@_replaces("stale-delivery", "A consumer takes what comes, whether it has it or not.", EpochBuffer, "accept")
def _trusting(self: EpochBuffer, task: int, index: int, *args: Any, **options: Any) -> bool:
    inbox = self._tasks.get(task)
    if inbox is not None and index < inbox.held:
        inbox.held = index
    return _accept(self, task, index, *args, **options)


@_replaces(
    "wrong-epoch",
    "A consumer that comes back says what it read of the epoch before as if that were the one it reads.",
    ConsumerCore,
    "_let_in",
)
def _confused(self: ConsumerCore, joined: msg.JobJoined, now: float) -> None:
    _let_in(self, joined, now)
    if self.inbox is not None:
        self._tell(msg.ConsumerReport(self.inbox.number, self._left[1]))


@_replaces("impatient", "A consumer gets the error before what had come before it.", ConsumerCore, "_ask")
def _impatient(self: ConsumerCore, item: io.MoreWanted, now: float) -> None:
    if self.failure is None:
        _ask(self, item, now)
    else:
        self.actions.append(io.Refuse(self.failure))


@_replaces("mute-end", "A consumer is told what nobody reads of an epoch, and its user is not.", ConsumerCore, "_over")
def _mute(self: ConsumerCore, ask: io.MoreWanted, reading: EpochProgress) -> None:
    reading.end(ask.since)
    self.actions.append(io.Over())
