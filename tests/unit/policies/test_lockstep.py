"""Members of a group that hold up the others."""

from millrace.policies.sharing.lockstep import count_waiting, detach

MEMBERS = [0, 1, 2]


def after(looks):
    counted: dict[int, float] = {}
    for holding in looks:
        counted = count_waiting(counted, MEMBERS, holding, 2.0)
    return counted


def test_who_stands_still_goes_after_the_bound_and_not_before():
    assert detach(after([[1]] * 15), 30.0).value == []
    assert detach(after([[1]] * 16), 30.0).value == [1]
    assert "held up the others for 30 s" in detach(after([[1]] * 16), 30.0).reason


def test_who_keeps_others_waiting_most_of_the_time_goes_later():
    assert detach(after([[1], [1], []] * 15), 30.0).value == []
    assert detach(after([[1], [1], []] * 16), 30.0).value == [1]


def test_who_is_last_by_chance_stays():
    assert detach(after([[0], [1], [2]] * 100), 30.0).value == []


def test_what_is_counted_of_those_who_left_is_forgotten():
    assert count_waiting({7: 20.0}, MEMBERS, [0], 2.0) == {0: 2.0}
