"""Messages about groups of jobs that share one computation; a part of :mod:`millrace.protocol.messages`."""

from __future__ import annotations

from millrace.protocol.message import Message


class Audience(Message, frozen=True, tag="Audience"):
    """Members of a group, of which all read all of its tasks: by the index of each, the first epoch that it reads.

    Who is in it no more has left: what it alone lacked is to be let go of. To workers.
    """

    job: str
    members: dict[int, int]
