"""Workers as another user: what functions in them get of the service's, and what still works. Needs root."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.cli import main
from millrace.cli.unprivileged_worker import find_user
from millrace.client.status_query import fetch_status
from millrace.errors import AccessDeniedError, PipelineError, ServiceError

UID = 54321
TOKEN = "a-token-of-the-service"
COMMAND = [sys.executable, "-P", "-m", "millrace"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start workers as another user")


def closed_folder() -> str:
    """The first folder on the way to Python that other users cannot enter; empty: there is none."""
    for path in (os.path.realpath(sys.executable), mr.__file__, np.__file__, *sys.path):
        for folder in reversed(Path(path).absolute().parents):
            if not folder.stat().st_mode & 0o001:
                return str(folder)
    return ""


def open_to_all() -> list[str]:
    """Words that start a command where other users can read this Python: with mounts of its own, if it takes that."""
    closed = closed_folder()
    if not closed:
        return []
    kept = {
        os.path.relpath(path, closed).split("/")[0]
        for path in (os.path.realpath(sys.executable), *filter(os.path.exists, sys.path))
        if os.path.realpath(path).startswith(closed + "/")
    }
    script = f'kept=$(mktemp -d) && mount --bind "{closed}" "$kept" && mount -t tmpfs -o mode=755 none "{closed}"'
    script += "".join(f' && mkdir "{closed}/{name}" && mount --bind "$kept/{name}" "{closed}/{name}"' for name in kept)
    return ["unshare", "--mount", "sh", "-c", script + ' && umount "$kept" && rmdir "$kept" && exec "$@"', "sh"]


@pytest.fixture(scope="module")
def elsewhere() -> list[str]:
    words = open_to_all()
    if words and subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip(
            f"other users cannot read this Python ({closed_folder()}), and mounting it elsewhere isn't permitted"
        )
    return words


@contextlib.contextmanager
def process(*words: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that ends with its standard input."""
    started = subprocess.Popen(
        [*words, "--parent-pipe"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "MILLRACE_TOKEN": TOKEN, **environment},
    )
    try:
        yield started
    finally:
        started.communicate(timeout=60)


class Served:
    """A dispatcher of root's with a journal and a cache, and workers of another user's."""

    def __init__(self, folder: Path, dispatcher: subprocess.Popen[bytes]) -> None:
        self.folder, self.dispatcher = folder, dispatcher
        assert dispatcher.stdout is not None
        said = json.loads(dispatcher.stdout.readline())
        self.address, self.pid = said["address"], said["pid"]

    def read(self, dataset, **options):
        with dataset.distribute(self.address, token=TOKEN, **options) as reading:
            return list(reading)

    def wait_for_workers(self, count: int) -> None:
        """The processes of other users are started by those of root, some time after the dispatcher has begun."""
        deadline = time.monotonic() + 60
        while len(found := fetch_status(self.address, TOKEN)["workers"]) != count:
            assert time.monotonic() < deadline, found
            threading.Event().wait(0.05)

    def wait_for_items(self, count: int, made_by: str) -> None:
        """A block may be written after its elements were delivered."""
        deadline = time.monotonic() + 20
        points: list[dict[str, Any]] = []
        while sum(point["items"] for point in points if made_by in point["label"]) != count:
            assert time.monotonic() < deadline, points
            threading.Event().wait(0.05)
            points = fetch_status(self.address, TOKEN)["cache"]["points"]


@contextlib.contextmanager
def serving(elsewhere, folder) -> Iterator[Served]:
    (folder / "tokens.toml").touch(mode=0o600)
    options = ["--port", "0", "--workers", "2", "--threads", "1", "--worker-user", str(UID), "--heartbeat", "1"]
    options += ["--work-dir", str(folder / "work"), "--cache-dir", str(folder / "cache"), "--cache-bytes", str(1 << 32)]
    words = [*elsewhere, *COMMAND, "dispatcher", *options, "--tokens", str(folder / "tokens.toml")]
    with process(*words) as dispatcher:
        served = Served(folder, dispatcher)
        served.wait_for_workers(2)
        yield served


@pytest.fixture(scope="module")
def served(elsewhere, tmp_path_factory) -> Iterator[Served]:
    with serving(elsewhere, tmp_path_factory.mktemp("served")) as served:
        yield served


def attempt(action):
    """What comes of it, in a word: functions tell of it as an element."""
    try:
        return f"did: {action()!r}"
    except OSError as error:
        return type(error).__name__


def test_functions_run_as_that_user_in_no_group_of_the_services(served):
    def who(number):
        return os.getresuid(), os.getresgid(), os.getgroups(), os.environ["HOME"]

    assert served.read(mr.Dataset.range(4).map(who)) == [((UID,) * 3, (UID,) * 3, [], "/")] * 4


def test_functions_read_nothing_that_is_the_services(served, tmp_path):
    """Its cache, its journal, its tokens, its environment and memory, and that of who starts them."""
    warm = mr.Dataset.range(100).map(lambda n: np.full(1000, n)).cache().batch(10)
    assert len(served.read(warm, job_name="warm")) == 10
    blocks = [str(path) for path in (served.folder / "cache").rglob("*") if path.is_file()]
    assert blocks
    journal = [str(path) for path in (served.folder / "work").rglob("*") if path.is_file()]
    assert journal
    own_token = os.path.join(os.environ["XDG_STATE_HOME"], "millrace", "token")
    paths = [*blocks, *journal, str(served.folder / "tokens.toml"), f"/proc/{served.pid}/environ", "/etc/shadow"]
    paths += [own_token] if os.path.exists(own_token) else []
    folders = [str(served.folder / "cache"), str(served.folder / "work"), f"/proc/{served.pid}/fd"]

    def attack(number):
        parent = os.getppid()
        for path in (*paths, f"/proc/{parent}/environ", f"/proc/{parent}/mem"):
            yield path, attempt(lambda: open(path, "rb").read(10))  # noqa: B023, SIM115
            yield path, attempt(lambda: os.open(path, os.O_WRONLY))  # noqa: B023
        for folder in (*folders, f"/proc/{parent}/fd", f"/proc/{parent}/cwd"):
            yield folder, attempt(lambda: os.listdir(folder))  # noqa: B023
        yield "setuid", attempt(lambda: os.setuid(0))
        yield "kill", attempt(lambda: os.kill(parent, 0))

    found = dict(pair for pairs in served.read(mr.Dataset.range(1).map(lambda n: list(attack(n)))) for pair in pairs)
    assert len(found) >= len(paths) + len(folders) + 4
    assert {path: how for path, how in found.items() if how != "PermissionError"} == {}


def test_its_environment_has_no_token_and_nothing_gives_privileges(served):
    def look(number):
        status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
        return "MILLRACE_TOKEN" in os.environ, status["NoNewPrivs"], int(status["CapEff"], 16)

    assert served.read(mr.Dataset.range(1).map(look)) == [(False, "1", 0)]


def test_the_workers_token_does_nothing_but_work(served):
    """User code is in the same process: it can have whatever that has."""

    def steal(number):
        tokens = [part for part in Path("/proc/self/environ").read_bytes().split(b"\0") if b"MILLRACE_TOKEN" in part]
        return [token.partition(b"=")[2].decode() for token in tokens]

    ((stolen,),) = served.read(mr.Dataset.range(1).map(steal))
    assert stolen != TOKEN
    with pytest.raises(AccessDeniedError, match='lacks the right status = "own"'):
        fetch_status(served.address, stolen)
    with pytest.raises(AccessDeniedError, match="lacks the right run = true"):
        list(mr.Dataset.range(1).distribute(served.address, token=stolen))


def test_the_broker_opens_nothing_but_blocks_and_changes_none(served):
    warm = mr.Dataset.range(100).map(lambda n: np.full(1000, n + 1)).cache().batch(10)
    served.read(warm, job_name="other")
    block = next(
        path for path in (served.folder / "cache").glob("*/*") if path.is_file() and path.parent.name != ".drafts"
    )
    before, point, name, folder = block.read_bytes(), block.parent.name, block.name, str(served.folder)

    def attack(number):
        import gc

        from millrace.errors import CacheError
        from millrace.wire.broker.brokered_store import BrokeredStore

        (store,) = [each for each in gc.get_objects() if type(each) is BrokeredStore]

        def poison():
            with store.draft() as draft:
                draft.write(b"poison")
                draft.publish(point, name)

        told = []
        actions = [poison, store.blocks, lambda: store.use("/etc"), lambda: store.use(folder)]
        actions += [
            lambda: store.open("..", "work"),
            lambda: store.open("work", "lock"),
            lambda: store.delete(point, name),
        ]
        for action in actions:
            try:
                told.append(str(action()))
            except CacheError as error:
                told.append(type(error).__name__)
        return told

    (told,) = served.read(mr.Dataset.range(1).map(attack))
    assert told == ["None", *["CacheError"] * 4, "BlockMissingError", "None"]
    assert block.read_bytes() == before


def test_what_is_kept_is_the_services_and_read_by_all_workers(served):
    def with_maker(number):
        return np.full(2000, number), os.getpid()

    calls = mr.Dataset.range(1000).map(with_maker).cache().batch(50)
    made = []
    for name in ("first", "second"):
        batches = [(numbers[:, 0], makers) for numbers, makers in served.read(calls, job_name=name)]
        made.append({int(n): int(pid) for each in batches for n, pid in zip(*each, strict=True)})
        served.wait_for_items(1000, "with_maker")
    assert made[0].keys() == set(range(1000))
    assert made[0] == made[1]  # once: what the second job reads are blocks
    assert {path.stat().st_uid for path in (served.folder / "cache").rglob("*")} == {0}


def test_memory_is_passed_to_the_services_user(served):
    """Batches lie in memory that their worker has made, which is mapped and not copied."""
    rows = mr.Dataset.range(64).map(lambda n: np.full(1 << 16, n)).batch(8)
    with rows.distribute(served.address, token=TOKEN) as reading:
        batch = next(iter(reading))
        assert batch.shape == (8, 1 << 16)
        assert "memfd:millrace" in Path("/proc/self/maps").read_text()


def test_a_worker_that_is_killed_is_replaced_and_every_element_comes_once(elsewhere, tmp_path):
    folder = Path(tempfile.mkdtemp(prefix="mr-open-", dir="/tmp"))
    folder.chmod(0o777)

    def fatal(number):
        if number == 300 and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    with serving(elsewhere, tmp_path) as own:
        assert Counter(own.read(mr.Dataset.range(1000).map(fatal))) == Counter(range(1000))
    assert (folder / "died").stat().st_uid == UID
    shutil.rmtree(folder)


def test_it_ends_with_the_process_that_started_it(elsewhere):
    """By SIGKILL too, whatever runs in it."""
    folder = tempfile.mkdtemp(prefix="mr-open-", dir="/tmp")
    pipe = os.path.join(folder, "pid")
    os.mkfifo(pipe)
    for path, mode in ((folder, 0o755), (pipe, 0o666)):
        os.chmod(path, mode)

    def stuck(number):
        Path(pipe).write_text(str(os.getpid()))
        threading.Event().wait()

    with process(*COMMAND, "dispatcher", "--port", "0") as dispatcher:
        assert dispatcher.stdout is not None
        address = json.loads(dispatcher.stdout.readline())["address"]
        words = [*elsewhere, *COMMAND, "worker", "--dispatcher", address, "--user", str(UID), "--name", "w"]
        with (
            process(*words) as worker,
            mr.Dataset.range(1).map(stuck).distribute(address, token=TOKEN) as reading,
        ):
            errors: list[BaseException] = []

            def read():
                try:
                    list(reading)
                except mr.errors.MillraceError as error:
                    errors.append(error)

            thread = threading.Thread(target=read)
            thread.start()
            pid = int(Path(pipe).read_text())
            handle = os.pidfd_open(pid)
            assert os.stat(f"/proc/{pid}").st_uid == UID
            worker.kill()
            assert select.select([handle], [], [], 60)[0]
            os.close(handle)
            reading.close()
            thread.join()
    shutil.rmtree(folder)


def test_functions_cannot_type_into_the_terminal_of_who_started_their_worker(elsewhere):
    def look(number):
        return attempt(lambda: os.open("/dev/tty", os.O_RDWR))

    ours, terminal = os.openpty()
    with process(*COMMAND, "dispatcher", "--port", "0") as dispatcher:
        assert dispatcher.stdout is not None
        address = json.loads(dispatcher.stdout.readline())["address"]
        words = ["setsid", "--ctty", *elsewhere, *COMMAND, "worker", "--dispatcher", address, "--user", str(UID)]
        worker = subprocess.Popen(words, stdin=terminal, env={**os.environ, "MILLRACE_TOKEN": TOKEN})
        try:
            with mr.Dataset.range(1).map(look).distribute(address, token=TOKEN) as reading:
                assert list(reading) == ["OSError"]  # there is no such device
        finally:
            worker.send_signal(signal.SIGINT)
            assert worker.wait(60) == 0
            os.close(terminal)
            os.close(ours)


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("0", "cannot be root"),
        ("root", "cannot be root"),
        ("nobody-of-this-name", "knows no user of that name"),
        (str(1 << 40), "knows no user of that name"),
    ],
)
def test_who_cannot_be_a_worker_is_refused(user, words, capsys):
    assert main(["worker", "--dispatcher", "127.0.0.1:1", "--user", user]) == 1
    assert words in capsys.readouterr().err
    assert main(["dispatcher", "--port", "0", "--workers", "1", "--worker-user", user]) == 1
    assert words in capsys.readouterr().err


def test_workers_of_clusters_run_as_the_cluster_says(capsys):
    assert (
        main(["dispatcher", "--port", "0", "--workers", "1", "--cluster", "kubernetes", "--worker-user", "nobody"]) == 1
    )
    assert "those of a cluster run as it says" in capsys.readouterr().err


def test_only_root_can(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: UID)
    with pytest.raises(PipelineError, match="only root can start workers as another user; run the whole service as"):
        find_user("nobody")


def test_a_service_of_one_process_says_what_is_wrong():
    with pytest.raises(ServiceError, match="a worker that is to have fewer rights cannot be root"):
        mr.LocalService(0, 1, user="root")
