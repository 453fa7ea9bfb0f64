"""How many relays a process has."""

import pytest

from millrace.wire.data.relays import relays_for


@pytest.mark.parametrize(("cores", "relays"), [(1, 1), (2, 1), (7, 1), (8, 2), (12, 3), (16, 4), (200, 4)])
def test_a_relay_moves_what_a_core_can_so_there_is_one_for_each_few_cores(cores, relays):
    assert relays_for(cores) == relays
