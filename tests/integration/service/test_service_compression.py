"""Compression between hosts, chosen by each job of one running service."""

from typing import Literal

import numpy as np
from tests.integration.service.service_driving import Link, Service

import millrace as mr

COUNT = 200
ELEMENT_BYTES = 40_000


def test_each_job_of_a_running_service_chooses_its_compression(link: Link):
    dataset = mr.Dataset.range(COUNT).map(lambda number: np.full(ELEMENT_BYTES, number % 256, np.uint8))
    came: dict[str | None, list[int]] = {}
    choices: tuple[Literal["lz4", "zstd"] | None, ...] = (None, "lz4", "zstd", None)
    with Service(0) as service:
        wire = link()
        where = ("--host", "127.0.0.1", "--port", str(wire.port), "--advertise", "127.0.0.2")
        service.add(1, *where, "--no-shared-memory")
        for compression in choices:
            before = wire.passed
            with dataset.distribute(service.address, compression=compression) as served:
                elements = sorted((int(element[0]), int(element.sum()), element.dtype) for element in served)
            assert elements == [(n, n * ELEMENT_BYTES, np.dtype(np.uint8)) for n in range(COUNT)]
            came.setdefault(compression, []).append(wire.passed - before)
    assert min(came[None]) > COUNT * ELEMENT_BYTES
    assert came["lz4"][0] < COUNT * ELEMENT_BYTES / 10
    assert came["zstd"][0] < COUNT * ELEMENT_BYTES / 10
