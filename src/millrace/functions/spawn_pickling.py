"""Pickling for spawned child processes, of functions that pickle alone refuses, such as lambdas."""

from __future__ import annotations

import pickle
from typing import Any


def picklable_for_spawn(value: Any) -> Any:
    """Wrap ``value`` for the state of an object that is being pickled.

    If it is pickled because ``multiprocessing`` is spawning a child, which runs the same code on the same machine,
    functions go by value where they have to. Otherwise whoever pickles decides: a worker's bundle has rules of its own.
    """
    from multiprocessing import context

    return _ByValue(value) if context.get_spawning_popen() is not None else value


class _ByValue:
    """Wrapper that unpickles as the value in it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        return pickle.loads, (cloudpickle.dumps(self._value),)
