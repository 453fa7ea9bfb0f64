"""What is done to what a service keeps in its cache; as :mod:`chaos.faults`, of which these are a part."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
from collections.abc import Callable
from typing import TypeVar

from chaos import child_processes
from chaos.child_processes import NotFiredError
from chaos.crew import GUARD_S, Crew

_DRAFTS = ".drafts"
_LOOK_S = 0.005
_IDLE_S = 3.0
"""Nothing was written for so long: what is kept is removed, so that there is something to keep again."""

T = TypeVar("T")


async def kill_keeper(crew: Crew, rng: random.Random) -> str:
    """SIGKILL to a worker that is writing a block; another one is started."""
    async with crew.a_worker(rng) as worker:
        pid = worker.process.pid
        clearing = asyncio.create_task(_clear_when_idle(crew))
        try:
            await _seen(lambda: _drafts(crew, pid), "the worker wrote no block")
            await child_processes.kill(worker.process)
        finally:
            clearing.cancel()
        left = _drafts(crew, pid)
        await crew.remove(worker)
        new = await crew.add_worker()
    if not left:
        return await kill_keeper(crew, rng)  # it had just published it
    return f"{worker.name} was alive and is dead, and left {left[0]}; {new.name} comes"


async def _clear_when_idle(crew: Crew) -> None:
    while True:
        await asyncio.sleep(_IDLE_S)
        if not _drafts(crew):
            for path in _blocks(crew):
                _remove(path)


async def damage_block(crew: Crew, rng: random.Random) -> str:
    """Some bytes of a block are others."""
    path = await _a_block(crew, rng)
    with contextlib.suppress(FileNotFoundError):
        return f"{_damage(path, rng)} of {path} are others now"
    return await damage_block(crew, rng)


def _damage(path: str, rng: random.Random) -> str:
    with open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        at = rng.randrange(max(1, size - 16))
        before = os.pread(file.fileno(), 16, at)
        os.pwrite(file.fileno(), bytes(byte ^ 0xFF for byte in before), at)
    return f"{len(before)} bytes of {size} at {at}"


async def truncate_block(crew: Crew, rng: random.Random) -> str:
    """A block ends too soon."""
    path = await _a_block(crew, rng)
    with contextlib.suppress(FileNotFoundError):
        size = os.stat(path).st_size
        os.truncate(path, length := rng.randrange(size))
        return f"{path} had {size} bytes and has {length}"
    return await truncate_block(crew, rng)


async def remove_block(crew: Crew, rng: random.Random) -> str:
    """A block is gone."""
    path = await _a_block(crew, rng)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        return f"{path} is gone"
    return await remove_block(crew, rng)


async def remove_cache(crew: Crew, rng: random.Random) -> str:
    """The folder is gone, and all that was in it."""
    await _a_block(crew, rng)
    aside = f"{crew.cache_dir}-{rng.getrandbits(32):x}"
    os.rename(crew.cache_dir, aside)
    count = sum(len(files) for _, _, files in os.walk(aside))
    shutil.rmtree(aside)
    return f"the folder with {count} blocks and drafts is gone"


async def fill_cache(crew: Crew, rng: random.Random) -> str:
    """No room for blocks, for a while."""
    filler = os.path.join(os.path.dirname(crew.cache_dir), f"filler-{rng.getrandbits(32):x}")
    await _a_block(crew, rng)
    try:
        fill(filler)
        await asyncio.sleep(rng.uniform(0.5, 3.0))
    finally:
        os.unlink(filler)
    return "the disk gave ENOSPC"


def fill(path: str) -> None:
    """Writes a file until its disk is full.

    Raises:
        OSError: it failed for another reason.
    """
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _blocks(crew: Crew) -> list[str]:
    return [
        os.path.join(folder, file)
        for folder, _, files in os.walk(crew.cache_dir)
        for file in files
        if os.path.basename(folder) != _DRAFTS
    ]


def _drafts(crew: Crew, pid: int | None = None) -> list[str]:
    """Of all writers, or of one."""
    with contextlib.suppress(FileNotFoundError):
        names = os.listdir(os.path.join(crew.cache_dir, _DRAFTS))
        return [name for name in names if pid is None or name.rsplit(".", 2)[1] == str(pid)]
    return []


async def _a_block(crew: Crew, rng: random.Random) -> str:
    return rng.choice(sorted(await _seen(lambda: _blocks(crew), "nothing is kept")))


async def _seen(look: Callable[[], list[T]], otherwise: str) -> list[T]:
    """What is found as soon as there is any."""
    try:
        async with asyncio.timeout(GUARD_S):
            while not (found := look()):  # noqa: ASYNC110 (no file says that it is there)
                await asyncio.sleep(_LOOK_S)
            return found
    except TimeoutError:
        raise NotFiredError(f"{otherwise} for {GUARD_S:.0f} s") from None


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
