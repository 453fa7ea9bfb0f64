"""A store of blocks in virtual time: it can lose, damage and fill up, and knows more of its blocks than a real one."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from millrace.protocol.cache_messages import KeptBlock


class UnreadableError(Exception):
    """A block is not there, or was damaged."""


class FullError(Exception):
    """There is no room for a block."""


@dataclass(frozen=True)
class Block:
    """A block that was published.

    Attributes:
        kept: its name, its size and how many items it has.
        items: by unit, the epoch whose random values are kept.
        lease: under which it was published.
        writer: the tenant of its job.
        damaged: its index can be read, and nothing else.
    """

    kept: KeptBlock
    items: dict[int, int]
    lease: int
    writer: str
    damaged: bool = False


class Store:
    """Store of blocks, as :class:`millrace.blocks.stores.block_store.BlockStore` is one.

    Attributes:
        full: nothing more can be published; ``failed``: how often that was tried.
        blocks: by place and name.
    """

    def __init__(self) -> None:
        self.full = False
        self.failed = 0
        self.blocks: dict[tuple[str, str], Block] = {}

    def publish(self, place: str, block: Block) -> None:
        """Publish a block, in the place of another one of its name.

        Raises:
            FullError: the disk is full.
        """
        if self.full:
            self.failed += 1
            raise FullError
        self.blocks[place, block.kept.name] = block

    def index(self, place: str, name: str) -> frozenset[int]:
        """Return the units that a block has.

        Raises:
            UnreadableError: it is not there.
        """
        if (place, name) not in self.blocks:
            raise UnreadableError
        return frozenset(self.blocks[place, name].items)

    def read(self, place: str, name: str, unit: int) -> tuple[int, str]:
        """Return the epoch whose random values are kept of a unit, and who made the block.

        Raises:
            UnreadableError: the block is not there, or damaged.
        """
        block = self.blocks.get((place, name))
        if block is None or block.damaged or unit not in block.items:
            raise UnreadableError
        return block.items[unit], block.writer

    def delete(self, place: str, name: str) -> None:
        """Remove a block, if it is there."""
        self.blocks.pop((place, name), None)

    def lose(self, rng: random.Random) -> bool:
        """Lose some blocks, and tell nobody; False if there are none."""
        lost = self._some(rng)
        for key in lost:
            del self.blocks[key]
        return bool(lost)

    def damage(self, rng: random.Random) -> bool:
        """Damage some blocks, which is noticed when they are read; False if there are none."""
        damaged = self._some(rng)
        for key in damaged:
            self.blocks[key] = replace(self.blocks[key], damaged=True)
        return bool(damaged)

    def _some(self, rng: random.Random) -> list[tuple[str, str]]:
        return rng.sample(list(self.blocks), rng.randint(min(1, len(self.blocks)), len(self.blocks)))

    def listed(self, known: dict[str, dict[str, int]]) -> dict[str, list[KeptBlock]]:
        """All blocks by place; with their items, but for those that are known."""
        found: dict[str, list[KeptBlock]] = {}
        for (place, name), block in self.blocks.items():
            items = 0 if known.get(place, {}).get(name) == block.kept.bytes else block.kept.items
            found.setdefault(place, []).append(KeptBlock(name, block.kept.bytes, items))
        return found

    def writers(self) -> dict[str, str]:
        """Return the writers of the blocks, by place."""
        return {place: block.writer for (place, _), block in self.blocks.items()}
