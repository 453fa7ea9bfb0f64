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

    def match(self, other: TokenKeys) -> bool:
        """Whether both are of one token; takes equally long whether they are or not."""
        return hmac.compare_digest(self.stored, other.stored) and hmac.compare_digest(self.server, other.server)

    def __str__(self) -> str:
        return f"{SCHEME}:{self.stored.hex()}:{self.server.hex()}"


def draw_token() -> str:
    """Draw a token."""
    return f"mr_{secrets.token_urlsafe(TOKEN_BYTES)}"


def keys_of(token: str) -> TokenKeys:
    """Derive the keys of a token."""
    secret = token.encode(errors="replace")
    client = hmac.digest(secret, b"Client Key", "sha256")
    return TokenKeys(hashlib.sha256(client).digest(), hmac.digest(secret, b"Server Key", "sha256"))


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
