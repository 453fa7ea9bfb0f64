"""Shared listings: sources that jobs of one tenant name alike, at about the same time, are listed once for all of them.

A job waits for a listing that is under way as it comes, and takes what it gives. It may lack what was added since it
began, so that it is taken only if that was within :data:`SHARED_S`; what a finished listing gave is no later job's.
Files of a host are listed by each job: hosts may have others under the same names.
"""

from __future__ import annotations

import functools
import hashlib

import msgspec

from millrace.control.journal.transaction import Transaction
from millrace.control.state.state import Job
from millrace.graph.serialize import parameters, unpack
from millrace.graph.source_nodes import stored_elsewhere

SHARED_S = 5.0
"""Seconds before a job came in which a listing may have begun that it takes."""


def await_listing(tx: Transaction, job: Job) -> str:
    """Have a job wait for the listing of another one's sources, as its own are the same.

    Returns:
        Name of the other one; empty: there is none, or the listing has come to its end.
    """
    settled = job.tables is not None or job.lister or _given(tx, job)
    sources = "" if settled else _sources(job.spec.structure)
    for name, began in tx.observed.listings.items() if sources else ():
        other = tx.state.jobs.get(name)
        if other is None or not other.lister or began < job.created - SHARED_S:
            continue
        if other.spec.tenant == job.spec.tenant and _sources(other.spec.structure) == sources:
            tx.observed.awaited_listings[job.name] = name
            return name
    return ""


def begin_listing(tx: Transaction, job: Job) -> str:
    """Note that the job's sources are listed from now on.

    Returns:
        Digest of the tables that the listing which the job has waited for has given; empty: there are none.
    """
    found = _given(tx, job)
    awaited = tx.observed.awaited_listings.pop(job.name, "")
    tx.observed.listings.pop(job.name, None)
    if _sources(job.spec.structure):
        tx.observed.listings[job.name] = tx.observed.listings.get(awaited, tx.now) if found else tx.now
    return found


def _given(tx: Transaction, job: Job) -> str:
    """Find the digest of the tables that the awaited listing has given."""
    other = tx.state.jobs.get(tx.observed.awaited_listings.get(job.name, ""))
    return "" if other is None or other.failure is not None else other.tables_digest


def touch_waiting(tx: Transaction) -> None:
    """Have the scheduler look at jobs whose awaited listing has come to its end, well or not."""
    for name, awaited in list(tx.observed.awaited_listings.items()):
        job, other = tx.state.jobs.get(name), tx.state.jobs.get(awaited)
        if job is not None and other is not None and other.lister:
            continue
        if job is None or not _given(tx, job):
            del tx.observed.awaited_listings[name]  # another job may get the name of the one that was awaited
        if job is not None:
            tx.state.index.touched.add(name)


@functools.lru_cache(256)
def _sources(structure: bytes) -> str:
    """Hash what decides how a pipeline's sources are listed; empty: that is the job's own matter."""
    told = []
    for _, node in unpack(structure).sources():
        if not stored_elsewhere(node):
            return ""
        told.append([node.op, [[name, getattr(node, name)] for name in parameters(node)]])
    return hashlib.blake2b(msgspec.msgpack.encode(told), digest_size=16).hexdigest()
