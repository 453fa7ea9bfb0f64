from millrace.dispatcher.clock import Clock


def test_it_goes_on_where_the_life_before_left_it():
    time = [1000.0]
    clock = Clock(lambda: time[0], at=7.0)
    time[0] += 1.5
    assert clock.now() == 8.5


def test_it_stands_still_while_nobody_looks_at_it_as_the_process_is_stopped():
    time = [0.0]
    clock = Clock(lambda: time[0])
    for _ in range(4):
        time[0] += 1.0
        clock.now()
    time[0] += 300.0
    assert clock.now() == 4.0
    time[0] += 1.0
    assert clock.now() == 5.0


def test_with_short_heartbeats_it_stands_still_sooner():
    time = [0.0]
    clock = Clock(lambda: time[0], heartbeat_s=0.5)
    time[0] += 0.7
    assert clock.now() == 0.7
    time[0] += 0.75
    assert clock.now() == 0.7
    time[0] += 0.125
    assert clock.now() == 0.825
