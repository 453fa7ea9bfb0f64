"""Bugs of quotas, to be planted like :mod:`millrace.simulation.mutants`."""

from __future__ import annotations

from millrace.control.caching import byte_quotas
from millrace.control.membership import job_quotas
from millrace.control.state.cache_state import Caches, is_of
from millrace.simulation.planting import MutantList, always

QUOTA_MUTANTS = MutantList()

QUOTA_MUTANTS.add("bytes-beyond-quota", "A tenant keeps what there is room for.", byte_quotas, "own_room", always(None))
QUOTA_MUTANTS.add("jobs-beyond-quota", "A tenant begins jobs as it likes.", job_quotas, "check_room", always(None))
_check_room = job_quotas.check_room
QUOTA_MUTANTS.add(
    "in-its-own-way",
    "A job counts against its tenant's quota as it is begun anew itself.",
    job_quotas,
    "check_room",
    lambda tx, tenant, _job: _check_room(tx, tenant, ("", "")),
)


@QUOTA_MUTANTS.replaces(
    "quota-of-blocks-alone", "Of a tenant's quota blocks count, and promises do not.", Caches, "taken_by"
)
def _blocks_alone(self: Caches, tenant: str) -> int:
    return sum(cached.bytes for name, cached in self.points.items() if is_of(name, tenant))
