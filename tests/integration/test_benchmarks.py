"""Benchmarks run, on little data; what they measure here means nothing."""

import json
import os
import signal
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import accuracy, accuracy_caching, packing
from benchmarks.far_store import BUCKET, another_link, far_store
from benchmarks.harness import FailedError, sample
from benchmarks.papers import accelerator_trainings, costs, read_cost, stragglers, trainings
from obstore.store import S3Store

from millrace import LocalService
from millrace.blocks.stores.file_store import FileStore

ROOT = Path(__file__).parents[2]
SERVED = "millrace, embedded, 2 workers"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def report(tmp_path: Path, benchmark: str, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "figures.json"
    arguments = (sys.executable, "-m", f"benchmarks.{benchmark}", "--quick", "--json", str(path), *arguments)
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_small(tmp_path: Path):
    found = report(tmp_path, "small", "--only", "bare loop", SERVED)
    assert [sorted(each) for each in found["rounds"]] == [["bare loop", SERVED]]
    rates = found["results"][SERVED]
    assert {name: rate["median"] > 0 for name, rate in rates.items()} == {"integers": True, "dicts": True}
    assert found["results"]["bare loop"]["dicts"]["ratio"] == 1.0
    assert found["machine"]["cores"] >= 1


def test_decode(tmp_path: Path):
    found = report(tmp_path, "decode", "--files", "16", "--only", "bare loop", "millrace, in process", SERVED)
    assert sorted(found["results"]) == sorted(["bare loop", "millrace, in process", SERVED])
    assert (found["skipped"], found["failed"]) == ({}, {})


@pytest.mark.nightly
def test_overhead(tmp_path: Path):
    found = report(tmp_path, "overhead", "--files", "16")
    # Of so little work the difference is mostly noise, so only that both were there is certain.
    assert {name: list(result) for name, result in found["results"].items()} == {
        "in process": ["cpu"],
        "embedded, 2 workers": ["cpu"],
    }


@pytest.mark.nightly
def test_trainings(tmp_path: Path):
    path = tmp_path / "figures.json"
    assert trainings.main(["--only", "text", "--quick", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert {feed: each["steps"] for feed, each in found["results"]["text"].items()} == {"DataLoader": 4, "millrace": 4}
    assert found["results"]["text"]["millrace"]["workers"] > 0
    assert found["aims"] == []


@pytest.mark.nightly
def test_trainings_on_a_device(tmp_path: Path):
    path = tmp_path / "figures.json"
    arguments = ["--only", "text", "--quick", "--device", "cpu", "--json", str(path)]
    assert accelerator_trainings.main(arguments) == 0
    found = json.loads(path.read_text())
    assert (found["failed"], found["aims"]) == ([], [])
    for each in found["results"]["text"].values():
        assert each["steps"] == 4
        assert min(each["ideal"], each["rate"], each["workers"], each["busy_cores"]) > 0


@pytest.mark.nightly
def test_handover(tmp_path: Path):
    names = ["memcpy", "raw socket", "millrace, TCP, 1 worker"]
    found = report(tmp_path, "handover", "--only", *names)
    assert {name: sorted(result) for name, result in found["results"].items()} == {
        name: ["assembled", "ready"] for name in names
    }


def test_dispatcher(tmp_path: Path):
    found = report(tmp_path, "dispatcher", "--seconds", "2", "--only", "tasks of 2 s")
    result = found["results"]["tasks of 2 s"]
    assert result["tasks"]["median"] > 0
    assert result["messages"]["median"] > result["tasks"]["median"]  # told, and answered


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """What the benchmark sets for its whole process is as it was."""
    torch = pytest.importorskip("torch")
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.mark.nightly
@pytest.mark.usefixtures("torch_settings")
def test_accuracy_of_a_training_whose_workers_are_killed(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "figures.json"
    assert accuracy.main(["--quick", "--identical", "--json", str(path)]) == 0
    out, err = capfd.readouterr()
    assert "bit for bit" in out
    found = json.loads(path.read_text())["identical"]
    assert (found["steps"], found["kills"], found["difference"]) == (16, 1, "")
    assert err.count("was killed by SIGKILL") == found["kills"]  # the service has noticed, too


@pytest.mark.nightly
@pytest.mark.usefixtures("torch_settings")
def test_accuracy_counts_what_each_guarantee_gives(tmp_path: Path):
    accuracy.make_pictures(str(tmp_path))
    lesson = accuracy.Lesson(str(tmp_path), accuracy.QUICK)
    with LocalService(max_workers=2, threads=1) as service:
        found = {each.name: lesson.train(0, each, service) for each in accuracy.GUARANTEES}
    exactly, most, off, drawn = found.values()
    assert (exactly.elements, exactly.lost, exactly.repeated, exactly.kills) == (512, 0, 0, 1)
    assert (most.elements + most.lost, most.repeated, most.kills) == (512, 0, 1)
    assert off.elements + off.lost - off.repeated == 512
    assert (drawn.elements, drawn.lost) == (512, drawn.repeated)
    assert 128 < drawn.lost < 256  # of 512 / e on average


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:below the cache")  # that is what is measured
@pytest.mark.usefixtures("torch_settings")
def test_accuracy_counts_what_a_cache_freezes(tmp_path: Path):
    accuracy.make_pictures(str(tmp_path))
    lesson = accuracy.Lesson(str(tmp_path), accuracy_caching.QUICK)
    with LocalService(max_workers=2, threads=1, cache_dir=str(tmp_path / "cache"), cache_bytes=1 << 30) as service:
        without, before, behind = [lesson.train(0, each, service) for each in accuracy_caching.WAYS]
    assert {each.elements for each in (without, before, behind)} == {1024}
    assert without.kept == 0
    # Of one service. What the second epoch makes ahead, while the last tasks of the first still run, is kept twice.
    assert 512 <= before.kept < 1024
    assert 512 <= behind.kept - before.kept < 1024
    assert min(without.pictures, before.pictures) > 900
    assert behind.pictures == 512


BROKEN = """
import os
import sys
from benchmarks.harness import Benchmark, Contestant, Figure, main

def fail(options):
    raise ValueError("the reason")

def hang(options):
    with open(os.environ["BROKEN_FIFO"], "w"):
        os.kill(os.getpid(), 19)  # SIGSTOP

BENCHMARK = Benchmark(
    question="What if?",
    figures={"speed": Figure("m/s")},
    contestants=(
        Contestant("works", lambda options: {"speed": 2.0}),
        Contestant("fails", fail),
        Contestant("is missing", fail, ("no_such_module",)),
        Contestant("hangs", hang),
    ),
    reference="works",
    sizes={},
)

if __name__ == "__main__":
    sys.exit(main("broken"))
"""


@pytest.fixture
def fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A benchmark named ``broken`` is there; what its contestant that hangs has opened, and says nothing through."""
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    path = tmp_path / "fifo"
    os.mkfifo(path)
    monkeypatch.setenv("BROKEN_FIFO", str(path))
    return path


def run_broken(*only: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "broken", "--only", *only]
    return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("fifo")
def test_who_fails_or_is_not_installed_is_named_and_the_others_count():
    with run_broken("works", "fails", "is missing") as running:
        said, _ = running.communicate()
    assert running.returncode == 1
    assert "skipped is missing: no_such_module not installed (pip install 'millrace[bench]'" in said
    assert "failed: fails: ended with status 1" in said
    assert "ValueError: the reason" in said
    assert "2 (2 to 2)" in said


@pytest.mark.usefixtures("fifo")
def test_who_takes_too_long_is_ended():
    with pytest.raises(FailedError, match="did not end within 0 s"):
        sample("broken", "hangs", {}, limit_s=0.1)


def test_a_contestant_ends_with_the_benchmark(fifo: Path):
    with run_broken("hangs") as running, fifo.open() as contestant:
        running.send_signal(signal.SIGTERM)
        assert contestant.read() == ""  # it is gone
    assert running.returncode == 128 + signal.SIGTERM


def test_far(tmp_path: Path):
    # Each file takes so long that as many reads overlap as may, however busy the machine is.
    found = report(tmp_path, "far", "--latency", "400", "--only", "16 threads", "millrace, in process")
    assert found["failed"] == {}
    assert found["results"]["millrace, in process"]["peak"]["median"] >= 16


@pytest.mark.nightly
def test_startup(tmp_path: Path):
    found = report(tmp_path, "startup", "--only", SERVED)
    assert set(found["results"][SERVED]) == {"import", "first", "few", "many", "shutdown"}


@pytest.mark.nightly
def test_listing(tmp_path: Path):
    found = report(tmp_path, "listing", "--folder", str(tmp_path))
    assert (found["results"]["files"], found["missed"]) == (13_000, [])


def test_packing(tmp_path: Path):
    for number in range(40):
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as recording:
            recording.setnchannels(1)
            recording.setsampwidth(2)
            recording.setframerate(8000)
            recording.writeframes(bytes(160 * (20 + 5 * number)))
    found = report(tmp_path, "packing", "--data", str(tmp_path))
    assert found["sequences"] == {"documents, log-normal": 400, "recordings": 40}
    (figures,) = found["rounds"]
    for case in found["sequences"]:
        padding = [figures[f"{case}, {way}"]["padding"] for way in packing.WAYS]
        assert padding == sorted(padding, reverse=True)
        assert padding[0] > 5 * padding[-1] >= 0
    assert len(found["table"]) == len(figures) + 1


def test_recovery(tmp_path: Path):
    found = report(tmp_path, "recovery", "--only", "killed, on another host")
    parts = {name: figure["median"] for name, figure in found["results"]["killed, on another host"].items()}
    assert parts.pop("total") == pytest.approx(sum(parts.values()))
    assert sorted(parts) == ["detection", "lease", "replay"]


@pytest.mark.parametrize(("paper", "rows"), [("eviction", 2), ("figure8_model", 121)])
def test_papers(tmp_path: Path, paper: str, rows: int):
    path = tmp_path / "figures.json"
    command = ["-m", f"benchmarks.papers.{paper}", "--json", str(path)]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = json.loads(path.read_text())
    assert found["benchmark"] == f"papers.{paper}"
    assert found["command"] == f"python -m benchmarks.papers.{paper} --json {path}"
    assert len(found["results"]) == rows


@pytest.mark.parametrize("cold", [False, True])
def test_read_cost(tmp_path: Path, cold: bool):
    store = FileStore(str(tmp_path))
    found = read_cost.compare(store, cold=cold, seconds=0.05, count=10, largest=1 << 20)
    assert sorted(each["bytes"] for each in found["reads"])[:: 10 - 1] == [4096, 1 << 20]
    assert all(each["seconds"] > 0 and each["predicted"] > 0 and each["learned"] > 0 for each in found["reads"])
    assert store.blocks() == {}


def test_deli(tmp_path: Path):
    found = report(tmp_path, "papers.deli", "--workloads", "CIFAR-10, 5 ms", "--ranks", "1")
    ((trial,),) = found["results"].values()
    asked = {name: way["requests"] for name, way in trial["ways"].items()}
    assert asked["disk"] == 0
    assert asked["bucket"] == 80  # two epochs of 40 objects
    assert 40 < asked["50/50"] <= 90  # a cache of four samples, and batches of twenty
    assert trial["ways"]["bucket"]["sent"] > 2 * trial["bytes"]
    assert len(found["aims"]) == 4


def test_several_links_lead_to_one_store_and_count_apart(tmp_path: Path):
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "a").write_bytes(bytes(1000))
    with far_store(str(folder), 0.01) as store, another_link(store) as one, another_link(store) as other:
        for far in (one, one, other):
            found = S3Store(
                BUCKET,
                endpoint=far.far["AWS_ENDPOINT_URL"],
                access_key_id=far.far["AWS_ACCESS_KEY_ID"],
                secret_access_key=far.far["AWS_SECRET_ACCESS_KEY"],
                region=far.far["AWS_REGION"],
                client_options={"allow_http": True},
            ).get("a")
            assert len(found.bytes()) == 1000
        assert [each.link.requests for each in (store, one, other)] == [0, 2, 1]
        assert one.link.sent > other.link.sent > 1000
        assert one.link.round_trip_s == other.link.round_trip_s == 0.01


@pytest.mark.nightly
def test_substitution(tmp_path: Path):
    found = report(tmp_path, "papers.substitution")
    (trial,) = found["results"]
    assert sorted(trial) == ["1 x look_ahead=10", "1 x own order", "2 x look_ahead=10", "2 x own order"]
    assert all(way["requests"] >= 0.5 for way in trial.values())  # two jobs may have shared all of them
    assert len(found["aims"]) == 5


@pytest.mark.parametrize("way", [stragglers.IDEAL, stragglers.OURS, "torch DataLoader"])
def test_stragglers(way: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stragglers, "AT_A_TIME", 2)
    assert stragglers.read(way, 100) > 0, "and each element came once"


def test_requests_are_predicted(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("OBJECTS", 300), ("BATCH", 50)):
        monkeypatch.setattr(costs, name, value)
    cases = ("bucket", "prefetch, cache of all", "service, 2 workers")
    monkeypatch.setattr(costs, "CASES", {name: costs.CASES[name] for name in cases})
    found = costs.requests()
    assert {name: row["counted"] for name, row in found.items()} == {
        name: pytest.approx(row["predicted"], rel=0.06)  # a service may ask a second time for a twentieth, if slow
        for name, row in found.items()
    }
    assert {name: row["counted lists"] for name, row in found.items()} == dict.fromkeys(cases, 1)
