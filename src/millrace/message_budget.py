"""Message budget: how many containers a message of MessagePack may become, counted before any of them is made.

An empty list takes a byte in a message and 56 or more in memory; most of what a message can be blown up to is that.
"""

from __future__ import annotations

import re

import msgspec

from millrace.errors import ProtocolError

MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of a decoder of msgspec at bytes that are no message of its type, whatever they are."""
FREE_CONTAINERS = 1 << 16
"""Containers that a message may have whatever its size."""
BYTES_PER_CONTAINER = 8
"""Bytes of a message for each further container."""
MOST_CONTAINERS = 1 << 20
"""Most containers of a message, some hundred mebibytes of memory."""

_SHORT = bytes(range(0x80, 0xA0))
_LONG = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""First bytes of arrays and maps, with the bytes of length that follow."""
_HEADS = _SHORT + bytes(_LONG)
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""First bytes of strings, bytes and extensions, with the bytes of length that follow."""
_EXTENSIONS = frozenset({0xC7, 0xC8, 0xC9})
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4}
_FIXED |= {0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17} | {0xA0 + size: size for size in range(32)}
"""First bytes of values of a fixed size, with the bytes that follow."""


def _values_of(size: int) -> bytes:
    heads = re.escape(bytes(head for head, bytes_behind in _FIXED.items() if bytes_behind == size))
    return b"[" + heads + b"].{%d}" % size


# So many at a time, as each takes memory while they are matched.
_VALUES = re.compile(
    rb"(?:[\x00-\x7f\xe0-\xff]+|" + b"|".join(map(_values_of, sorted(set(_FIXED.values())))) + rb"){1,512}", re.DOTALL
)


def check_containers(encoded: bytes | bytearray, what: str) -> None:
    """Refuse a message of more lists, maps and structs than its size warrants.

    Args:
        encoded: MessagePack, whatever it is.
        what: the message, for the error.

    Raises:
        ProtocolError: naming both numbers.
    """
    most = min(FREE_CONTAINERS + len(encoded) // BYTES_PER_CONTAINER, MOST_CONTAINERS)
    # Few bytes of text are heads of containers, so hardly a message has to be looked at in any other way.
    if len(encoded) - len(encoded.translate(None, _HEADS)) > most and containers(encoded, most) > most:
        raise ProtocolError(f"{what} of {len(encoded):,} bytes has more than {most:,} lists and maps")


def containers(encoded: bytes | bytearray, most: int) -> int:
    """Count the lists and maps of a message, up to one more than ``most``; of damaged ones, those before the damage."""
    at = found = 0
    while at < len(encoded) and found <= most:
        values = _VALUES.match(encoded, at)
        if values is not None:
            at = values.end()
            continue
        head, at = encoded[at], at + 1
        if head in _LONG or head in _SHORT:
            found += 1
            at += _LONG.get(head, 0)
        elif head in _SIZED:
            width = _SIZED[head]
            at += width + int.from_bytes(encoded[at : at + width]) + (head in _EXTENSIONS)
        else:  # no MessagePack, or a value that is cut off: the decoder says so
            break
    return found
