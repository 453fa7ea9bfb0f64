"""The run of a task under virtual time: what the engine and user code do, and ask the worker's core, as a generator.

An output takes a byte of the outbox.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from millrace.engine.user_code.crash_probe import BEGINNING, between
from millrace.planning.plan import Task
from millrace.protocol import messages as msg
from millrace.simulation.drawn_failures import FailedError, OversizedError, failure_of
from millrace.simulation.drawn_mixtures import weights_at
from millrace.simulation.item_reads import ItemsRead
from millrace.simulation.pipelines import Output, SimulatedPipeline, bare, unit_of, with_values
from millrace.simulation.simulated_cache import SimulatedCacheUse
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_inputs as inp
from millrace.worker.core.run_state import PROBED
from millrace.worker.core.worker_inputs import OutputMessage, Share
from millrace.worker.leftovers import LeftoversMissingError

if TYPE_CHECKING:
    from millrace.simulation.simulated_worker import SimulatedWorker

T = TypeVar("T")


@dataclass(eq=False)
class Fetch:
    """A question to another worker: ``over`` once it has answered all, or will not."""

    lane: int
    refs: list[msg.TaskRef]
    found: dict[msg.TaskRef, list[int] | None] = field(default_factory=dict)
    over: bool = False


Waits = float | inp.Want | Fetch | ItemsRead
"""Seconds that pass, a question to the core, one to other workers, or stored files that are read."""
Steps = Generator[Waits, act.Verdict | None, T]


class HaltedError(Exception):
    """The core has told the run to stop."""


class SimulatedRun:
    """One run.

    Args:
        worker: that runs it.
        lane: number of the lane that runs it.
        lease: what is run.

    Attributes:
        using: what the run has of a cache.
    """

    def __init__(self, worker: SimulatedWorker, lane: int, lease: msg.LeaseTask) -> None:
        self.lane = lane
        self.using: SimulatedCacheUse | None = None
        self._worker = worker
        self._lease = lease
        self._job = worker.core.jobs[lease.ref.job]  # which may be closed while the run has not heard of it
        self._steps = 0

    def steps(self) -> Steps[inp.RunEnded]:
        """Take the course of the run, up to what the core is told at its end."""
        outcome: inp.RunFinished | inp.RunFailed | inp.Missing | inp.Stopped
        try:
            outcome = yield from self._run()
        except HaltedError:
            outcome = inp.Stopped()
        except FailedError as error:
            outcome = inp.RunFailed(error.failure)
        except LeftoversMissingError as error:
            outcome = inp.Missing(error.tasks)
        except OversizedError as error:
            outcome = inp.RunFailed(msg.Failure("ElementTooLargeError", str(error), needs=error.needs))
        return inp.RunEnded(self.lane, outcome, self.using.told() if self.using is not None else ())

    def _ask(self, want: inp.Want) -> Steps[act.Verdict]:
        verdict = yield want
        assert verdict is not None
        if isinstance(verdict, act.Halt):
            raise HaltedError
        return verdict

    def _run(self) -> Steps[inp.RunFinished]:
        worker, lease, ref = self._worker, self._lease, self._lease.ref
        rng = worker.network.rng
        yield from self._ask(inp.Enter())
        if lease.probe_level:
            yield from self._ask(inp.Announce(BEGINNING, "beginning"))
        first = max(lease.received - 1, 0)
        yield from self._ask(inp.BeginOutputs(first))
        yield rng.uniform(0.0, 0.05)
        yield from self._ask(inp.Step())
        assert self._job.tables, "a task was leased before the sources were listed"
        pipeline = worker.cluster.pipelines[self._job.spec.structure]
        task = (
            Task(ref.task, lease.parts[0].start, lease.parts[0].stop, parts=tuple(lease.parts))
            if lease.parts
            else pipeline.plan_for(self._job.spec, lease.chunks).task(ref.task if lease.run < 0 else lease.run)
        )
        if lease.flush:
            task = msgspec.structs.replace(task, parent=-1)
        left = (yield from self._gather()) if lease.holders else []
        yield from self._read_files(pipeline, task)
        units, elements = yield from self._read(pipeline, task)
        outputs, leaves = pipeline.put_out(task, left if task.inputs else elements)
        count_of_units = len(pipeline.units_of(task))
        share = len(units) / max(1, count_of_units)
        computed, index = 0.0, 0
        fails = worker.cluster.failing.after(ref)
        if fails is not None:
            fails = min(fails, len(outputs) - 1)  # one that gives nothing does not fail
        while index < len(outputs):
            count = min(rng.randrange(1, 4), len(outputs) - index)
            step = worker.speed * rng.uniform(0.05, 0.4) * count * (share if self.using is not None else 1.0)
            computed += step
            yield from self._come_to(outputs[index : index + count])
            yield step
            yield from self._ask(inp.Step())
            self._keep(pipeline, units, len(units) * (index + count) // len(outputs))
            if fails is not None and fails < index + count:
                count = fails - index
            yield from self._put_too_much(index)
            skip = max(min(first - index, count), 0)
            if lease.received >= 0 and skip < count:
                yield from self._put(index + skip, outputs[index + skip : index + count])
            index += count
            if index == fails:
                worker.cluster.fired["task failed"] += 1
                raise FailedError(failure_of(ref, index))
        yield from self._come_to([tuple(leaves)])
        yield from self._ask(inp.Step())
        self._keep(pipeline, units, len(units))
        if self.using is not None:
            self.using.finish()
        worker.measured(ref.job, count_of_units, len(outputs), computed)
        nothing = pipeline.plan.cycle > 0 and not (outputs or leaves)
        left_out = len(left if task.inputs else elements) - len(leaves) - sum(map(len, outputs))
        return inp.RunFinished(
            len(outputs),
            nothing=nothing,
            leftovers=list(leaves) if task.parent >= 0 and leaves else None,
            left_out=left_out,
        )

    def _read_files(self, pipeline: SimulatedPipeline, task: Task) -> Steps[None]:
        """Read the stored files of the task, by way of cache servers."""
        if pipeline.files is None:
            return
        lease, job = self._lease, self._job
        positions = pipeline.positions_of(task, job.seed, lease.ref.epoch, lease.chunks)
        entries = [pipeline.files.entries[item] for item in pipeline.files.items(positions)]
        label = pipeline.labels(lease.chunks)
        self._worker.cluster.sources.invariants.reads(pipeline, self._job.spec, lease, task, entries, label)
        read = self._worker.item_reads.read(self.lane, lease.ref.job, entries, label)
        if not read.over:
            yield read
        yield from self._ask(inp.Step())

    def _read(self, pipeline: SimulatedPipeline, task: Task) -> Steps[tuple[list[int], list[int]]]:
        """(units that are still to be made, elements of the task) once what is kept was read."""
        lease = self._lease
        epoch = pipeline.epoch_of_values(lease.ref.epoch, lease.reused)
        poison = {each.place[4] for each in lease.poison}
        values: dict[int, int] = {}
        units = pipeline.units_of(task)
        if lease.cache is not None:
            self.using = SimulatedCacheUse(self._worker.known_blocks, lease, self._worker.invariants)
            for unit in units:
                found = self.using.read(unit)
                if found is not None:
                    values[unit] = found
                    yield self._worker.network.rng.uniform(0.0, 0.02)
                    yield from self._ask(inp.Step())
        born = [element for element in pipeline.born_in(task) if element not in poison]
        if pipeline.mixed:
            elements = [with_values(each, weights_at(lease.reweighted, unit_of(each))) for each in born]
        else:
            elements = [with_values(element, values.get(unit_of(element), epoch)) for element in born]
        return [unit for unit in units if unit not in values], elements

    def _keep(self, pipeline: SimulatedPipeline, units: list[int], upto: int) -> None:
        """Keep these units, of which so many were made by now."""
        if self.using is not None:
            for unit in units[self.using.count : upto]:
                self.using.made(unit, pipeline.epoch_of_values(self._lease.ref.epoch, self._lease.reused))

    def _gather(self) -> Steps[list[int]]:
        lease = self._lease
        by_address: dict[str, list[int]] = {}
        for task, address in lease.holders:
            by_address.setdefault(address, []).append(task)
        found: dict[int, list[int]] = {}
        for address, tasks in by_address.items():
            refs = {msg.TaskRef(lease.ref.job, lease.ref.epoch, task): task for task in tasks}
            fetch = self._worker.fetch(address, list(refs), self.lane)
            if not fetch.over:
                yield fetch
            found.update((refs[ref], elements) for ref, elements in fetch.found.items() if elements is not None)
        missing = sorted({task for task, _ in lease.holders} - found.keys())
        if missing:
            raise LeftoversMissingError(missing)
        yield from self._ask(inp.Step())
        return [element for task in sorted(found) for element in found[task]]

    def _put(self, index: int, outputs: list[Output]) -> Steps[None]:
        pipeline, ref = self._worker.cluster.pipelines[self._job.spec.structure], self._lease.ref
        if pipeline.together:
            for number, output in enumerate(outputs, index):
                batches = pipeline.batches(output)
                made = self._worker.invariants.rounds.made
                made(ref.job, self._job.seed, ref.epoch, (ref.task, number), batches)
                message = OutputMessage.of_round(number, tuple(Share([batch], 1) for batch in batches))
                yield from self._ask(inp.Put(message, between(number, self._steps), "between two steps"))
            return
        size = len(outputs)
        message = OutputMessage(index, size, list(outputs), size)
        yield from self._ask(inp.Put(message, between(index, self._steps), "between two steps"))

    def _put_too_much(self, index: int) -> Steps[None]:
        """Put out what is larger than all that this worker may keep, if the task has such an output."""
        needs = self._worker.cluster.needs(self._lease.ref)
        if needs > self._worker.buffer:
            verdict = yield from self._ask(inp.Put(OutputMessage(index, 1, [], needs)))
            assert isinstance(verdict, act.TooLarge)
            self._worker.cluster.fired["output too large"] += 1
            raise OversizedError(needs)

    def _come_to(self, outputs: list[Output]) -> Steps[None]:
        """Come to elements, one of which may end the process."""
        if self._lease.holders:
            return  # others have dealt with them
        for element in [bare(element) for output in outputs for element in output]:
            if self._lease.probe_level >= PROBED:
                self._steps += 1
                yield from self._ask(inp.Announce((1, 0, 0, 0, element, 0), f"element {element}"))
            if self._worker.cluster.deadly(self._lease.ref.job, element):
                self._worker.end_badly()
                yield 0.0
