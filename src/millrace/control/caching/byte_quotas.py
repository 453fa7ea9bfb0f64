"""Quotas of bytes: how much of the service's cache what a tenant's jobs keep may take.

A tenant with a quota has a cache of that size within the one of all. At its quota it gives up blocks of its own for
what saves clearly more time per byte, or else keeps nothing more; never does another tenant give up any for it.
"""

from __future__ import annotations

from millrace.control.journal.transaction import Transaction
from millrace.control.state.cache_state import is_of
from millrace.control.state.observed import CacheObservation
from millrace.control.state.state import Job, State
from millrace.policies.figures import data_size
from millrace.protocol.messages import Notice


def limit_of(state: State, tenant: str) -> int:
    """Bytes that blocks of a tenant may take."""
    return min(state.settings.cache_bytes, state.settings.byte_quotas.get(tenant, state.settings.cache_bytes))


def own_room(state: State, tenant: str) -> int | None:
    """Bytes that a tenant may still add by its quota; negative if that was lowered. None: it has none, or all."""
    limit = limit_of(state, tenant)
    return None if limit == state.settings.cache_bytes else limit - state.caches.taken_by(tenant)


def too_much(state: State, tenant: str) -> int:
    """Bytes that a tenant has beyond its quota, beside what is evicted anyway."""
    points = [cached for name, cached in state.caches.points.items() if is_of(name, tenant)]
    going = sum(cached.blocks[block].bytes for cached in points for block in cached.evicting)
    return -(own_room(state, tenant) or 0) - going


def tell_full(tx: Transaction, job: Job) -> None:
    """Tell a job once that its tenant has its quota, and what to do."""
    observation = tx.observed.caching.setdefault(job.name, CacheObservation())
    if not observation.full:
        observation.full = True
        tx.to_all(job, Notice(full(tx.state, job.spec.tenant)))


def full(state: State, tenant: str) -> str:
    """Sentence for a tenant that has its quota."""
    quota = state.settings.byte_quotas[tenant]
    return (
        f"tenant {tenant!r} has {data_size(state.caches.taken_by(tenant))} in the cache and may have "
        f"{data_size(quota)} (--quota-bytes {tenant}={quota} of the dispatcher): of what its jobs make, only that is "
        "kept which saves more time than what would go for it. Remove what is not needed any more (millrace cache ls, "
        "millrace cache rm); whoever runs the service can allow more"
    )
