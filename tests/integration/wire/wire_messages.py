"""What the tests of the wire send, and how long they wait."""

import msgspec

from millrace.wire.control.control_client import ControlChannel

PROMPTLY_S = 5.0


class Ping(msgspec.Struct, frozen=True, tag=True):
    number: int
    data: bytes = b""


def works(address, **options):
    """That the dispatcher at ``address`` is all right."""
    with ControlChannel(address, **options) as channel, channel.open_session(Ping) as session:
        session.send(Ping(7))
        assert next(session) == Ping(7)
