"""Another user of the machine: refused by services, told no token, and given no folder. Needs root, to become one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.cli import main
from millrace.client.status_query import fetch_status
from millrace.dispatcher.work_dir import WorkDir
from millrace.elements.shared import Arena
from millrace.errors import AuthenticationError, CacheError, ServiceError
from millrace.wire.data.data_connection import DataServer

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder of the other user's, where no other folder is in his way."""
    path = tempfile.mkdtemp(prefix="mr-theirs-", dir="/tmp")
    os.chown(path, NOBODY, NOBODY)
    yield Path(path)
    shutil.rmtree(path)


def as_nobody(theirs: Path, program: str, *arguments: str, loaded: str = "") -> subprocess.Popen[str]:
    """Python that becomes another user once it has loaded what it needs, which he may not be able to read."""
    become = f"""import os, sys
{loaded}
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
os.environ["XDG_STATE_HOME"] = {str(theirs)!r}
"""
    command = [sys.executable, "-c", become + program, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


ASK = """
from millrace.errors import MillraceError
try:
    print(len(fetch_status(sys.argv[1])["workers"]))
except MillraceError as error:
    print(type(error).__name__, error)
"""
LOADED = "from millrace.client.status_query import fetch_status; fetch_status(sys.argv[1], sys.argv[2])"


def test_a_service_of_ones_own_is_found_without_a_word_and_refuses_others(theirs: Path, capsys: Any):
    with mr.LocalService(max_workers=1) as service:
        assert service.token is None
        assert len(list(mr.Dataset.range(100).batch(10).distribute(service.address, job_name="a"))) == 10
        assert main(["status", "--service", service.address, "--check"]) == 0
        assert capsys.readouterr().out == "the dispatcher answers\n"
        out, err = as_nobody(theirs, ASK, service.address, "", loaded=LOADED.replace(", sys.argv[2]", "")).communicate()
        assert out.startswith("AuthenticationError the service refused the token"), err
        assert "of the same user, on the same machine" in out


def test_a_token_that_is_given_lets_others_in(theirs: Path):
    """As before: whoever knows it may ask, whichever user it is."""
    with mr.LocalService(max_workers=1, token="secret") as service:
        with pytest.raises(AuthenticationError, match="refused the token"):
            fetch_status(service.address)
        out, err = as_nobody(
            theirs, ASK.replace("argv[1]", 'argv[1], "secret"'), service.address, "secret", loaded=LOADED
        ).communicate()
        assert out.strip().isdigit(), (out, err)


def told_token(element):
    return os.environ.get("MILLRACE_TOKEN", "none"), b"secret" in Path("/proc/self/cmdline").read_bytes()


def test_functions_are_told_no_token():
    """They print their environment, and start processes with it; and whoever asks ps sees command lines."""
    with mr.LocalService(max_workers=1, token="secret") as service:
        ds = mr.Dataset.range(1).map(told_token)
        assert list(ds.distribute(service.address, job_name="a", token="secret")) == [("none", False)]


SQUAT = """
import socket
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def test_who_took_the_port_is_told_nothing(theirs: Path):
    with as_nobody(theirs, SQUAT, loaded="import socket, encodings.idna") as squatter:
        assert squatter.stdout is not None
        port = int(squatter.stdout.readline())
        with pytest.raises(AuthenticationError, match=rf":{port} belongs to another user .*\(uid {NOBODY}\)"):
            fetch_status(f"grpc://127.0.0.1:{port}", timeout=2)
        squatter.communicate()


CONNECT = """
with open_data_connection(sys.argv[1], "secret") as connection:
    print(connection._local is not None)
"""


def test_memory_is_passed_to_processes_of_the_same_user(theirs: Path):
    loaded = "from millrace.wire.data.data_connection import open_data_connection\n"
    loaded += 'open_data_connection(sys.argv[1], "secret").close()'
    arena = Arena(1 << 20)
    with DataServer("127.0.0.1", lambda connection: None, token="secret", arena=arena) as server:
        out, err = as_nobody(theirs, CONNECT, server.address, loaded=loaded).communicate()
        assert out == "False\n", err
        out, err = as_nobody(
            theirs, CONNECT, server.address, loaded=f"{loaded}\nos.setuid = lambda uid: None"
        ).communicate()
        assert out == "True\n", err


def test_a_folder_of_another_user_is_no_work_dir_and_no_cache(theirs: Path, tmp_path: Path):
    with pytest.raises(ServiceError, match=rf"work_dir .* cannot be used: it belongs to another user \(uid {NOBODY}\)"):
        WorkDir(str(theirs))
    from millrace.blocks.stores.file_store import FileStore

    with pytest.raises(CacheError, match="it belongs to another user"):
        FileStore(str(theirs))
    (tmp_path / "link").symlink_to(theirs)
    with pytest.raises(ServiceError, match="belongs to another user"):
        WorkDir(str(tmp_path / "link"))


def test_what_a_service_keeps_is_its_owners_alone(tmp_path: Path):
    work, cache = tmp_path / "work", tmp_path / "cache"
    for folder in (work, cache):
        folder.mkdir(mode=0o755)
    with mr.LocalService(max_workers=1, work_dir=str(work), cache_dir=str(cache), cache_bytes=1 << 20) as service:
        dataset = mr.Dataset.range(100).map(lambda n: n + 1).cache().batch(10)
        with dataset.distribute(service.address, job_name="a") as batches:
            assert len(list(batches)) == 10
            modes = {}
            for each in (work, cache, *work.rglob("*"), *cache.rglob("*")):
                if each.is_symlink():
                    continue
                with contextlib.suppress(FileNotFoundError):  # the service goes on, and removes some
                    modes[str(each)] = stat.S_IMODE(each.lstat().st_mode)
    assert any(each.is_file() for each in cache.rglob("*"))
    assert any("/blobs/" in name for name in modes)
    assert not {name: oct(mode) for name, mode in modes.items() if mode & 0o077}


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(ServiceError, match="Too many levels of symbolic links"):
        WorkDir(str(tmp_path / "work"))
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_worker_may_come_before_its_dispatcher(tmp_path: Path):
    """In three shells, in any order, and no token is typed."""
    with mr.LocalService(min_workers=0, max_workers=1) as service:
        port = service.address.rpartition(":")[2]
    command = [sys.executable, "-m", "millrace"]
    pipe = subprocess.PIPE
    worker = [*command, "worker", "--dispatcher", f"grpc://localhost:{port}", "--parent-pipe"]
    dispatcher = [*command, "dispatcher", "--port", port, "--parent-pipe"]
    with (
        subprocess.Popen(worker, stdin=pipe) as one,
        subprocess.Popen(dispatcher, stdin=pipe, stdout=pipe) as two,
    ):
        assert two.stdout is not None
        address = json.loads(two.stdout.readline())["address"]
        with mr.Dataset.range(100).batch(10).distribute(address, job_name="a") as batches:
            assert len(list(batches)) == 10
        one.communicate()
        two.communicate()
