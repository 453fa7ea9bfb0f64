"""What is made of the rates of a training with its data made here, there, and by how many."""

import pytest
from benchmarks.papers.break_even import BATCH, HOST, aims, cost_of, table

IDEAL = {"batches_s": 40.0, "host_cores": 0.1, "worker_cores": 0.0, "workers": 0, "cost": 4.0}


def found(one: float = 8.0, best: float = 39.0, chosen: float = 4.2):
    rates = {"colocated": 12.0, "a service of 1": one, "a service of 2": 20.0, "a service of 6": best}
    each = {name: {**IDEAL, "batches_s": rate, "cost": 160 / rate} for name, rate in rates.items()}
    return {"ideal": IDEAL, **each, "a service that chooses": {**IDEAL, "workers": 6, "cost": chosen}}


@pytest.mark.parametrize(
    ("changed", "met"),
    [
        ({}, [True, True, True]),
        ({"one": 12.5}, [False, True, True]),
        ({"best": 37.0}, [True, False, True]),
        ({"chosen": 4.4}, [True, True, False]),
    ],
)
def test_an_aim_is_missed_where_nothing_breaks_even_or_the_best_or_what_is_chosen_is_no_good(changed, met):
    assert [each["met"] for each in aims(found(**changed))] == met


def test_a_cost_counts_the_host_and_what_workers_used():
    hours = 1e6 / BATCH / 40.0 / 3600
    assert cost_of({**IDEAL, "worker_cores": 2.0}) == pytest.approx(hours * (HOST.hour + 2.0 * 0.04))


def test_rows_compare_with_the_ideal_and_with_colocated():
    assert table(found())[2][:5] == ["colocated", "0", "96", "0.30", "1.00"]
    assert table(found())[4][:5] == ["a service of 2", "0", "160", "0.50", "1.67"]
