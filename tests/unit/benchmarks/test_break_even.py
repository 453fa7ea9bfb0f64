"""What is made of the rates of a training with its data made here, there, and by how many."""

import pytest
from benchmarks.papers.break_even import BATCH, HOST, aims, cost_of, table

IDEAL = {"batches_s": 40.0, "host_cores": 0.1, "worker_cores": 0.0, "workers": 0, "cost": 4.0}


def found(one: float = 8.0, best: float = 39.0, cost: float = 4.2, workers: int = 6, colocated: float = 12.0):
    rates = {"a service of 1": one, "a service of 2": 20.0, "a service of 5": 38.9, "a service of 6": best}
    each = {
        name: {**IDEAL, "batches_s": rate, "workers": int(name[-1]), "cost": 160 / rate} for name, rate in rates.items()
    }
    chosen = {**IDEAL, "workers": workers, "cost": cost}
    beside = {"ideal": IDEAL, "colocated": {**IDEAL, "batches_s": colocated}}
    return {**beside, **each, "a service that chooses": chosen}


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"one": 12.5}, [0]),
        ({"colocated": 38.0}, [1]),
        ({"best": 37.0, "colocated": 10.0}, []),
        ({"cost": 4.4}, [3]),
        ({"workers": 7}, [4]),
    ],
)
def test_an_aim_is_missed_where_nothing_breaks_even_or_the_best_or_what_is_chosen_is_no_good(changed, missed):
    assert [number for number, each in enumerate(aims(found(**changed))) if not each["met"]] == missed


def test_the_best_number_of_workers_is_to_reach_the_ideal():
    slow = {name: {**each, "batches_s": min(each["batches_s"], 37.0)} for name, each in found().items()}
    assert [each["met"] for each in aims({**slow, "ideal": IDEAL})] == [True, True, False, True, True]


def test_a_cost_counts_the_host_and_what_workers_used():
    hours = 1e6 / BATCH / 40.0 / 3600
    assert cost_of({**IDEAL, "worker_cores": 2.0}) == pytest.approx(hours * (HOST.hour + 2.0 * 0.04))


def test_rows_compare_with_the_ideal_and_with_colocated():
    assert table(found())[2][:5] == ["colocated", "0", "96", "0.30", "1.00"]
    assert table(found())[4][:5] == ["a service of 2", "2", "160", "0.50", "1.67"]
