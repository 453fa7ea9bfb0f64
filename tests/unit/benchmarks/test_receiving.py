"""What is made of the rates of a client that is bound by receiving."""

import pytest
from benchmarks.papers.receiving import HOST_CORES, aims, table

FIXED = {"1": 400.0, "2": 790.0, "3": 1000.0, "4": 1010.0, "5": 1000.0}


def found(workers: int, records: float, used: float = 0.97) -> dict[str, dict[str, float]]:
    """Results with what is chosen; ``used``: part of the client's host."""
    rates = {**{name: (int(name), rate) for name, rate in FIXED.items()}, "chosen": (workers, records)}
    return {
        name: {"workers": count, "records": rate, "host_cores": used * HOST_CORES, "worker_cores": 0.2 * count}
        for name, (count, rate) in rates.items()
    }


@pytest.mark.parametrize(
    ("workers", "records", "used", "met"),
    [
        (3, 1000.0, 0.97, [True, True, True]),
        (4, 1005.0, 0.97, [True, True, True]),
        (5, 1005.0, 0.97, [True, True, False]),
        (2, 790.0, 0.97, [True, False, True]),
        (3, 1000.0, 0.5, [False, True, True]),
    ],
)
def test_an_aim_is_missed_by_too_slow_too_many_or_a_client_that_could_do_more(workers, records, used, met):
    assert [row["met"] for row in aims(found(workers, records, used))] == met


def test_the_table_says_what_was_chosen():
    assert table(found(3, 1000.0))[-1] == [
        "3, chosen",
        "1,000",
        "0.99",
        f"{0.97 * HOST_CORES:.2f} of {HOST_CORES}",
        "0.60",
    ]
