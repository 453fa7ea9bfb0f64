"""A consumer as a process of its own: ``python -m chaos.reader OPTIONS``, which says on standard output what it reads.

It is a training: what it has read counts once it is *saved*, together with the state of the iterator. What it read
after that is forgotten with it, and read again by its successor. It ends when standard input is closed, and not before
that, as a job ends with its last consumer.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, BinaryIO

import msgspec

from chaos.pipeline import pipeline, prints
from millrace.client.inbox import EpochInbox

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
        plant: a bug to plant, see :data:`PLANTS`; empty: none.
    """

    address: str
    pattern: str
    pause_s: float
    job: str
    consumers: int
    index: int
    deterministic: bool
    epochs: int
    plant: str = ""


class Read(msgspec.Struct, frozen=True, tag=True):
    """A batch."""

    epoch: int
    numbers: list[int]
    prints: list[bytes]


class Finished(msgspec.Struct, frozen=True, tag=True):
    """All epochs were read to their ends."""


Word = Read | Finished


def main() -> None:
    """Reads what the command line says."""
    options = msgspec.json.decode(sys.argv[1], type=Options)
    if options.plant:
        PLANTS[options.plant]()
    dataset = pipeline(options.pattern, options.pause_s).distribute(
        options.address,
        job_name=options.job,
        num_consumers=options.consumers,
        consumer_index=options.index,
        deterministic=options.deterministic,
    )
    said = sys.stdout.buffer
    with dataset:
        for _ in range(options.epochs):
            for batch in (epoch := iter(dataset)):
                numbers, hashes = zip(*prints(batch), strict=True)
                say(said, Read(epoch.number, list(numbers), list(hashes)))
        say(said, Finished())
        sys.stdin.read()


def say(stream: BinaryIO, word: Word) -> None:
    """Writes ``word`` in one piece."""
    body = msgspec.msgpack.encode(word)
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


# -- bugs, to see that they are found ----------------------------------------------------------------------------------


def _forget() -> None:
    """Each task's first outputs are taken once more, as if it were not known that they are held."""
    accept = EpochInbox.accept

    def take_all(self: EpochInbox, task: int, index: int, *delivery: Any, **more: Any) -> bool:
        fresh = accept(self, task, index, *delivery, **more)
        if fresh and index == 0:
            self._tasks[task].held = 0
            accept(self, task, index, *delivery, **more)
        return fresh

    EpochInbox.accept = take_all  # type: ignore[method-assign] # that is planting it


PLANTS = {"forgets": _forget}

if __name__ == "__main__":
    main()
