"""Quotas of jobs and bytes of a schedule's tenants."""

from __future__ import annotations

import random
from typing import Any

LIMITED = 0.15
"""Share of the schedules in which a tenant has a quota of bytes, and of those in which it has one of jobs."""
PARTS = (2, 8, 64)
"""Divisors of what the cache may take, for a quota of bytes."""
JOBS = (1, 2, 3)
"""Jobs that a tenant may have at once."""


def drawn_quotas(seed: int, cache_bytes: int) -> dict[str, Any]:
    """Draw settings: what each tenant may have."""
    rng = random.Random(f"quotas {seed}")
    quotas: dict[str, Any] = {"byte_quotas": {}, "job_quotas": {}}
    for tenant in ("default", "small"):
        if rng.random() < LIMITED:
            quotas["byte_quotas"][tenant] = cache_bytes // rng.choice(PARTS)
        if rng.random() < LIMITED:
            quotas["job_quotas"][tenant] = rng.choice(JOBS)
    return quotas
