"""Sampler agreement: where a user's own sampler says which elements there are, all workers have to draw the same.

Each says as a task begins what it has drawn, as a hash of all positions of the epoch; what was heard first is kept.
"""

from __future__ import annotations

from millrace.control.journal.epoch_events import SamplersDrawn
from millrace.control.journal.transaction import Transaction
from millrace.control.membership.jobs import fail_job
from millrace.control.state.state import Job
from millrace.graph.nodes import Sample
from millrace.graph.serialize import unpack
from millrace.protocol.messages import Failure
from millrace.protocol.sampler_messages import SamplersDrew


def heard(tx: Transaction, worker: str, message: SamplersDrew) -> None:
    """Keep what a worker's samplers have drawn, or fail the job if others' have drawn something else."""
    job = tx.state.jobs.get(message.job)
    if job is None or job.failure is not None or job.name not in tx.state.workers[worker].open:
        return
    epoch = job.epochs.get(message.epoch)
    if epoch is None:
        return
    if any(epoch.drawn.get(key, drawn) != drawn for key, drawn in message.drawn.items()):
        fail_job(tx, job, _disagreement(job, message.epoch))
    elif new := {key: drawn for key, drawn in message.drawn.items() if key not in epoch.drawn}:
        tx.emit(SamplersDrawn(job.name, message.epoch, new))


def _disagreement(job: Job, epoch: int) -> Failure:
    samplers = [str(node) for node in unpack(job.spec.structure).nodes if isinstance(node, Sample)]
    return Failure(
        "PipelineError",
        f"two workers drew different elements for epoch {epoch} with {' and '.join(samplers)}: some elements would be"
        " lost, and others come twice. A sampler's positions() must depend on size, seed and epoch alone, not on a"
        " generator without a seed, the time, or the order of a set",
    )
