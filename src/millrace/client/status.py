"""Asks a service what it is doing."""

from __future__ import annotations

from typing import Any

from millrace.wire.channel import ControlChannel

STATUS = "Status"
"""Call: None -> the service's status as plain values."""


def fetch_status(address: str, token: str | None = None, timeout: float = 10.0) -> dict[str, Any]:
    """The status of the service whose dispatcher is at ``address``: ``jobs``, ``workers``, ``cache``.

    Raises:
        ServiceUnreachableError: nobody answered within ``timeout`` seconds.
        AuthenticationError: no token or the wrong one.
    """
    with ControlChannel(address, token, timeout) as channel:
        channel.connect()
        status: dict[str, Any] = channel.call(STATUS, None, dict[str, Any], timeout)
        return status
