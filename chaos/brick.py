"""``python -m chaos.brick``: a disk dies under a cache that is spread over four, while a job reads from it.

    apt-get install --no-install-recommends glusterfs-server glusterfs-client
    python -m chaos.brick

The cache lies on a GlusterFS volume of four bricks, any three of which have all of it. A job keeps all its elements
there in its first epoch and reads them in all others. In the third one brick is ended by SIGKILL; after that epoch it
is started again, and the volume heals. Every element of every epoch is looked at, and counted if it was made and not
read; the exit status is 1 if one was wrong, lost or made twice. Needs root, and no other volumes on this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import millrace as mr
from chaos.pipeline import content_of

HOST = "127.0.0.2"
VOLUME = "millrace-cache"
BRICKS = 4
ELEMENTS = 8192
TIMES = 16
"""Of 4 KiB, that an element repeats."""
EPOCHS = 5
STRUCK = 2
"""The epoch in which a brick dies, when a quarter of it was read."""
_WAIT_S = 60.0


def main() -> int:
    """Runs it; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="millrace-brick-") as folder, volume(folder) as mounted:
        made = os.path.join(folder, "made")
        with open(made, "wb"):
            pass
        cache = os.path.join(mounted, "cache")
        with mr.LocalService(max_workers=2, cache_dir=cache, cache_bytes=4 << 30) as service:
            served = elements(made).distribute(service.address)
            with served:
                wrong = [epoch for epoch in range(EPOCHS) if not read(served, epoch, made)]
            (point,) = service.status()["cache"]["points"]
            print(f"{point['items']} elements in {point['blocks']} blocks, {point['bytes'] >> 20} MiB, in the end")
    return 1 if wrong else 0


def elements(made: str) -> mr.Dataset:
    """Numbers with contents that follow from them; each one that is made adds a byte to the file ``made``."""

    def make(number: int) -> dict[str, Any]:
        with open(made, "ab") as file:
            file.write(b".")
        return {"number": number, "content": np.frombuffer(content_of(number) * TIMES, np.uint8)}

    return mr.Dataset.range(ELEMENTS).map(make, key="1").autocache("cache").shuffle(ELEMENTS).batch(64)


def read(served: Any, epoch: int, made: str) -> bool:
    """Reads an epoch, says what came, and whether it was right."""
    before, began = os.path.getsize(made), time.monotonic()
    came = wrong = 0
    struck = ""
    for batch in served:
        for number, content in zip(batch["number"].tolist(), batch["content"], strict=True):
            came += 1
            wrong += content.tobytes() != content_of(number) * TIMES
        if epoch == STRUCK and not struck and came >= ELEMENTS // 4:
            struck = f"; after {came} of them {kill_brick()}"
    seconds = time.monotonic() - began
    count = os.path.getsize(made) - before
    print(f"epoch {epoch}: {came} elements in {seconds:.1f} s, {count} of them made, {wrong} wrong{struck}", flush=True)
    if epoch == STRUCK:
        print(heal(), flush=True)
    return came == ELEMENTS and not wrong and count == (0 if epoch else ELEMENTS)


# -- the volume --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def volume(folder: str) -> Iterator[str]:
    """A dispersed volume of four bricks with redundancy 1, mounted in a folder."""
    mounted = os.path.join(folder, "mounted")
    bricks = [os.path.join(folder, f"brick{number}") for number in range(BRICKS)]
    for path in (mounted, *bricks):
        os.mkdir(path)
    with contextlib.ExitStack() as stack:
        daemon = subprocess.Popen(["glusterd", "--no-daemon"])
        stack.callback(daemon.wait)
        stack.callback(daemon.terminate)
        _until(lambda: _gluster("volume", "list", check=False).returncode == 0, "glusterd does not answer")
        places = [f"{HOST}:{path}" for path in bricks]
        _gluster("volume", "create", VOLUME, "disperse", str(BRICKS), "redundancy", "1", *places, "force")
        stack.callback(_gluster, "volume", "delete", VOLUME)
        _gluster("volume", "start", VOLUME)
        stack.callback(_gluster, "volume", "stop", VOLUME, "force")
        subprocess.run(["mount", "-t", "glusterfs", f"{HOST}:/{VOLUME}", mounted], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", mounted], check=True)
        yield mounted


def kill_brick() -> str:
    """Ends one brick by SIGKILL; what was done."""
    path, pid = next(iter(online().items()))
    os.kill(pid, signal.SIGKILL)
    _until(lambda: path not in online(), f"{path} lives on")
    return f"{os.path.basename(path)} of {BRICKS} was killed"


def heal() -> str:
    """Starts the brick again, and waits until it has what it missed."""
    began = time.monotonic()
    _until(_started, "a brick does not come back")
    _until(lambda: not _to_heal(), "the volume does not heal")
    return f"all {BRICKS} bricks are back and whole after {time.monotonic() - began:.1f} s"


def online() -> dict[str, int]:
    """Of each brick that lives, by its folder, the process."""
    found = {}
    for node in _gluster("volume", "status", VOLUME, "--xml").stdout.split("<node>")[1:]:
        told = dict(re.findall(r"<(hostname|path|status|pid)>(.*?)</", node))
        if told["hostname"] == HOST and told["status"] == "1":
            found[told["path"]] = int(told["pid"])
    return found


def _started() -> bool:
    _gluster("volume", "start", VOLUME, "force")
    return len(online()) == BRICKS


def _to_heal() -> int:
    counts = re.findall(r"Number of entries: (\S+)", _gluster("volume", "heal", VOLUME, "info").stdout)
    return sum(1 if count == "-" else int(count) for count in counts)


def _gluster(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["gluster", "--mode=script", *arguments], check=check, capture_output=True, text=True)


def _until(condition: Any, otherwise: str) -> None:
    end = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{otherwise}, after {_WAIT_S:.0f} s")
        threading.Event().wait(0.1)  # what it waits for are processes of others, who tell nobody


if __name__ == "__main__":
    sys.exit(main())
