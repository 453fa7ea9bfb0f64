"""Invariants of coordinated reads: all ranks get the same rounds in one order, each its own batch, and all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.planning.plan import Plan
from millrace.simulation.pipelines import Output, bare

if TYPE_CHECKING:
    from millrace.simulation.simulated_consumer import SimulatedConsumer

RoundId = tuple[int, int]
"""(task, number within the task)."""


@dataclass
class EpochRounds:
    """Rounds of one epoch of one job.

    Attributes:
        made: by batch, the round and the rank that it is for, as workers made them.
        order: rounds as the first rank that came to them read them.
        places: by client, how many rounds of this order it is past.
        begins: by rank, where a process begins that reads the epoch from saved states.
    """

    made: dict[Output, tuple[RoundId, int]] = field(default_factory=dict)
    order: list[RoundId] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)


class RoundInvariants:
    """Hears of rounds that are made and batches that are read."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[str, int, int], EpochRounds] = {}

    def _of(self, job: str, seed: int, epoch: int) -> EpochRounds:
        return self._epochs.setdefault((job, seed, epoch), EpochRounds())

    def _read_by(self, consumer: SimulatedConsumer, epoch: int) -> EpochRounds:
        """Find the rounds as the ranks of a job read them; in a window each member reads others."""
        assert consumer.joined is not None
        job, spec = consumer.joined.job, consumer.spec
        member = f" {consumer.joined.consumer // spec.together}" if spec.sharing == "window" else ""
        return self._of(job + member, consumer.joined.seed, epoch)

    def read(self, consumer: SimulatedConsumer, epoch: int) -> tuple[set[RoundId], set[RoundId]]:
        """Return the rounds that a rank's job has read so far, and all that were made."""
        assert consumer.joined is not None
        made = self._of(consumer.joined.job, consumer.joined.seed, epoch).made
        return set(self._read_by(consumer, epoch).order), {which for which, _ in made.values()}

    def made(self, job: str, seed: int, epoch: int, which: RoundId, batches: Sequence[Output]) -> None:
        """Note a round that a worker puts out, perhaps once more."""
        rounds = self._of(job, seed, epoch)
        for rank, batch in enumerate(batches):
            rounds.made[_bare(batch)] = which, rank

    def yielded(self, consumer: SimulatedConsumer, epoch: int, batches: Sequence[Output], plan: Plan) -> str:
        """Say what is wrong with batches that a rank's user gets, of tasks of a plan; empty: nothing is."""
        assert consumer.joined is not None
        spec, rank, job = consumer.spec, consumer.consumer, consumer.joined.job
        made, rounds = self._of(job, consumer.joined.seed, epoch).made, self._read_by(consumer, epoch)
        for batch in batches:
            which, owner = made[_bare(batch)]
            where = f"round {which} of epoch {epoch} of job {job}"
            if owner != rank:
                return f"{consumer.name} got rank {owner}'s batch of {where}"
            place = rounds.places.get(consumer.client, rounds.begins.get(rank, 0))
            if place == len(rounds.order):
                wrong = _wrong_turn(rounds.order, which, spec.cycle_length, plan)
                if wrong:
                    return f"{where} was read {wrong}"
                rounds.order.append(which)
            elif place > len(rounds.order) or rounds.order[place] != which:
                return f"{consumer.name} read {where}, and others {rounds.order[place : place + 1]} there"
            rounds.places[consumer.client] = place + 1
        return ""

    def ended(self, consumer: SimulatedConsumer, epoch: int, *, whole: bool) -> str:
        """Say what a rank that has come to the epoch's end lacks of its rounds, ``whole``: of those that were made."""
        assert consumer.joined is not None
        rounds = self._read_by(consumer, epoch)
        place = rounds.places.get(consumer.client, rounds.begins.get(consumer.consumer, 0))
        where = f"{consumer.name} ends epoch {epoch} after {place} rounds"
        if place != len(rounds.order):
            return f"{where}, and others have had {len(rounds.order)}"
        left = {which for which, _ in rounds.made.values()} - set(rounds.order)
        return f"{where}, and has not read {sorted(left)}" if left and whole else ""

    def elements(self, job: str, seed: int, epoch: int) -> set[int]:
        """Return all elements that are in rounds of an epoch: whoever has come to its end has had its part of them."""
        return {element for batch in self._of(job, seed, epoch).made for element in batch}

    def saved(self, ranks: Sequence[SimulatedConsumer], epoch: int) -> None:
        """Note that all ranks have saved their states."""
        assert ranks[0].joined is not None
        rounds = self._of(ranks[0].spec.name, ranks[0].joined.seed, epoch)
        places = {each.consumer: rounds.places.get(each.client) for each in ranks}
        rounds.begins |= {rank: place for rank, place in places.items() if place is not None}


def _wrong_turn(order: Sequence[RoundId], which: RoundId, slots: int, plan: Plan) -> str:
    """Say where a round was read, if not in the order of its slot, or if another slot has had two rounds meanwhile.

    A slot is left out, however, while a tail is next there that waits for others.
    """
    task, _ = which
    first, since, twice = task % slots, set[int](), -1
    for before in reversed(order):
        slot = before[0] % slots
        if slot == task % slots:
            if before >= which:
                return f"after {before}"
            first = before[0] + slots
            break
        twice = slot if slot in since else twice
        since.add(slot)
    left_out = any(plan.task(each).inputs for each in range(first, task + 1, slots))
    return f"after two of slot {twice}" if twice >= 0 and not left_out else ""


def _bare(batch: Output) -> Output:
    return tuple(bare(element) for element in batch)
