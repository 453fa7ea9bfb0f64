"""Questions to a service: what it is doing, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from millrace.errors import MillraceError
from millrace.wire.control.control_client import ControlChannel
from millrace.wire.tls_files import open_tls

T = TypeVar("T")

STATUS = "Status"
"""Call: seconds to let pass before it is looked at, or None -> the service's status as plain values."""


REMOVE_BLOCKS = "RemoveBlocks"
"""Call: points as the status lists them -> bytes of their blocks, which are deleted as soon as nobody reads them."""


WHY = "Why"
"""Call: a consumer's client -> what it waits for, in a sentence."""


CHECK = "Check"
"""Call: None -> "" once the dispatcher has decided and written; why it waits, if it waits for its disk."""


def check(address: str, token: str | None = None, timeout: float = 10.0, tls: str = "") -> str:
    """Tell why a service waits, if its dispatcher answers and does; empty if it goes on.

    Raises:
        As :func:`fetch_status`.
    """
    return _ask(address, token, timeout, tls, CHECK, None, str)


def remove_blocks(
    address: str, places: list[str], token: str | None = None, timeout: float = 10.0, tls: str = ""
) -> int:
    """Have a service delete what it keeps of some points; return how many bytes that is.

    Raises:
        As :func:`fetch_status`.
    """
    return _ask(address, token, timeout, tls, REMOVE_BLOCKS, places, int)


def fetch_status(address: str, token: str | None = None, timeout: float = 10.0, tls: str = "") -> dict[str, Any]:
    """Fetch the status of the service whose dispatcher is at ``address``: ``jobs``, ``workers``, ``cache``.

    Args:
        address: of the dispatcher.
        token: of the service.
        timeout: seconds to wait for an answer.
        tls: folder of certificates; empty: the service has none.

    Raises:
        ServiceUnreachableError: nobody answered within ``timeout`` seconds.
        AuthenticationError: no token or the wrong one.
    """
    return _ask(address, token, timeout, tls, STATUS, None, dict[str, Any])


def watch_status(
    address: str, token: str | None = None, timeout: float = 10.0, tls: str = "", *, every_s: float = 1.0
) -> Iterator[dict[str, Any]]:
    """Fetch the status now, and then again and again: the dispatcher holds each answer back for ``every_s`` seconds.

    Raises:
        As :func:`fetch_status`.
    """
    with ControlChannel(address, token, timeout, open_tls(tls)) as channel:
        channel.connect()
        status: dict[str, Any] = channel.call(STATUS, None, dict[str, Any], timeout)
        while True:
            yield status
            status = channel.call(STATUS, every_s, dict[str, Any], timeout + every_s)


def _ask(address: str, token: str | None, timeout: float, tls: str, call: str, request: Any, reply: type[T]) -> T:
    with ControlChannel(address, token, timeout, open_tls(tls)) as channel:
        channel.connect()
        return channel.call(call, request, reply, timeout)


def ask_why(channel: ControlChannel, client: str) -> str:
    """Ask the dispatcher what a consumer waits for; empty if it does not answer soon."""
    try:
        return str(channel.call(WHY, client, str, _SOON_S))
    except MillraceError:
        return ""


_SOON_S = 5.0
