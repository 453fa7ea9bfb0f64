"""Stopped at every step of three epochs, gone on in a new process with other workers, and again from there.

For every operator and every source. Takes long, and is not among the tests that run by themselves: ``make resume``.
"""

import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.integration.service.fork_server import ForkServer
from tests.integration.service.service_data import write_data
from tests.integration.service.service_driving import Service
from tests.matrix import matrix_pipelines as matrix

from millrace.graph.nodes import OP_NAMES

FURTHER = 7
"""Steps until it stops again."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data")).root


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[str, str]]:
    """Addresses of one with one worker, and of one with two."""
    with ForkServer() as Service.fork_server, Service(1) as one, Service(2) as two:
        yield one.address, two.address


@pytest.fixture(scope="module")
def fresh() -> Iterator[ProcessPoolExecutor]:
    """Each call in a process of its own."""
    context = multiprocessing.get_context("forkserver")  # of a server that has imported millrace, and done nothing
    context.set_forkserver_preload([matrix.__name__, "millrace.client.epoch_reader", "millrace.engine.run.local_epoch"])
    with ProcessPoolExecutor(2, context, max_tasks_per_child=1) as pool:
        yield pool


def passed_on(state):
    text = json.dumps(state)
    assert len(text) < 4096
    return json.loads(text)


@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore:the pipeline runs as one task")
@pytest.mark.filterwarnings("ignore:cache after .* keeps nothing")
@pytest.mark.filterwarnings("ignore:from_generator.* is run by one worker")
@pytest.mark.parametrize("place", ["in process", "on a service"])
@pytest.mark.parametrize("name", matrix.OPERATORS)
def test_stopped_at_every_step(services, fresh, root, name, place):
    before, after = services if place == "on a service" else ("", "")
    with np.printoptions(threshold=10_000):
        whole, states = matrix.read(before, name, str(root), None, None)
    assert 40 <= len(whole) <= 90
    assert len(states) == len(whole) + 1
    firsts = [fresh.submit(matrix.read, after, name, str(root), passed_on(state), FURTHER) for state in states]
    seconds = []
    for step, first in enumerate(firsts):
        found, behind = first.result()
        assert found == whole[step : step + FURTHER], step
        seconds.append(fresh.submit(matrix.read, after, name, str(root), passed_on(behind[-1]), None))
    for step, second in enumerate(seconds):
        found, _ = second.result()
        assert found == whole[step + FURTHER :], step


def test_every_operator_is_here():
    assert set(OP_NAMES.values()) <= set(matrix.OPERATORS)
