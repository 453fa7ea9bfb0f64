"""Placement: whether a job with local workers, inside the training host, uses those of the service as well. Pure.

tf.data service (4.2) advises against disaggregation where the link to the workers is slower than computing at home:
there it is one or the other. Here both feed one consumer, and what they give adds up, so a link counts by what it adds.
Workers of the service are worth it if all that they bring is at least half of what one local worker does, as half of
perfect scaling is what any further worker has to bring (:mod:`millrace.policies.scaling.autoscale`). They are blamed
for less only if it is the link that holds elements back: the consumer waits, and computed ones lie at the other end.
"""

from __future__ import annotations

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.figures import number, rounded
from millrace.policies.scaling.autoscale import SCALES

AGAIN_S = 600.0
"""Seconds after which a job that has stayed at home and still waits looks whether the link has become better."""
WAITS = 0.1
"""Share of its time below which a waiting consumer needs nothing."""
BACKLOG_S = 1.0
"""Seconds that ready elements would take to come, from which the link holds elements back."""


class WorkerSide(msgspec.Struct, frozen=True):
    """Elements that came to the job's consumers from one kind of workers.

    Attributes:
        workers: number of them.
        elements_s: elements a second, all consumers together.
        bytes_s: bytes a second.
    """

    workers: int
    elements_s: float
    bytes_s: float


def stay_home(local: WorkerSide, remote: WorkerSide, ready: int, waits: float) -> Decision[bool]:
    """Decide whether the job is to use its local workers alone from now on.

    Args:
        local: workers inside the training host.
        remote: those of the service, both of them over the same time.
        ready: bytes that lie computed at remote workers.
        waits: share of the time in which the consumers wait, from 0 to 1.
    """
    inputs = {
        "local_elements_s": local.elements_s,
        "remote_elements_s": remote.elements_s,
        "remote_bytes_s": remote.bytes_s,
        "ready_bytes": ready,
        "waits": waits,
    }
    if not (local.workers and remote.workers and local.elements_s > 0):
        return Decision(False, "there is nothing to compare", inputs)
    if waits < WAITS:
        return Decision(False, f"the consumer waits {rounded(waits)} of the time", inputs)
    one = local.elements_s / local.workers
    rates = f"{number(remote.elements_s)} elements a second ({remote.bytes_s / 1e6:,.1f} MB/s)"
    if remote.elements_s >= SCALES * one:
        return Decision(False, f"remote workers bring {rates}, a local one makes {number(one)}", inputs)
    if ready < BACKLOG_S * remote.bytes_s or not ready:
        return Decision(False, f"remote workers bring {rates}, and have no more: it is not the link", inputs)
    reason = (
        f"the link from remote workers brings {rates} and {ready / 1e6:,.0f} MB more wait for it, while each local "
        f"worker makes {number(one)} elements a second: remote workers add too little, and are not used"
    )
    return Decision(True, reason, inputs)
