"""A consumer as a process of its own: ``python -m chaos.reader OPTIONS``, which says on standard output what it reads.

It is one rank of a training. What it has read counts once it is *saved*, together with the state of the iterator; what
it read after that is forgotten with it, and read again by whoever comes after it. All ranks save at the end of an epoch
before any of them begins the next: at its end each waits for a line on standard input. It ends when that is closed, and
not before, as a job ends with its last consumer.
"""

from __future__ import annotations

import random
import struct
import sys
import threading
from typing import Any, BinaryIO

import msgspec

import millrace as mr
from chaos.pipeline import pipeline, prints
from millrace.client.epoch_buffer import EpochBuffer
from millrace.errors import ServiceError, ServiceUnreachableError

SAVED = 0.1
"""Of the batches, on average, is followed by a checkpoint."""
_AGAIN_S = 1.0
LENGTH = struct.Struct("<I")


class Options(msgspec.Struct, frozen=True):
    """What a consumer is to do.

    Attributes:
        address: of the dispatcher.
        pattern: of the data.
        pause_s: seconds that an element takes.
        job: name.
        consumers: of the job.
        index: of this one.
        deterministic: as for ``distribute``.
        epochs: to read.
        cache: see :data:`chaos.pipeline.CACHES`.
        sharing: of a member of a group, a :class:`millrace.Sharing`'s value; "": the job is its own.
        plant: a bug to plant, see :data:`PLANTS`; empty: none.
        state: to go on from, in msgpack; empty: from nothing.
    """

    address: str
    pattern: str
    pause_s: float
    job: str
    consumers: int
    index: int
    deterministic: bool
    epochs: int
    cache: str
    sharing: str = ""
    plant: str = ""
    state: bytes = b""


class Read(msgspec.Struct, frozen=True, tag=True):
    """A batch."""

    epoch: int
    numbers: list[int]
    prints: list[bytes]


class Saved(msgspec.Struct, frozen=True, tag=True):
    """All that was read so far counts; whoever comes after this process goes on from ``state``, in msgpack."""

    state: bytes


class Over(msgspec.Struct, frozen=True, tag=True):
    """An epoch was read to its end, and that is saved; the next one begins when all ranks have come that far."""


class Finished(msgspec.Struct, frozen=True, tag=True):
    """All epochs were read to their ends."""


Word = Read | Saved | Over | Finished


def main() -> None:
    """Reads what the command line says."""
    options = msgspec.json.decode(sys.argv[1], type=Options)
    if options.plant:
        PLANTS[options.plant]()
    several = {"num_consumers": options.consumers, "consumer_index": options.index}
    dataset = pipeline(options.pattern, options.pause_s, options.cache).distribute(
        options.address,
        job_name=options.job,
        deterministic=options.deterministic,
        **({"sharing": mr.Sharing(options.sharing)} if options.sharing else several),
    )
    with dataset:
        if options.state:
            dataset.load_state_dict(msgspec.msgpack.decode(options.state))
        _read(dataset, options, sys.stdout.buffer)
        sys.stdin.read()


def _read(dataset: Any, options: Options, said: BinaryIO) -> None:
    rng = random.Random(options.state)
    # Who has read an epoch to its end loads that, too: others may not have, and wait for all states.
    resumed, epoch = bool(options.state), 0
    while resumed or epoch < options.epochs:
        batches = _begin(dataset)
        state = batches.state_dict()
        number = state["epoch"]
        if number >= options.epochs:
            break
        say(said, Saved(msgspec.msgpack.encode(state)))
        for batch in batches:
            numbers, hashes = zip(*prints(batch), strict=True)
            say(said, Read(number, list(numbers), list(hashes)))
            if rng.random() < SAVED:
                say(said, Saved(msgspec.msgpack.encode(batches.state_dict())))
        resumed, epoch = False, number + 1
        say(said, Saved(msgspec.msgpack.encode(batches.state_dict())))
        say(said, Over())
        sys.stdin.readline()
    say(said, Finished())


def _begin(dataset: Any) -> Any:
    """The next epoch. Who is not let in because the disk is full, or nobody answers, tries again, as launchers do."""
    while True:
        try:
            return iter(dataset)
        except ServiceError as error:
            if not isinstance(error, ServiceUnreachableError) and "cannot be written" not in str(error):
                raise
            print(error, file=sys.stderr)
        threading.Event().wait(_AGAIN_S)


def say(stream: BinaryIO, word: Word) -> None:
    """Writes ``word`` in one piece."""
    body = msgspec.msgpack.encode(word)
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


# -- bugs, to see that they are found ----------------------------------------------------------------------------------


def _forget() -> None:
    """Each task's first outputs are taken once more, as if it were not known that they are held."""
    accept = EpochBuffer.accept

    def take_all(self: EpochBuffer, task: int, index: int, *delivery: Any, **more: Any) -> bool:
        fresh = accept(self, task, index, *delivery, **more)
        if fresh and index == 0:
            self._tasks[task].held = 0
            accept(self, task, index, *delivery, **more)
        return fresh

    EpochBuffer.accept = take_all  # type: ignore[method-assign] # that is planting it


PLANTS = {"forgets": _forget}

if __name__ == "__main__":
    main()
