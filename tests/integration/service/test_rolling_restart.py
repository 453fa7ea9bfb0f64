"""A rolling restart: dispatcher and workers are exchanged for those of another version, one by one, under load."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.integration.service.service_driving import Service

import millrace as mr
from millrace import version
from millrace.clusters.child_process import hang_up

ELEMENTS = 3000
OTHER = "0.9.7"


@pytest.fixture(scope="module")
def next_version(tmp_path_factory) -> dict[str, str]:
    """Variables by which a process is of this millrace, but says that it is another one."""
    folder = tmp_path_factory.mktemp("next")
    own = Path(version.__file__).parent
    shutil.copytree(own, folder / "millrace", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "millrace" / "version.py"
    file.write_text(file.read_text().replace(version.__version__, OTHER))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))}


def slow(number):
    threading.Event().wait(0.001)
    return number


READER = """
import json, sys
import millrace as mr
ranks = {"num_consumers": 2, "consumer_index": 1}
with mr.Dataset.range(int(sys.argv[2])).distribute(sys.argv[1], job_name="of both", **ranks) as dataset:
    for element in dataset.epochs(1):
        print(json.dumps([mr.__version__, element]), flush=True)
"""


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait()
    hang_up(process)


def test_every_element_comes_once_while_all_processes_are_exchanged(tmp_path, next_version):
    with Service(workers=2, work_dir=tmp_path / "work") as service:
        assert service.status()["version"] == version.__version__
        dataset = mr.Dataset.range(ELEMENTS).map(slow).distribute(service.address, job_name="rolling")
        got: list[int] = []
        with dataset as reading:
            elements = iter(reading.epochs(1))

            def read(count):
                got.extend(next(elements) for _ in range(count))

            read(300)
            service.environment = next_version
            end(service.dispatcher)
            service.start_again()  # it goes on with the journal of the one before
            assert service.status()["version"] == OTHER
            read(300)
            for name in list(service.workers):
                service.add()
                service.leave(name)
                read(300)
                assert service.workers[name].wait() == 0
            read(300)
            got.extend(elements)
        assert Counter(got) == Counter(range(ELEMENTS))


def test_and_back_again_as_a_version_that_disappoints_is_taken_back(tmp_path, next_version):
    with Service(workers=0, work_dir=tmp_path / "work") as service:
        service.environment = next_version
        service.add(2)
        dataset = mr.Dataset.range(1000).map(slow).distribute(service.address, job_name="back")
        with dataset as reading:
            elements = iter(reading.epochs(1))
            got = [next(elements) for _ in range(100)]
            end(service.dispatcher)
            service.start_again()
            assert service.status()["version"] == OTHER
            got += [next(elements) for _ in range(100)]
            service.environment = {}
            end(service.dispatcher)
            service.start_again()
            assert service.status()["version"] == version.__version__
            got += elements
        assert Counter(got) == Counter(range(1000))


def test_trainings_of_two_versions_read_one_job(next_version):
    with Service(workers=1) as service:
        service.environment = next_version
        service.add()
        other = subprocess.Popen(
            [sys.executable, "-c", READER, service.address, "500"],
            env={**os.environ, **next_version},
            stdout=subprocess.PIPE,
            text=True,
        )
        mine = mr.Dataset.range(500).distribute(service.address, job_name="of both", num_consumers=2, consumer_index=0)
        with mine as reading:
            here = list(reading.epochs(1))
        out, _ = other.communicate()
        said = [json.loads(line) for line in out.splitlines()]
        assert {each for each, _ in said} <= {OTHER}
        assert other.returncode == 0
        assert Counter(here) + Counter(element for _, element in said) == Counter(range(500))
