"""Index of who serves what: derived from the state, so that it need not be worked out for each decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.control.state.state import Job, Worker


class ServingIndex:
    """Workers by job, looked up for many decisions before they change.

    Attributes:
        workers: those of the service that can be given something, by id.
        empty_handed: those of them that run nothing, by id, in no order.
        by_job: those of them that serve each job ("": none).
        local: by job, workers that are local to it and can be given something; ``locals``: how many there are, those
            included whose sessions broke a moment ago.
        open_to_several: workers that some job which they no longer serve is still open at.
        draining: workers that wait to be told that they can go.
        sharded: jobs whose sharding fixes which worker runs what.
    """

    DERIVED = ("empty_handed", "by_job", "local", "locals", "open_to_several", "draining", "sharded", "workers")

    __slots__ = ("_servers", "_with_room", *DERIVED)

    def __init__(self, jobs: Mapping[str, Job], workers: Mapping[str, Worker]) -> None:
        there = [workers[name] for name in sorted(workers)]
        self.draining = [worker for worker in there if worker.draining and not worker.released]
        self.workers = [worker for worker in there if _is_there(worker) and not worker.pinned_job]
        self.empty_handed = {worker.id: worker for worker in self.workers if not worker.unfinished}
        able = [worker for worker in there if worker.pinned_job not in jobs or fits(jobs[worker.pinned_job], worker)]
        self.locals = Counter(worker.pinned_job for worker in able if worker.pinned_job and not worker.draining)
        self.local: dict[str, list[Worker]] = {}
        for worker in able:
            if worker.pinned_job and _is_there(worker):
                self.local.setdefault(worker.pinned_job, []).append(worker)
        self.open_to_several = [worker for worker in self.workers if len(worker.open) > 1]
        self.by_job: dict[str, list[Worker]] = {}
        for worker in self.workers:
            self.by_job.setdefault(worker.job, []).append(worker)
        self.sharded = [name for name, job in jobs.items() if job.spec.statically_owned]
        self._servers = {worker.id for worker in able if _is_there(worker)}
        self._with_room: dict[str, dict[str, Worker]] = {}

    def serving(self, job: str) -> list[Worker]:
        """Workers that serve the job and can be given something, local ones first."""
        return [*self.local.get(job, ()), *self.by_job.get(job, ())]

    def perhaps_with_room(self, job: str) -> dict[str, Worker]:
        """Workers that serve the job, by id, but for such as were found to have as much in hand as they want.

        Whoever finds that out takes them away; they are back as soon as :meth:`hands_changed`.
        """
        known = self._with_room.get(job)
        if known is None:
            known = self._with_room[job] = {worker.id: worker for worker in self.serving(job)}
        return known

    def hands_changed(self, worker: Worker) -> None:
        """Note that the worker has got something to run, or has it no more, or wants to have more of it."""
        if worker.id not in self._servers:
            return
        if worker.job in self._with_room:
            self._with_room[worker.job][worker.id] = worker
        if worker.unfinished:
            self.empty_handed.pop(worker.id, None)
        elif not worker.pinned_job:
            self.empty_handed[worker.id] = worker


def fits(job: Job, worker: Worker) -> bool:
    """Whether what the job is known to put out is not too large for the worker."""
    return worker.buffer_bytes >= job.needs


def _is_there(worker: Worker) -> bool:
    """Whether the worker can be given something."""
    return worker.lost_at is None and not worker.draining
