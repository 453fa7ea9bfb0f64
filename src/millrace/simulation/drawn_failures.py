"""Tasks that fail, and what must have come before the error; repeats without end of what gives nothing, or little."""

from __future__ import annotations

import random
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from millrace.planning.plan import Plan, Task
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec
from millrace.simulation.pipelines import Output, SimulatedPipeline, bare, barren
from millrace.simulation.virtual_network import Violation

OF_THE_DATA = {"ElementError", "ElementTooLargeError"}
"""Failures that come again however often the training is begun anew."""
BARREN = 0.06
"""Share of the jobs without a cache that repeat without end what gives nothing, or hardly anything."""
UNEVEN = 0.15
"""Share of the jobs with two ranks that are to get equally many elements of tasks of which one's give far more."""
FAIL, FAIL_IN_ORDER = 0.08, 0.45
"""Share of the jobs of which tasks fail, and of those that are read in a fixed order."""
FAILING = 3
"""Tasks of a job that fail, at most."""
BEFORE = (0, 0, 0, 1, 2, 4)
"""Outputs that a task gives before it fails, as likely as they are here: at once is when others are still behind."""


class FailedError(Exception):
    """The task fails wherever it runs."""

    def __init__(self, failure: msg.Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class OversizedError(Exception):
    """The output of a task is larger than the worker's buffer.

    Attributes:
        needs: buffer of a worker that can run it.
    """

    def __init__(self, needs: int) -> None:
        super().__init__(f"an output has {needs} bytes")
        self.needs = needs


class DrawnFailures:
    """Tasks that fail in a schedule.

    Args:
        seed: of the schedule.
    """

    def __init__(self, seed: int) -> None:
        self.job = ""
        """The job of which tasks fail, empty if none do."""
        self._tasks: dict[int, int] = {}
        self._rng = random.Random(f"failing {seed}")
        self._uneven = random.Random(f"uneven ranks {seed}")

    def fails(self, spec: JobSpec) -> bool:
        """Whether it is in this job that tasks fail."""
        return not self.job and self._rng.random() < (FAIL_IN_ORDER if spec.deterministic else FAIL)

    def draw(self, job: str, length: int) -> None:
        """Draw which tasks of a job fail."""
        some = [self._rng.randrange(length) for _ in range(self._rng.randrange(1, FAILING + 1))]
        self.job, self._tasks = job, {each: self._rng.choice(BEFORE) for each in some}

    def after(self, ref: msg.TaskRef) -> int | None:
        """Return the number of outputs after which a task fails; None: it does not."""
        return self._tasks.get(ref.task) if ref.job == self.job else None

    def instead(self, pipeline: SimulatedPipeline) -> SimulatedPipeline:
        """Return the pipeline that a job has in the place of one without a cache."""
        return self._rng.choice(barren()) if not pipeline.cached and self._rng.random() < BARREN else pipeline

    def uneven(self, ranks: int) -> bool:
        """Draw whether tasks of one of so many ranks give far more than the other's."""
        return ranks == 2 and self._uneven.random() < UNEVEN


def failure_of(ref: msg.TaskRef, outputs: int) -> msg.Failure:
    """Why a job fails of a task that had given so many outputs."""
    return msg.Failure("ElementError", f"{ref} fails", where=f"{ref.epoch} {ref.task} {outputs}")


def check_before(
    failure: msg.Failure,
    pipeline: SimulatedPipeline,
    plan: Plan,
    spec: JobSpec,
    consumer: int,
    epoch: int,
    came: AbstractSet[int],
    dropped: AbstractSet[int],
) -> None:
    """Check that a consumer which gets an error has had what comes before it.

    Args:
        failure: of :func:`failure_of`, in a task of the consumer.
        pipeline: of the job.
        plan: of the epoch that the consumer reads.
        spec: of the job.
        consumer: its index.
        epoch: that it reads.
        came: elements of that epoch that came.
        dropped: tasks of it that were of a former process in the consumer's place, and nobody's since.
    """
    number, task, outputs = map(int, failure.where.split())
    if number > epoch:
        raise Violation(f"consumer {consumer} of job {spec.name} reads epoch {epoch}, and failed of epoch {number}")
    first = consumer if spec.deterministic else task
    absent: list[Output] = []
    before = range(first, task + 1, spec.num_consumers or 1) if number == epoch else range(0)
    for each in set(before) - dropped:
        given = list(_given(pipeline, plan.task(each)))
        absent += [
            output for output in (given[:outputs] if each == task else given) if not {*map(bare, output)} <= came
        ]
    if absent:
        raise Violation(f"task {task} of epoch {epoch} of job {spec.name} failed, and before it {absent} did not come")


def _given(pipeline: SimulatedPipeline, task: Task) -> Iterator[Output]:
    """Return the outputs of a task; none of a tail, which depend on what others have left."""
    if not task.inputs:
        yield from pipeline.put_out(task, pipeline.born_in(task))[0]
