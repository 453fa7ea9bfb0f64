"""Epoch of one member that has as many elements as the data, taken from its group's epochs as they come. Pure."""

from __future__ import annotations


class OwnEpoch:
    """Counts the elements of a member's own epoch, which may begin and end within epochs of its group.

    It has as many as the group's epoch in which it begins: those that came, and those that the member missed. That is
    known once that epoch is over for the member, and sooner it cannot have as many.

    Args:
        size: its number of elements; None: not known yet.
        used: of these; negative: so many more come than the group's epoch still has in which it goes on.

    Attributes:
        size: see there.
    """

    def __init__(self, size: int | None = None, used: int = 0) -> None:
        self.size = size
        self._at = (
            used,
            0,
            0,
        )  # used before, and of the group's epoch before and by now; one, as Ctrl-C may come anywhere

    def begin(self, there: int) -> None:
        """Go on with an epoch of the group, of which so many elements were used for epochs before this one."""
        self._at = self.used, there, there

    def count(self, there: int) -> None:
        """Note that so many elements of the group's epoch are used by now, for this epoch or others."""
        self._at = *self._at[:2], there

    @property
    def used(self) -> int:
        """Number of its elements that were used."""
        before, begun, there = self._at
        return before + there - begun

    @property
    def left(self) -> int | None:
        """Number of its elements that are still to come; None: not known yet."""
        return None if self.size is None else max(0, self.size - self.used)

    @property
    def most(self) -> int | None:
        """Number of elements of the group's epoch that may be used by the end of this one; None: not known yet."""
        return None if self.left is None else self._at[2] + self.left

    def group_ended(self, outputs: int | None) -> None:
        """Note that an epoch of the group is over for the member, which had so many outputs; None: nobody knows."""
        if self.size is None and outputs is not None:
            self.size = outputs

    @property
    def over(self) -> bool:
        """Whether all of it was used."""
        return self.left == 0
