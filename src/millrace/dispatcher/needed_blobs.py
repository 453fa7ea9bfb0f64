"""Functions and split tables that jobs need, and which the dispatcher therefore keeps."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.control.journal.consumer_events import ConsumerJoined
from millrace.control.journal.event import Event
from millrace.control.journal.job_events import JobCreated, ListingAsked, TableRecorded
from millrace.control.state.state import State
from millrace.dispatcher.blob_store import BlobStore


def adopt_needed(blobs: BlobStore, state: State) -> None:
    """Keep what jobs of a restored ``state`` need, and nothing else that a work_dir has."""
    jobs = state.jobs.values()
    needed = ((job.name, digest) for job in jobs for digest in (*job.spec.blobs, job.tables_digest))
    blobs.adopt((job, digest) for job, digest in needed if digest)  # some were not listed yet


def hold_needed(blobs: BlobStore, state: State, events: Iterable[Event]) -> None:
    """Keep what jobs of ``events`` need; after what the same input ended, e.g. a job of the same name."""
    for event in events:
        if isinstance(event, JobCreated):
            for digest in event.spec.blobs:
                blobs.hold(event.spec.name, digest)
        elif isinstance(event, TableRecorded):
            blobs.hold(event.job, event.digest)
            blobs.keep_promise(event.digest)
        elif isinstance(event, ListingAsked) and event.tables:
            blobs.hold(event.job, event.tables)  # the job that they are of may end before they are fetched
        elif isinstance(event, ConsumerJoined) and event.job in state.jobs:
            for digest in state.jobs[event.job].spec.blobs:
                blobs.keep_promise(digest)
