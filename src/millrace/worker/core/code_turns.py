"""Turns of what must not run beside one another: the code of different jobs, and probed runs."""

from __future__ import annotations

from collections.abc import Hashable


class CodeTurns:
    """Turns by name: any number are inside under one name, and those of another wait until all have left, in order.

    The user's modules of one job are in force while its code runs, and no other's.
    """

    def __init__(self) -> None:
        self.name = ""
        self.inside: set[Hashable] = set()
        self.waiting: dict[Hashable, str] = {}

    def want(self, who: Hashable, name: str) -> bool:
        """Ask for a turn; return whether ``who`` has it. If not, it waits until a :meth:`leave` gives it one."""
        if self.inside and self.name != name:
            self.waiting[who] = name
            return False
        self.name = name
        self.inside.add(who)
        return True

    def leave(self, who: Hashable) -> list[Hashable]:
        """End the turn of ``who``, or its waiting for one; return who got a turn by that."""
        self.waiting.pop(who, None)
        if who not in self.inside:
            return []
        self.inside.remove(who)
        if self.inside or not self.waiting:
            return []
        self.name = next(iter(self.waiting.values()))
        granted = [other for other, name in self.waiting.items() if name == self.name]
        for other in granted:
            del self.waiting[other]
        self.inside.update(granted)
        return granted
