"""Messages about what users' own samplers draw; a part of :mod:`millrace.protocol.messages`."""

from __future__ import annotations

from millrace.protocol.message import Message


class SamplersDrew(Message, frozen=True, tag="SamplersDrew"):
    """Hashes of all positions that users' own samplers have drawn for an epoch, by sampler, repetition and epoch.

    To the dispatcher, as a task begins that needs them: all workers of a job must have drawn the same.
    """

    job: str
    epoch: int
    drawn: dict[str, str]
