"""What is kept for tails is known by its leases, also when nothing else of a task is left."""

from millrace.protocol.messages import HeldTask, LeaseTask, TaskRef
from millrace.worker.core.leftover_table import LeftoverTable

REF = TaskRef("a", 0, 3)


def test_leases_of_leftovers_are_held_until_they_are_forgotten_or_void():
    table = LeftoverTable()
    assert table.held() == []
    table.keep(LeaseTask(REF, 7, 1), [1, 2])
    assert table.held() == [HeldTask(REF, 7, 1, finished=True, leftovers=True)]
    table.keep(LeaseTask(REF, 9, 2), [1, 2, 3])
    table.drop(lambda _, left: left.lease == 7)
    assert table.get(REF) == [1, 2, 3]
    table.drop(lambda _, left: left.lease == 9)
    assert REF not in table
    assert table.get(REF) is None
    table.keep(LeaseTask(REF, 11, 1), [1, 2])
    table.drop(lambda ref, _: ref == TaskRef("a", 0, 4))
    assert len(table) == 1
    table.drop(lambda ref, _: ref.job == "a")
    assert table.held() == []
