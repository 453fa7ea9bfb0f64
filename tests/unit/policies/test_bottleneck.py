from typing import Any

import msgspec
import pytest

from millrace.policies.bottleneck import BEFORE_DISTRIBUTE, BottleneckMeasures, Operator, bottleneck, is_held_up

READ = Operator("from_files(a/*)", 1000, 1.0, 1.0, 0.9, reads=True)
DECODE = Operator("map(decode)", 1000, 6.0, 11.0, 11.0, threads=2)
BATCH = Operator("batch(10)", 100, 1.0, 1.0, 1.0)
BUSY = BottleneckMeasures((READ, DECODE, BATCH), 0.1, 0.081, workers=2, cores=2, used=1.9, computing=0.98, filled=0.05)
"""Two workers whose cores are busy, and a loop that waits."""


def changed(operator: Operator | None = None, **changes: Any) -> BottleneckMeasures:
    """:data:`BUSY` with another operator in the place of the one that takes longest, or with other"
    " measures."""
    load = BUSY if operator is None else msgspec.structs.replace(BUSY, operators=(READ, operator, BATCH))
    return msgspec.structs.replace(load, **changes)


SLEEPS = Operator("map(ask)", 1000, 6.0, 48.0, 0.4, threads=8)
ONE_SLEEPS = Operator("map(ask)", 1000, 6.0, 6.0, 0.1, sequential=True)
STORE = Operator("from_files(s3://b/*)", 1000, 30.0, 240.0, 0.9, threads=8, reads=True)
ALONE = Operator("map(decode)", 1000, 6.0, 6.0, 5.9, sequential=True)
SLOW_READ = Operator("from_files(a/*)", 1000, 3.7, 3.7, 0.05, reads=True)
LOCKED = Operator("map(parse)", 1000, 6.0, 23.0, 6.0, threads=4)
HERE: dict[str, Any] = {"workers": None, "computing": 1.0, "filled": 0.0}
DATA = "the input data; the loop waited 81 % of its time"

SENTENCES = [
    ("nothing was read", changed(batch_s=0.0), "unknown", "not known yet, as too little was read"),
    (
        "no worker is there",
        changed(operators=(), workers=0, computing=0.0),
        "unknown",
        f"{DATA}; no worker serves it now, so what its operators do is not known",
    ),
    (
        "no worker has said what it does",
        changed(operators=()),
        "unknown",
        f"{DATA}; what its operators do is not known yet",
    ),
    (
        "a slow loop",
        changed(wait_s=0.004),
        "model",
        (
            "the model; the loop waited 4 % of its time for 2 workers, and 75 % of the computing was"
            " map(decode), so more or faster ones would gain little"
        ),
    ),
    (
        "a slow loop in process",
        changed(wait_s=0.004, **HERE),
        "model",
        (
            "the model; the loop waited 4 % of its time, and 75 % of the computing was map(decode), so a"
            " faster pipeline would gain little"
        ),
    ),
    (
        "a slow link",
        changed(computing=0.3, filled=0.97, link_bytes_s=12_340_000.0),
        "link",
        (
            f"{DATA} although something lay computed at 2 workers 97 % of the time: the link brings 12.3 MB/s,"
            " so smaller elements, compression= or workers nearer to the loop would make it faster"
        ),
    ),
    (
        "no tasks",
        changed(computing=0.2),
        "tasks",
        (
            f"{DATA} while 2 workers computed 20 % of theirs and had no more tasks, so more parts (more or"
            " larger files, tasks=) or fewer workers would fit better"
        ),
    ),
    (
        "slow storage",
        changed(STORE),
        "storage",
        (
            f"{DATA}, 94 % of the pipeline's time went into from_files(s3://b/*), which waited for its data"
            " 100 % of that with 8 reads at a time, so storage that answers faster, larger files or a cache"
            " (autocache()) would make it faster"
        ),
    ),
    (
        "a sleeping map",
        changed(SLEEPS),
        "operator",
        (
            f"{DATA}, 75 % of the pipeline's time went into map(ask), which waited 99 % of that and computed"
            " little, so more calls at a time than 8 (num_parallel_calls=) would make it faster"
        ),
    ),
    (
        "one call at a time that sleeps",
        changed(ONE_SLEEPS),
        "operator",
        (
            f"{DATA}, 75 % of the pipeline's time went into map(ask), which waited 98 % of that and computed"
            " little, so more calls at a time than 1 (num_parallel_calls=mr.AUTOTUNE) would make it faster"
        ),
    ),
    (
        "a single thread",
        changed(ALONE, used=0.97),
        "thread",
        (
            f"{DATA}, 75 % of the computing was map(decode) on one thread and not on the 2 cores that a worker"
            " may use, so num_parallel_calls=mr.AUTOTUNE (or more workers of a thread each, if it holds Python's"
            " lock) would make it faster"
        ),
    ),
    (
        "Python's lock",
        changed(LOCKED, used=1.01, cores=4),
        "thread",
        (
            f"{DATA}, 75 % of the computing was map(parse) whose 4 threads kept 1.0 of the 4 cores that a"
            " worker may use busy (Python's lock lets one run at a time), so more workers of a thread each, or"
            " functions that release the lock, would make it faster"
        ),
    ),
    (
        "a single thread in process",
        changed(msgspec.structs.replace(ALONE, sequential=False), used=0.97, **HERE),
        "thread",
        (
            f"{DATA}, 75 % of the computing was map(decode) on one thread and not on the 2 cores that this"
            " process may use, so distribute() would make it faster"
        ),
    ),
    (
        "a read that waits before a map that computes longer",
        msgspec.structs.replace(
            BUSY, operators=(SLOW_READ, msgspec.structs.replace(ALONE, wall_s=4.5, active_s=4.5, cpu_s=1.2)), used=0.1
        ),
        "storage",
        (
            f"{DATA}, 45 % of the pipeline's time went into from_files(a/*), which waited for its data 99 % of that"
            " with 1 read at a time, so storage that answers faster, larger files or a cache (autocache()) would make"
            " it faster"
        ),
    ),
    (
        "workers that hardly compute, and operators that hardly wait",
        changed(ALONE, used=0.1),
        "unknown",
        f"{DATA} while 2 workers kept 0.1 cores busy; what held it up was not measured",
    ),
    (
        "a process of one core that hardly computes",
        changed(ALONE, used=0.1, **{**HERE, "cores": 1}),
        "unknown",
        f"{DATA} while this process kept 0.1 cores busy; what held it up was not measured",
    ),
    (
        "too few workers",
        BUSY,
        "workers",
        (
            f"{DATA}, 75 % of the computing was map(decode) with all cores of 2 workers busy, so cheaper"
            " functions or more workers would make it faster"
        ),
    ),
    (
        "workers that have not come",
        changed(planned=6, requested=4),
        "workers",
        (
            f"{DATA}, 75 % of the computing was map(decode) with all cores of 2 workers busy, of 6 planned (4"
            " requested), so cheaper functions or more workers would make it faster"
        ),
    ),
    (
        "hosts that are full",
        changed(ALONE, workers=1, cores=1, used=0.97, spare=False),
        "workers",
        (
            f"{DATA}, 75 % of the computing was map(decode) with all cores of 1 worker busy, so cheaper"
            " functions or more workers (on other machines, as these have no core to spare) would make it"
            " faster"
        ),
    ),
    (
        "all cores of this process",
        changed(**HERE),
        "workers",
        (
            f"{DATA}, 75 % of the computing was map(decode) with all cores of this process busy, so cheaper"
            " functions or distribute() would make it faster"
        ),
    ),
]


@pytest.mark.parametrize(("load", "kind", "sentence"), [each[1:] for each in SENTENCES], ids=[e[0] for e in SENTENCES])
def test_the_bottleneck_is_named_in_one_sentence(load: BottleneckMeasures, kind: str, sentence: str):
    decision = bottleneck(load)
    assert (decision.value, decision.reason) == (kind, sentence)


@pytest.mark.parametrize(
    ("arriving_s", "wait_s", "held_up"), [(1.0, 0.081, True), (1e6, 0.081, False), (1.0, 0.001, False)]
)
def test_a_loop_is_held_up_by_its_own_operators_or_by_what_arrives(arriving_s, wait_s, held_up):
    assert is_held_up(changed(wait_s=wait_s, workers=None), arriving_s) is held_up
    assert not is_held_up(changed(operators=(), workers=None), arriving_s)


def test_operators_behind_distribute_are_told_to_go_before_it():
    here = changed(workers=None, elsewhere=BEFORE_DISTRIBUTE)
    assert "cheaper functions or the same before distribute() would make it faster" in bottleneck(here).reason


def test_it_says_what_it_was_made_of():
    inputs = bottleneck(BUSY).inputs
    assert (inputs["waits"], inputs["operator"], inputs["operator_share"]) == (BUSY.waits, "map(decode)", 0.75)
    assert inputs["operators"][1]["label"] == "map(decode)"
    assert {"workers", "planned", "requested", "cores", "used", "computing", "filled", "link_bytes_s"} <= set(inputs)


def test_a_link_is_not_blamed_while_workers_compute_all_the_time():
    assert bottleneck(changed(filled=1.0)).value == "workers"


def test_a_function_without_a_core_does_not_sleep():
    crowded = Operator("map(decode)", 1000, 6.0, 6.0, 1.2)
    assert bottleneck(changed(crowded)).value == "operator"
    decision = bottleneck(changed(crowded, delayed=0.8))
    assert decision.value == "workers"
    assert "busy (with other programs too: 80 % of the time no core was free), so" in decision.reason


def test_threads_without_a_core_are_not_one_thread():
    assert bottleneck(changed(used=1.0)).value == "thread"
    assert bottleneck(changed(used=1.0, delayed=0.5)).value == "workers"


def test_threads_that_wait_for_pythons_lock_do_not_sleep():
    many = msgspec.structs.replace(LOCKED, active_s=96.0, threads=16)
    assert bottleneck(changed(many, used=1.0)).value == "thread"


def test_waits_are_a_share_whatever_the_reports_say():
    assert changed(wait_s=0.3).waits == 1.0
    assert changed(wait_s=-0.1).waits == 0.0
