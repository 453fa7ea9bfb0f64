from millrace.policies.assignment import JobNeed, assign
from millrace.policies.respawn import respawn_at


def test_the_job_with_the_fewest_workers_comes_first():
    decision = assign([JobNeed("a", 2, 0, True), JobNeed("b", 1, 9, True)])
    assert decision.value == "b"
    assert decision.reason == "b has 1 other worker, the fewest of 2 jobs with work"
    assert decision.inputs == {"workers": {"a": 2, "b": 1}}


def test_then_the_one_that_waited_longest_and_a_change_rather_than_none():
    decision = assign([JobNeed("a", 0, 5, True), JobNeed("b", 0, 3, True)])
    assert decision.value == "b"
    assert decision.reason == "b has no other workers and has waited longer than a"
    assert assign([JobNeed("a", 0, 5, True), JobNeed("b", 0, 5, True)], "a").value == "b"


def test_without_work_a_worker_stays_or_stands_by():
    idle = [JobNeed("a", 1, 0, False), JobNeed("b", 0, 0, False)]
    assert assign(idle, "a").value == "a"
    assert assign(idle).value == "b"
    assert assign([]).value == ""
    assert assign([JobNeed("a", 1, 0, True)]).reason == "a is the only job with work"


def test_everybody_gets_a_turn():
    served = dict.fromkeys("abc", 0)
    order = []
    current = ""
    for turn in range(1, 10):
        current = assign([JobNeed(name, 0, served[name], True) for name in served], current).value
        served[current] = turn
        order.append(current)
    assert order == list("abcabcabc")


def test_workers_that_end_are_replaced_at_once_unless_they_keep_ending():
    assert respawn_at([5.0], 5.0).value == 5.0
    assert respawn_at([1.0, 20.0, 40.0], 40.0).value == 40.0
    rapid = respawn_at([1.0, 2.0, 3.0], 3.0)
    assert rapid.value == 4.0
    assert rapid.reason == "3 workers ended within 10 s; the next one starts in 1 s"
    assert respawn_at([1.0, 2.0, 3.0, 4.0], 4.0).value == 6.0
    assert respawn_at([float(i) for i in range(30)], 29.0).value == 59.0
