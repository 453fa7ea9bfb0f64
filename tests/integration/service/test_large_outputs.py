"""Workers of different sizes on one service, with real processes."""

import numpy as np
import pytest
from tests.integration.service.service_driving import Service

import millrace as mr

MIB = 1 << 20


def grow(number):
    return np.full(2 * MIB, number, np.uint8)


@pytest.mark.filterwarnings("ignore:an output of job ours has 2,097,608 bytes:millrace.MillraceWarning")
def test_an_element_too_large_for_one_worker_is_made_by_another():
    with Service() as service:
        [small] = service.add(1, "--buffer-bytes", str(MIB))
        [large] = service.add(1, "--buffer-bytes", str(64 * MIB))
        dataset = mr.Dataset.range(12).map(grow)
        with dataset.distribute(service.address, job_name="ours", tasks=12) as distributed:
            elements = iter(distributed)
            found = [next(elements)]
            status = service.until(lambda status: status if "too small" in str(status["workers"]) else None)
            found += elements
    assert sorted(int(each[0]) for each in found) == list(range(12))
    whys = {worker["id"]: worker["why"] for worker in status["workers"]}
    assert "has too small a buffer for ours: 1,048,576 bytes, where 2,09" in whys[small]
    assert "too small" not in whys[large]


def test_an_element_too_large_for_all_fails_the_job_with_what_to_do():
    with Service() as service:
        service.add(1, "--buffer-bytes", str(MIB))
        with (
            mr.Dataset.range(16).map(grow).distribute(service.address, job_name="ours", tasks=16) as distributed,
            pytest.raises(
                mr.ElementTooLargeError, match=r"The worker may keep 1,048,576 bytes\. One that may keep more"
            ),
        ):
            list(distributed)
