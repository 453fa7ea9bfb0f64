from millrace.policies.scaling.respawn import respawn_at
from millrace.policies.scheduling.fair_share import Standing
from millrace.policies.scheduling.worker_assignment import JobNeed, assign


def need(job, workers, share, *, ahead=0.0, served=0):
    return JobNeed(job, Standing(workers, share, ahead), served)


def chosen(*needs, current="", idle=""):
    return assign(needs, lambda job: job not in idle, current)


def test_who_lacks_a_whole_worker_comes_first():
    decision = chosen(need("a", 1, 1.0, ahead=-9), need("b", 1, 2.0, ahead=9), need("c", 1, 1.5, ahead=-9))
    assert decision.value == "b"
    assert decision.reason == "b has 1 other of the 2 workers that are its share"
    assert decision.inputs == {"workers": 1, "share": 2.0, "ahead_s": 9}


def test_then_who_lacks_a_fraction_and_had_the_least_of_it():
    decision = chosen(need("a", 1, 0.5, ahead=-9), need("b", 0, 0.5), need("c", 0, 0.5, ahead=-1))
    assert decision.value == "c"
    assert decision.reason == "c has 0 other of the 0.5 workers that are its share, and had less of that than b"
    assert chosen(need("a", 1, 0.5, ahead=-9), need("b", 1, 0.5)).value == "a"


def test_then_the_one_that_waited_longest_and_a_change_rather_than_none():
    assert chosen(need("a", 0, 0.5, served=5), need("b", 0, 0.5, served=3)).value == "b"
    assert chosen(need("a", 0, 0.5, served=5), need("b", 0, 0.5, served=5), current="a").value == "b"


def test_without_work_a_worker_stays_or_stands_by():
    idle = [need("a", 1, 0), need("b", 0, 0)]
    assert chosen(*idle, current="a", idle="ab").value == "a"
    assert chosen(*idle, idle="ab").value == "b"
    assert chosen(need("a", 1, 2), need("b", 0, 0), idle="b").reason == "a is the only job with work"


def test_a_worker_that_no_job_may_have_stands_still():
    assert chosen().value == ""


def test_of_many_rivals_a_few_are_named():
    rivals = [need(f"job{i}", 0, 0.5) for i in range(6)]
    assert chosen(*rivals).reason.endswith("less of that than job1, job2, job3 and 2 others")


def test_everybody_gets_a_turn():
    served = dict.fromkeys("abc", 0)
    order = []
    current = ""
    for turn in range(1, 10):
        current = chosen(*(need(name, 0, 0.3, served=served[name]) for name in served), current=current).value
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


def test_workers_that_die_with_their_machine_are_replaced_at_once():
    assert respawn_at([3.0, 3.0, 3.1, 3.2, 3.5], 3.5, workers=5).value == 3.5
    assert respawn_at([3.0, 3.0, 3.1, 3.2, 3.5, 3.6], 3.6, workers=5).value == 4.6  # and those in their place, too
