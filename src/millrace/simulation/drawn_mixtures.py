"""Which jobs of a schedule read a mixture whose weights their trainings set, and when they do."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from millrace.planning.epoch_shape import WeightChange
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.weight_messages import WeightsSet
from millrace.simulation.pipelines import SimulatedPipeline, mixture
from millrace.simulation.virtual_network import Violation

if TYPE_CHECKING:
    from millrace.simulation.simulated_consumer import SimulatedConsumer

MIXED = 0.2
"""Share of the schedules that have such jobs."""
EQUAL = 0.5
"""Share of the jobs with a mixture whose ranks get equally many elements, so that they are saved and loaded."""
SET = 0.12
"""Share of the steps behind which a training sets weights."""


class DrawnMixtures:
    """Draws jobs that read a mixture, and the weights that their trainings set.

    Args:
        seed: of the schedule.
        fired: counts what has happened.
    """

    def __init__(self, seed: int, fired: Counter[str]) -> None:
        self._rng = random.Random(f"mixtures {seed}")
        self._some = self._rng.random() < MIXED
        self._fired, self._set = fired, 0

    def draw(self, spec: JobSpec, pipelines: dict[bytes, SimulatedPipeline]) -> JobSpec:
        """Make a job one that reads a mixture, or leave it as it is.

        Args:
            spec: of the job.
            pipelines: by structure; gets the one that the job reads then.
        """
        able = spec.visitation == "exactly_once" and spec.num_consumers is not None and spec.sharding != "off"
        if not (self._some and able) or spec.coordinated or pipelines[spec.structure].files is not None:
            return spec
        mixed = pipelines[mixture().structure] = mixture()
        equal = spec.equal_steps or self._rng.random() < EQUAL
        return msgspec.structs.replace(spec, structure=mixed.structure, tasks=mixed.tasks, equal_steps=equal)

    def next(self, consumer: SimulatedConsumer) -> tuple[float, float] | None:
        """Draw whether a training sets weights now, which are others each time; None: it does not."""
        mixed = self._some and consumer.spec.structure == mixture().structure
        if not mixed or consumer.core.weights.pending is not None or self._rng.random() >= SET:
            return None
        self._set += 1
        return float(self._set), 1.0

    def answered(self, consumer: SimulatedConsumer, told: WeightsSet) -> None:
        """Check that who has set weights has them in its states, from the element on that it was told."""
        self._fired["weights refused" if told.refused else "weights set"] += 1
        reading = consumer.core.reading
        if told.refused or reading is None or reading.begun is None or reading.number != told.epoch:
            return
        known = {each.element for each in reading.begun.reweighted}
        if told.element not in known:
            raise Violation(f"{consumer.name} was told that weights hold from element {told.element} on, not {known}")


def weights_at(changes: tuple[WeightChange, ...], element: int) -> int:
    """Return what stands for the weights by which an element of a mixture was drawn; 0: those it was written with."""
    last = [change for change in changes if change.element <= element]
    return int(last[-1].weights[0]) if last else 0
