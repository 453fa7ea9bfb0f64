"""Lists of bugs that can be planted: what is wrong, and what is replaced by what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    """A bug: what is wrong, and (owner, attribute or key, what it is replaced by) of each thing that makes it so."""

    says: str
    changes: tuple[tuple[Any, Any, Any], ...]


class MutantList(dict[str, Mutant]):
    """Bugs by name."""

    def add(self, name: str, says: str, owner: Any, key: Any, value: Any, *more: tuple[Any, Any, Any]) -> None:
        """Add a bug that puts a value in the place of another one."""
        self[name] = Mutant(says, ((owner, key, value), *more))

    def replaces(
        self, name: str, says: str, owner: Any, key: str
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make the decorated function a bug in the place of another one."""

        def put(function: Callable[..., Any]) -> Callable[..., Any]:
            self.add(name, says, owner, key, function)
            return function

        return put


def always(value: Any) -> Callable[..., Any]:
    """Make a function that returns this, whatever it is given."""
    return lambda *_, **__: value
