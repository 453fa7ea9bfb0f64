"""Quotas of tenants in real processes: one job more is refused in words, and of its own a cache holds what it may."""

import warnings

import numpy as np
import pytest
from tests.integration.service.service_driving import Service

import millrace as mr

COUNT = 120
QUOTA = 100 << 10
NUMBERS = list(range(COUNT))
OPTIONS = ["--quota-jobs", "red=1", "--quota-bytes", f"red={QUOTA >> 10}KiB"]


def pipeline(calls):
    return mr.Dataset.range(COUNT).map(lambda number: np.full(200, calls.note(number))).cache()


def epoch(distributed):
    return sorted(int(element[0]) for element in distributed.epochs(1))


def test_a_tenant_has_so_many_jobs_and_so_much_of_the_cache_and_others_have_what_they_need(folder, calls, capsys):
    from millrace.cli import main

    dataset = pipeline(calls)
    with Service(1, cache_dir=folder, options=OPTIONS) as service, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with dataset.distribute(service.address, tasks=6, tenant="red", job_name="first") as first:
            for _ in range(3):
                assert epoch(first) == NUMBERS
            with (
                dataset.distribute(service.address, tasks=6, tenant="red", job_name="second") as second,
                pytest.raises(mr.AccessDeniedError, match=r"has 1 job and may have 1 at once .*: 'first'\. End one"),
            ):
                epoch(second)
            with dataset.distribute(service.address, tasks=6, tenant="blue", job_name="third") as third:
                assert epoch(third) == NUMBERS
            assert main(["cache", "stats", "--service", service.address]) == 0
            assert "of 100 KiB" in capsys.readouterr().out
        with dataset.distribute(service.address, tasks=6, tenant="red", job_name="second") as second:
            assert epoch(second) == NUMBERS
        assert any(
            "tenant 'red' has " in str(each.message) and "millrace cache rm" in str(each.message) for each in said
        )
        status = service.until(lambda status: status["cache"]["taken"] == status["cache"]["bytes"] and status)
    kept = {point["writer"]: point for point in status["cache"]["points"]}
    assert 0 < kept["red"]["bytes"] <= QUOTA
    assert kept["red"]["items"] < kept["blue"]["items"] == COUNT
