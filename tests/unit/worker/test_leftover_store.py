"""What is kept for tails is known by its leases, also when nothing else of a task is left."""

from millrace.protocol.messages import HeldTask, LeaseTask, TaskRef
from millrace.worker.leftovers import LeftoverStore

REF = TaskRef("a", 0, 3)


def test_leases_of_leftovers_are_held_until_they_are_forgotten_or_void():
    store = LeftoverStore()
    assert not store.put(LeaseTask(REF, 7, 1), {0: []})
    assert store.held() == []
    assert store.put(LeaseTask(REF, 7, 1), {0: [1, 2]})
    assert store.held() == [HeldTask(REF, 7, 1, finished=True, leftovers=True)]
    assert store.put(LeaseTask(REF, 9, 2), {0: [1, 2]})
    store.drop({7})
    assert store.has(REF)
    store.drop({9})
    assert not store.has(REF)
    store.put(LeaseTask(REF, 11, 1), {0: [1, 2]})
    store.forget_job("a")
    assert store.held() == []
