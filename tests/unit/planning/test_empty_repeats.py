"""When ranges of units that gave nothing make up a whole pass of what is repeated."""

import pytest

from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.planning.endless_repeats import has_whole_pass
from millrace.planning.plan import make_plan
from millrace.planning.split_table import positions_table

FUNCTION = g.Opaque(None, "modelled")


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], False),
        ([(0, 5)], True),
        ([(0, 4)], False),
        ([(0, 3), (3, 5)], True),
        ([(0, 3), (4, 8)], False),
        ([(2, 5), (5, 9)], False),
        ([(2, 5), (5, 10)], True),
        ([(3, 14)], True),
        ([(3, 9)], False),
        ([(0, 4), (6, 9), (9, 12), (12, 15)], True),
        ([(5, 10)], True),
    ],
)
def test_ranges_that_follow_one_another_have_a_pass_if_they_have_all_units_of_one(ranges, expected):
    assert has_whole_pass(ranges, 5) is expected


def repeated(node, count=None):
    return make_plan(Graph(g.Repeat(inputs=(node,), count=count)), {0: positions_table(24)})


def test_a_plan_knows_the_pass_of_what_may_give_nothing():
    numbers = g.Range(start=0, stop=24)
    odd = g.Filter(inputs=(numbers,), fn=FUNCTION)
    assert repeated(odd).cycle == 24
    assert repeated(g.Batch(inputs=(odd,), batch_size=3)).cycle == 24
    assert repeated(numbers).cycle == 0
    assert repeated(odd, 3).cycle == 0
