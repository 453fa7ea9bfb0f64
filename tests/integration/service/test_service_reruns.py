"""A task that is run again is held against what came of it before, and what differs is told with whose fault it is."""

import os
import warnings

import numpy as np
import pytest
from tests.integration.service.service_driving import job_of

import millrace as mr

COUNT = 60
STOP = 40
NOISE = 400_000
"""So many bytes that a message has a few elements only, and some arrive before the worker comes to STOP."""


def pure(number):
    return {"number": number, "noise": np.zeros(NOISE, np.uint8)}


def noisy(number):
    return {"number": number, "noise": np.frombuffer(os.urandom(NOISE), np.uint8)}


def seeded(number, rng):
    return {"number": number, "noise": rng.integers(256, size=NOISE, dtype=np.uint8)}


def interrupted(service, gate, keeper, dataset, **options):
    """Elements of one task whose first worker is killed after it has given some; and the warnings."""

    def stop(element):
        if element["number"] == STOP:
            gate.pass_through()
        return element

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        data = dataset.map(stop).distribute(service.address, job_name="ours", tasks=1, **options)
        with data:
            elements = iter(data)
            got = [next(elements) for _ in range(3)]
            service.kill(service.named(keeper.wait()))
            keeper.open()
            # What came before lies here, to be compared with; what is in a loop's hands at that moment cannot be.
            status = service.until(lambda status: (job_of(status, "ours") or {"reruns": {}})["reruns"].get("compared"))
            assert status == 1
            got += list(elements)
            [job] = service.status()["jobs"]
    assert [element["number"] for element in got] == list(range(COUNT))
    return job, [str(warning.message) for warning in told]


@pytest.mark.parametrize("own_service", [2], indirect=True)
@pytest.mark.parametrize("function", [pure, seeded])
def test_what_is_pure_is_the_same_again(own_service, gate, keeper, function):
    job, told = interrupted(own_service, gate, keeper, mr.Dataset.range(COUNT).map(function))
    assert job["reruns"] == {"compared": 1, "differed": 0}
    assert not job["notes"]
    assert not told


@pytest.mark.parametrize("own_service", [2], indirect=True)
def test_a_function_that_is_not_pure_is_named(own_service, gate, keeper):
    job, told = interrupted(own_service, gate, keeper, mr.Dataset.range(COUNT).map(noisy))
    assert job["reruns"] == {"compared": 1, "differed": 1}
    assert told == job["notes"]
    [note] = job["notes"]
    assert note.startswith(
        "task 0 of epoch 0 was run again after its worker was lost, and gave another element (output "
    )
    assert "one of map(noisy) (" in note
    assert "a parameter called rng" in note


@pytest.mark.parametrize("own_service", [2], indirect=True)
def test_data_that_were_changed_are_told_apart(own_service, gate, keeper, tmp_path):
    for number in range(COUNT):
        (tmp_path / f"{number:02}.txt").write_bytes(b"1")

    def load(element):
        raw = element["bytes"]
        with open(element["path"], "wb") as file:  # the next worker finds another one
            file.write(b"23")
        return {"number": int(element["path"][-6:-4]), "raw": raw * NOISE}

    job, told = interrupted(own_service, gate, keeper, mr.Dataset.from_files(f"{tmp_path}/??.txt").map(load))
    assert job["reruns"] == {"compared": 1, "differed": 1}
    assert "00.txt was changed since the epoch's data were listed" in told[0]
    assert "load" not in told[0]


@pytest.mark.parametrize("own_service", [2], indirect=True)
def test_elements_that_are_missing_end_a_job_that_was_promised_each_once(own_service, gate, keeper, tmp_path):
    seen = str(tmp_path / "seen")

    def first_time(element):
        """Those before STOP are let through in the first run, and nothing in the next one."""
        if element["number"] >= STOP:
            gate.pass_through()
            return False
        with open(seen, "a+") as file:
            file.seek(0)
            known = file.read().split()
            file.write(f"{element['number']} ")
        return str(element["number"]) not in known

    data = mr.Dataset.range(COUNT).map(pure).filter(first_time)
    with data.distribute(own_service.address, tasks=1, job_name="ours") as reading:
        elements = iter(reading)
        for _ in range(3):
            next(elements)
        own_service.kill(own_service.named(keeper.wait()))
        keeper.open()
        with pytest.raises(mr.PipelineError, match=r"fewer elements.*filter\(first_time\)(.|\n)*AT_MOST_ONCE"):
            list(elements)
