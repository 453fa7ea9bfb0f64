"""Keys of a token: what is kept of it by who has to know it again. It cannot be found out from them.

They are the stored key and the server key of SCRAM (RFC 5802, section 3), without salt and rounds: tokens are drawn,
256 bits each, so that there is nothing to guess. What is kept is enough to compare a token, and for each end to prove
to the other that it knows it; it is not enough to be the token's holder.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NamedTuple

SCHEME = "scram-sha-256"
TOKEN_BYTES = 32
_KEY_BYTES = 32
_ID_DIGITS = 16


class TokenKeys(NamedTuple):
    """Keys of a token.

    Attributes:
        stored: SHA-256 of the key that the holder derives from the token.
        server: key that the service derives from the token.
    """

    stored: bytes
    server: bytes

    @property
    def name(self) -> str:
        """Name by which the keys are found: it says nothing of the token."""
        return hashlib.sha256(b"millrace token" + self.stored).hexdigest()[:_ID_DIGITS]

    def server_proof(self, said: bytes) -> bytes:
        """Prove, about what was said, to know these keys."""
        return hmac.digest(self.server, said, "sha256")

    def proven(self, proof: bytes, said: bytes) -> bool:
        """Whether the token's holder has made a proof of what was said; takes equally long whether or not."""
        client = _hidden(proof, hmac.digest(self.stored, said, "sha256"))
        return hmac.compare_digest(hashlib.sha256(client).digest(), self.stored)

    def __str__(self) -> str:
        return f"{SCHEME}:{self.stored.hex()}:{self.server.hex()}"


class TokenHolder:
    """Holder of a token.

    Attributes:
        keys: that the service has of it.
    """

    def __init__(self, token: str) -> None:
        self._client = _client_key(token)
        self.keys = keys_of(token)

    def prove(self, said: bytes) -> bytes:
        """Prove, about what was said, to have the token: its key, hidden from all but who has the service's keys."""
        return _hidden(self._client, hmac.digest(self.keys.stored, said, "sha256"))


def draw_token() -> str:
    """Draw a token."""
    return f"mr_{secrets.token_urlsafe(TOKEN_BYTES)}"


def keys_of(token: str) -> TokenKeys:
    """Derive the keys of a token."""
    server = hmac.digest(token.encode(errors="replace"), b"Server Key", "sha256")
    return TokenKeys(hashlib.sha256(_client_key(token)).digest(), server)


def _client_key(token: str) -> bytes:
    return hmac.digest(token.encode(errors="replace"), b"Client Key", "sha256")


def _hidden(key: bytes, mask: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(key, mask, strict=False))


def parse_keys(text: str) -> TokenKeys:
    """Parse keys as they are written.

    Raises:
        ValueError: they are not.
    """
    scheme, *digits = text.split(":")
    if scheme != SCHEME or len(digits) != 2:
        raise ValueError(f"a hash is {SCHEME}:..., as `millrace token new` writes it")
    stored, server = map(bytes.fromhex, digits)
    if {len(stored), len(server)} != {_KEY_BYTES}:
        raise ValueError(f"a hash has twice {2 * _KEY_BYTES} digits, as `millrace token new` writes it")
    return TokenKeys(stored, server)
