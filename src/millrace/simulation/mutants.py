"""Bugs to be planted: what the simulation must find, to be believed when it finds nothing.

Each replaces something of the dispatcher's, a worker's or a consumer's decisions, or of what stands around them, for as
long as a context lasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millrace.simulation.consumer_mutants import CONSUMER_MUTANTS
from millrace.simulation.dispatcher_mutants import DISPATCHER_MUTANTS
from millrace.simulation.member_mutants import MEMBER_MUTANTS
from millrace.simulation.planting import Mutant
from millrace.simulation.quota_mutants import QUOTA_MUTANTS
from millrace.simulation.source_cache_mutants import SOURCE_CACHE_MUTANTS
from millrace.simulation.worker_mutants import WORKER_MUTANTS

MUTANTS: dict[str, Mutant] = {
    **{name: Mutant(*each) for name, each in MEMBER_MUTANTS.items()},
    **DISPATCHER_MUTANTS,
    **CONSUMER_MUTANTS,
    **WORKER_MUTANTS,
    **QUOTA_MUTANTS,
    **SOURCE_CACHE_MUTANTS,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while the body runs; none with an empty name."""
    before = []
    try:
        for owner, key, value in MUTANTS[name].changes if name else ():
            before.append((owner, key, owner[key] if isinstance(owner, dict) else vars(owner)[key]))
            _put(owner, key, value)
        yield
    finally:
        for change in reversed(before):
            _put(*change)


def _put(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, dict):
        owner[key] = value
    else:
        setattr(owner, key, value)
