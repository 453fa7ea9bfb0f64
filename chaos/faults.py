"""What is done to a service. Each function does it once, proves it, and says what it saw."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import Awaitable, Callable

from chaos import cache_faults, child_processes, proxy
from chaos.child_processes import NotFiredError
from chaos.crew import GUARD_S, HEARTBEAT_S, Crew, Reader, go_on
from millrace.clusters.child_process import hang_up

_BULK_BYTES = 4096
"""Least piece of a connection with a worker that is harmed: inside of a batch, which is larger."""
_FILLER = "filler"

Lives = dict[Reader, subprocess.Popen[bytes] | None]
Run = Callable[[Crew, random.Random], Awaitable[str]]


async def kill_worker(crew: Crew, rng: random.Random) -> str:
    """SIGKILL; another one is started."""
    async with crew.a_worker(rng) as worker:
        await child_processes.kill(worker.process)
        await crew.remove(worker)
        new = await crew.add_worker()
    return f"{worker.name} was alive and is dead; {new.name} comes"


async def stop_worker(crew: Crew, rng: random.Random) -> str:
    """SIGSTOP for less than it takes to be given up."""
    seconds = rng.uniform(0.2, 2.0) * HEARTBEAT_S
    async with crew.a_worker(rng) as worker, child_processes.stopped(worker.process):
        await asyncio.sleep(seconds)
    return f"{worker.name} was in state T for {seconds:.2f} s"


async def stop_worker_for_long(crew: Crew, rng: random.Random) -> str:
    """SIGSTOP until the dispatcher has given it up, and it goes on."""
    async with crew.a_worker(rng) as worker:
        await crew.until(lambda status: worker.name in _workers(status))
        async with child_processes.stopped(worker.process):
            await crew.until(lambda status: worker.name not in _workers(status))
            await asyncio.sleep(rng.uniform(0.0, 1.0))
    return f"{worker.name} was in state T until it was given up"


def _workers(status: dict[str, object]) -> set[str]:
    found = status["workers"]
    assert isinstance(found, list)
    return {worker["id"] for worker in found}


async def retire_worker(crew: Crew, rng: random.Random) -> str:
    """SIGTERM: it leaves in good order, as another one comes."""
    async with crew.a_worker(rng) as worker:
        await crew.until(lambda status: worker.name in _workers(status))
        worker.process.send_signal(signal.SIGTERM)
        new = await crew.add_worker()
        status = await asyncio.wait_for(child_processes.ended(worker.process), GUARD_S)
        await crew.remove(worker)
    if status != 0:
        raise NotFiredError(f"{worker.name} ended with exit status {status}")
    return f"{new.name} came, {worker.name} left with exit status 0"


async def kill_dispatcher(crew: Crew, rng: random.Random) -> str:
    """SIGKILL; it is started again on its folder."""
    seconds = rng.uniform(0.0, 1.0)
    async with crew.alone:
        before = crew.dispatcher
        await child_processes.kill(before)
        hang_up(before)
        await asyncio.sleep(seconds)
        await crew.start_dispatcher()
    return f"process {before.pid} was alive and is dead; {crew.dispatcher.pid} listens"


async def stop_dispatcher(crew: Crew, rng: random.Random) -> str:
    """SIGSTOP."""
    seconds = rng.uniform(0.2, 4.0) * HEARTBEAT_S
    async with crew.alone, child_processes.stopped(crew.dispatcher):
        await asyncio.sleep(seconds)
    return f"it was in state T for {seconds:.2f} s"


async def stop_consumer(crew: Crew, rng: random.Random) -> str:
    """SIGSTOP."""
    seconds = rng.uniform(0.2, 4.0) * HEARTBEAT_S
    async with crew.a_reader(rng) as reader:
        assert reader.process is not None
        async with child_processes.stopped(reader.process):
            await asyncio.sleep(seconds)
    return f"{reader.name} was in state T for {seconds:.2f} s"


async def kill_consumers(crew: Crew, rng: random.Random) -> str:
    """SIGKILL of one; who has started them ends the others, and starts all again from what each has saved."""
    async with crew.a_training(rng) as training:
        before = await _kill(rng.sample(training, len(training)))
        await _succeeded(crew, before)
    return (
        f"{training[0].options.job}: {len(before)} were alive and are dead; their successors go on from what is saved"
    )


async def replace_consumer(crew: Crew, rng: random.Random) -> str:
    """One is stopped and replaced, with all others of its job; then it goes on, and must not disturb."""
    async with crew.a_training(rng) as training:
        one, *others = rng.sample(training, len(training))
        process = one.process
        assert process is not None
        async with child_processes.stopped(process):
            one.gone.set()
            before = await _kill(others)
            await _succeeded(crew, {one: process, **before})
            go_on(process)  # if it waits at the end of an epoch
            hang_up(process)
        status = await asyncio.wait_for(child_processes.ended(process), GUARD_S)
    if status == 0:  # it had read everything before it was stopped, and could not disturb anybody
        return await replace_consumer(crew, rng)
    if status != 1 or "ConsumerConflictError" not in crew.said(one):
        raise NotFiredError(f"{one.name} went on when it had a successor, and ended with exit status {status}")
    return f"{one.name} was in state T, has a successor, and was told so when it went on"


async def _kill(readers: list[Reader]) -> Lives:
    before = {reader: reader.process for reader in readers}
    for process in before.values():
        assert process is not None
        await child_processes.kill(process)
    return before


async def _succeeded(crew: Crew, before: Lives) -> None:
    for reader, process in before.items():
        await crew.succeeded(reader, process)


def harm(kind: proxy.FaultKind, *, bulk: bool, least_s: float = 0.0, most_s: float = 0.0) -> Run:
    """What a proxy does to a connection with the dispatcher, or with a worker (``bulk``)."""

    async def run(crew: Crew, rng: random.Random) -> str:
        order = proxy.ProxyFault(kind, rng.uniform(least_s, most_s), _BULK_BYTES if bulk else 2, spare=rng.randrange(8))
        (crew.bulk if bulk else crew.control).append(order)
        try:
            size = await asyncio.wait_for(order.fired, GUARD_S)
        except TimeoutError:
            raise NotFiredError("no connection had bytes in flight") from None
        return f"{size} bytes were in flight; {order.seconds:.2f} s"

    return run


async def fill_disk(crew: Crew, rng: random.Random) -> str:
    """No room for the journal, until the dispatcher has said so.

    It is restarted in good order before: SQLite then gives back what its log holds for later, so that its next write
    needs room. Else hundreds might fit.
    """
    filler = os.path.join(crew.work_dir, _FILLER)
    async with crew.alone:
        before = crew.dispatcher
        before.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(child_processes.ended(before), GUARD_S)
        hang_up(before)
        if status != 0:
            raise NotFiredError(f"the dispatcher was to end in good order, and its exit status is {status}")
        await crew.start_dispatcher()
        try:
            cache_faults.fill(filler)
            await crew.until(lambda status: "stands still" in str(status["journal"]))
            await asyncio.sleep(rng.uniform(0.0, 2.0))
        finally:
            os.unlink(filler)
        await crew.until(lambda status: "stands still" not in str(status["journal"]))
    return "the disk gave ENOSPC, the dispatcher stood still and went on"


KINDS: dict[str, tuple[float, Run]] = {
    "worker killed": (60, kill_worker),
    "worker stopped": (25, stop_worker),
    "worker stopped, given up": (15, stop_worker_for_long),
    "worker retired": (20, retire_worker),
    "dispatcher killed": (30, kill_dispatcher),
    "dispatcher stopped": (15, stop_dispatcher),
    "consumer killed": (30, kill_consumers),
    "consumer stopped": (15, stop_consumer),
    "consumer stopped, replaced": (10, replace_consumer),
    "control connection cut": (25, harm(proxy.FaultKind.CUT, bulk=False)),
    "control connection delayed": (15, harm(proxy.FaultKind.DELAY, bulk=False, least_s=0.1, most_s=3.0)),
    "control connection half-open": (5, harm(proxy.FaultKind.HALF_OPEN, bulk=False, least_s=0.5, most_s=6.0)),
    "control connection silent": (5, harm(proxy.FaultKind.SILENCE, bulk=False, least_s=0.5, most_s=6.0)),
    "bulk connection cut": (30, harm(proxy.FaultKind.CUT, bulk=True)),
    "bulk connection delayed": (15, harm(proxy.FaultKind.DELAY, bulk=True, least_s=0.1, most_s=3.0)),
    "bulk connection half-open": (5, harm(proxy.FaultKind.HALF_OPEN, bulk=True, least_s=0.5, most_s=6.0)),
    "bulk connection silent": (5, harm(proxy.FaultKind.SILENCE, bulk=True, least_s=0.5, most_s=6.0)),
    "disk full": (5, fill_disk),
    "worker killed as it keeps": (15, cache_faults.kill_keeper),
    "block damaged": (15, cache_faults.damage_block),
    "block truncated": (10, cache_faults.truncate_block),
    "block removed": (10, cache_faults.remove_block),
    "cache removed": (5, cache_faults.remove_cache),
    "cache full": (5, cache_faults.fill_cache),
}
"""By name: its weight in the budget, and what does it."""
DISKS = {"disk full", "cache full"}
"""They need small disks."""
ALONE = {"consumer stopped, replaced"}
"""They are about jobs read by themselves: whoever loads a member's state reads on alone, and replaces nobody."""
