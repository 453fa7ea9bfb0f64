"""Shape of an epoch: what fixes it besides the pipeline, its data, the seed and the epoch's number.

Events, messages, checkpoints and leases that tell of an epoch are subclasses, so that these fields lie among their own
in whatever is sent or kept, and a field that is added here is in all of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.planning.plan import Piece


class WeightChange(msgspec.Struct, frozen=True, array_like=True):
    """Weights of a mixture that the training loop has set.

    Attributes:
        node: number of the mixture's node.
        element: number of the mixture's element in the epoch from which on they hold.
        weights: one for each of the mixture's inputs.
        replaced: number of changes from the same element on that were made before it, and do not count any more.
    """

    node: int
    element: int
    weights: tuple[float, ...]
    replaced: int = 0


class RunShape(msgspec.Struct, frozen=True, kw_only=True):
    """Part of an epoch's shape that each run of one of its tasks has to know.

    Attributes:
        reused: a cache point below which all is as in the first epoch; -1: none.
        chunks: the shuffle of the data takes so many parts of them one after the other, each in an order of its own
            (:mod:`millrace.planning.chunks`); 0: all of them as one.
        reweighted: weights of a mixture that were set while the epoch was read, in the order in which they were
            (:mod:`millrace.planning.weight_changes`); empty: none.
    """

    reused: int = -1
    chunks: int = 0
    reweighted: tuple[WeightChange, ...] = ()

    def for_runs(self) -> dict[str, Any]:
        """Fields of this class, to make a lease with."""
        return {name: getattr(self, name) for name in RunShape.__struct_fields__}


FRESH = RunShape()
"""Shape of runs in whose epoch nothing is as in the first one."""


class EpochShape(RunShape, frozen=True, kw_only=True):
    """Shape of an epoch: what fixes its elements, and how they are cut into tasks.

    Attributes:
        shares: the tasks are those of a plan that divides the epoch equally among so many ranks; 0: of a plan for any
            number. It follows from the job, so that journals leave it out.
        pieces: what that plan divides; empty: the whole epoch.
    """

    shares: int = 0
    pieces: list[Piece] = []

    def fields(self) -> dict[str, Any]:
        """Fields of this class, to make something with that tells of the epoch."""
        return {name: getattr(self, name) for name in EpochShape.__struct_fields__}
