"""How many leases a worker wants, and when it rests."""

from millrace.worker.core.lease_demand import REST_S, LeaseDemand


def test_it_rests_once_after_each_time_that_it_worked():
    demand, now = LeaseDemand(100.0), 100.0 + 2 * REST_S
    assert not demand.rests(now), "it has not worked yet"
    for _ in range(2):
        demand.enter(now)
        now += 2 * REST_S
        assert not demand.rests(now)
        demand.leave(now)
        assert not demand.rests(now)
        now += REST_S
        assert demand.rests(now)
        assert not demand.rests(now)
    assert demand.busy_s(now) == 4 * REST_S


def test_it_rests_while_nobody_takes_what_it_has():
    demand = LeaseDemand(0.0)
    demand.enter(0.0)
    demand.enter(0.0)
    demand.leave(0.0)
    assert not demand.rests(2 * REST_S), "another lane works"
    demand.leave(2 * REST_S)
    assert demand.rests(3 * REST_S)
    assert demand.busy_s(3 * REST_S) == 2 * REST_S


def test_it_wants_about_two_seconds_of_work():
    demand = LeaseDemand(0.0)
    assert demand.want == 2
    demand.took(0.4)
    assert demand.want == 5
    for _ in range(20):
        demand.took(0.01)
    assert demand.want == 16
    for _ in range(20):
        demand.took(10.0)
    assert demand.want == 2
