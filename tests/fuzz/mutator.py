"""Mutator: valid messages, changed a little, each from a number alone, so that it can be made again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_NUMBERS = [0, 1, 7, 0x7F, 0x80, 0x90, 0xDC, 0xDD, 0xFF, 0x7FFF, 0xFFFF, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
_NUMBERS += [1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
_HEADS = bytes([0x80, 0x90, 0xA0, 0xC0, 0xC1, 0xC4, 0xC6, 0xC7, 0xCB, 0xCF, 0xD3, 0xD9, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF])
_MOST_BYTES = 1 << 16


def mutated(corpus: Sequence[bytes], number: int) -> bytes:
    """Make the input of this number."""
    rng = random.Random(number)
    data = bytearray(rng.choice(corpus))
    for _ in range(1 + int(rng.expovariate(0.7))):
        rng.choice(_MUTATIONS)(data, rng, corpus)
    return bytes(data[:_MOST_BYTES])


def _flip(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _replace(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice(_HEADS) if rng.random() < 0.5 else rng.randrange(256)


def _number(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(len(data) + 1)
    value = (rng.choice(_NUMBERS) + rng.choice((0, 0, 1, -1))) % (1 << 8 * width)
    data[at : at + width] = value.to_bytes(width, rng.choice(("little", "big")))


def _insert(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randint(1, 8))


def _remove(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.randint(1, 16)]


def _cut(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _repeat(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    part = data[at : at + rng.randint(1, 64)]
    data[at:at] = part * rng.choice((1, 2, 30))


def _splice(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> None:
    other = rng.choice(corpus)
    start = rng.randrange(len(other) + 1)
    data[rng.randrange(len(data) + 1) :] = other[start:]


_MUTATIONS: list[Callable[[bytearray, random.Random, Sequence[bytes]], None]] = [
    *(_flip, _replace, _number, _number, _insert, _remove, _cut, _repeat, _splice)
]
