"""Authentication: tokens, and the identity that each end states."""

from __future__ import annotations

import sys

import msgspec

from millrace.errors import AuthenticationError, ServiceError, VersionMismatchError
from millrace.protocol.messages import PROTOCOL
from millrace.version import __version__
from millrace.wire.address import format_address, is_loopback

MAX_TOKEN_BYTES = 4096
REFUSED_TOKEN = (
    "the service refused the token: MILLRACE_TOKEN or token=... has to be what the service was started with; if it was"  # noqa: S105 (a sentence)
    " started without one, this process has to be of the same user, on the same machine"
)


class Identity(msgspec.Struct, frozen=True):
    """Identity that a process states before anything else.

    Attributes:
        protocol: version of the control messages; has to be equal at both ends.
        version: of millrace.
        python: "major.minor".
        owner: of a service that ends with another process, that process; empty: the service may come back.
    """

    protocol: int = PROTOCOL
    version: str = __version__
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"
    owner: str = ""


OWN = Identity()


def check_token_form(token: str | None) -> None:
    """Refuse a token that is none.

    Raises:
        AuthenticationError: if ``token`` is empty, has anything but printable ASCII without spaces, or is over 4 KiB.
    """
    if token is None:
        return
    if not token or len(token) > MAX_TOKEN_BYTES or not all("!" <= char <= "~" for char in token):
        raise AuthenticationError(
            "a token is 1 to 4096 printable ASCII characters without spaces, e.g. the output of `openssl rand -hex 32`;"
            " look at MILLRACE_TOKEN or token=..."
        )


def check_exposure(host: str, port: int, token: str | None, tokens: str = "", *, private: bool) -> None:
    """Refuse to listen where others could connect unless they have to know ``token``, or one of a file of ``tokens``.

    Args:
        host: to listen on.
        port: likewise.
        token: None: none.
        tokens: path of a file; empty: none.
        private: nobody can hear what is said, or the user has said that it does not matter.

    Raises:
        AuthenticationError: no token and not a loopback address, or a malformed token.
        ServiceError: not a loopback address, and not private.
    """
    check_token_form(token)
    if token is None and not tokens and not is_loopback(host):
        raise AuthenticationError(
            f"refused to listen on {format_address(host, port)} without a token: whoever reaches it could run code"
            f" on the workers. Set MILLRACE_TOKEN or pass token=..., the same everywhere, or listen on 127.0.0.1"
        )
    if not private and not is_loopback(host):
        raise ServiceError(
            f"refused to listen on {format_address(host, port)} without TLS: whoever hears that network could read and"
            f" change what is said. Give certificates (`millrace tls init`; --tls, MILLRACE_TLS, tls=...), or say that"
            f" nobody else hears it: --insecure, insecure=True"
        )


def check_protocol(peer: Identity) -> None:
    """Refuse a peer whose messages could be misread.

    Raises:
        VersionMismatchError: naming both sides.
    """
    if peer.protocol != PROTOCOL:
        raise VersionMismatchError(
            f"the service speaks protocol {PROTOCOL} (millrace {__version__}), this process protocol {peer.protocol}"
            f" (millrace {peer.version}): install the same version of millrace on both sides"
        )
