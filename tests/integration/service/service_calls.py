"""Counts, in a file, what user functions are called with, in whatever process they run."""

import os
from collections import Counter
from pathlib import Path


class Calls:
    """Of one pipeline; each has functions of its own, and so a cache of its own."""

    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "calls")

    def note(self, number: int) -> int:
        """One call."""
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{number}\n".encode())
        os.close(file)
        return number

    def take(self) -> Counter[int]:
        """Those since this was last asked."""
        try:
            found = Counter(map(int, Path(self._path).read_text().split()))
            os.truncate(self._path, 0)
        except FileNotFoundError:
            return Counter()
        return found
