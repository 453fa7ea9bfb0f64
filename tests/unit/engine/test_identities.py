"""Units that have one identity are one element."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.unit.engine.any_pipeline import numbers, pipeline

import millrace
from millrace.planning.orders import EpochOrders
from millrace.planning.unit_ids import identities
from millrace.planning.units import Cardinality, UnitMap


# Any pipeline is drawn, and those that can't be planned up to their last operator are passed over.
@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
def test_equal_identities_are_equal_elements(runs, data):
    case = pipeline(data.draw, runs)
    epoch = data.draw(st.integers(0, 1), label="epoch")
    units = UnitMap(case.dataset.__pipeline__().graph, case.dataset.__pipeline__().tables())
    root = len(units.graph.nodes) - 1
    assume(units.plannable(root) and units.of(root).yields is Cardinality.ONE and not units.of(root).task_local)
    elements = [numbers(element) for element in runs.epoch(case.dataset, epoch, seed=0)]
    orders = EpochOrders(units, 0, epoch)
    found = identities(orders, root, np.arange(len(elements)))
    meant: dict[tuple[int, ...], tuple[int, ...]] = {}
    for name, element in zip(map(tuple, found.tolist()), elements, strict=True):
        assert meant.setdefault(name, element) == element
    some = np.array(data.draw(st.permutations(range(len(elements))), label="order"), np.int64)
    assert np.array_equal(identities(orders, root, some), found[some])


@pytest.mark.parametrize(
    "grouped",
    [
        lambda nothing: nothing.batch(2),
        lambda nothing: nothing.padded_batch(2),
        lambda nothing: nothing.window(3, 1).repeat(2),
    ],
)
def test_groups_of_nothing_have_no_identities(grouped):
    made = grouped(millrace.Dataset.range(0)).__pipeline__()
    units = UnitMap(made.graph, made.tables())
    found = identities(EpochOrders(units, 0, 0), len(units.graph.nodes) - 1, np.arange(0))
    assert found.shape == (0, 2)
