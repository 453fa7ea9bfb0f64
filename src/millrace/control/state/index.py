"""All that is derived from the state and remembered, with one way to keep it right.

Who serves what, answers to questions about a job or the service, jobs that have work: each follows from the state and
from what workers want, and is worked out when it is asked for. Events alone change the state, and each kind of event
says how much it may change (:class:`millrace.control.journal.event.Changes`): ``journal.replay.apply`` tells the index
so, which forgets what depends on that. What a worker wants is no event: ``decide`` tells the index of it.

A ``checked`` index (tests and simulation) works out anew whatever it remembers, each time that is asked for, and
compares.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, TypeVar, cast

from millrace.control.state.serving_index import ServingIndex

if TYPE_CHECKING:
    from millrace.control.state.state import State, Worker

T = TypeVar("T")

SERVICE = ""
"""In the place of a job's name: what is asked about all jobs and workers together."""


class StaleIndexError(Exception):
    """A bug: what the index remembers is not what follows from the state."""


class StateIndex:
    """Answers that follow from a state.

    Args:
        state: of the dispatcher.
        checked: compare what is remembered with what is worked out anew.

    Attributes:
        touched: jobs of which something has changed since the transaction began, or the scheduler saw to them: tasks
            may have become free to lease, or workers free to run them.
    """

    def __init__(self, state: State, *, checked: bool) -> None:
        self.touched: set[str] = set()
        self._state = state
        self._checked = checked
        self._changes = 0
        self._serving: ServingIndex | None = None
        self._answers: dict[str, dict[Hashable, Any]] = {}
        self._subsets: dict[Hashable, tuple[set[str], set[str]]] = {}

    @property
    def serving(self) -> ServingIndex:
        """Index of who serves what, as it is now."""
        if self._serving is None:
            self._serving = ServingIndex(self._state.jobs, self._state.workers)
        return self._serving

    def memoize(self, scope: str, question: Hashable, answer: Callable[[], T]) -> T:
        """Answer a question about one job and its workers, and remember that until something of them changes.

        Args:
            scope: name of the job; :data:`SERVICE` for what depends on anything but tasks.
            question: tells answers apart.
            answer: works it out, and changes nothing.
        """
        known = self._answers.get(scope)
        if known is None or question not in known:
            return self._remember(scope, question, answer())
        if self._checked:
            _compare(f"{question} of {scope or 'the service'}", known[question], answer())
        return cast("T", known[question])

    def until_changed(self, scope: str, what: Hashable, act: Callable[[], None]) -> None:
        """Act on a job, unless that was done since something of the job changed last, and changed nothing itself.

        Args:
            scope: name of the job.
            what: tells acts apart.
            act: whatever it changes, it changes by events.
        """
        before, done = self._changes, what in self._answers.get(scope, ())
        if done and not self._checked:
            return
        act()
        if self._changes == before:
            self._remember(scope, what, None)
        elif done:
            raise StaleIndexError(f"{what} of {scope} was done, and there was something left to do")

    def having(self, what: Hashable, names: AbstractSet[str], has: Callable[[str], bool]) -> set[str]:
        """Subset of these jobs for which something holds; a job is looked at again when something of it has changed.

        Args:
            what: tells what holds apart.
            names: of jobs.
            has: whether it holds for a job.
        """
        found, due = self._subsets.setdefault(what, (set(), set(self._state.jobs)))
        for name in due & names:
            (found.add if has(name) else found.discard)(name)
        due -= names
        if self._checked:
            _compare(f"jobs with {what}", found & names, {name for name in names if has(name)})
        return found & names

    def with_room(self, job: str, want: Callable[[str], int]) -> list[Worker]:
        """Workers that serve the job and want to have more in hand.

        Args:
            job: its name.
            want: number of unfinished leases that a worker wants to hold, by its id.
        """
        known = self.serving.perhaps_with_room(job)
        for worker in list(known.values()):
            if len(worker.unfinished) >= want(worker.id):
                del known[worker.id]
        if self._checked:
            there = {worker.id for worker in self.serving.serving(job) if len(worker.unfinished) < want(worker.id)}
            _compare(f"workers of {job} with room", set(known), there)
        return list(known.values())

    # -- what makes it forget ------------------------------------------------------------------------------------------

    def invalidate(self, scope: str) -> None:
        """Forget the answers about one job, or about :data:`SERVICE`."""
        self._changes += 1
        self._answers.pop(scope, None)
        if scope == SERVICE:
            self._subsets.clear()
        for _, due in self._subsets.values():
            due.add(scope)

    def invalidate_all(self) -> None:
        """Forget all answers."""
        self._changes += 1
        self._answers.clear()
        self._subsets.clear()

    def serving_changes(self, worker: str) -> None:
        """Forget who serves what, and what depends on a worker (by its id, "" for none) that is about to change."""
        known = self._state.workers.get(worker)
        if known is not None:
            self.invalidate(known.job)
            self.invalidate(known.pinned_job)
        self._serving = None

    def hands_changed(self, worker: Worker) -> None:
        """Take note of a worker that has got something to run, has it no more, or wants to have more of it."""
        if self._serving is not None:
            self._serving.hands_changed(worker)

    def check(self) -> None:
        """Compare who serves what with what the state says.

        Raises:
            StaleIndexError: it is a bug.
        """
        if self._serving is not None:
            anew = ServingIndex(self._state.jobs, self._state.workers)
            for name in ServingIndex.DERIVED:
                _compare(name, getattr(self._serving, name), getattr(anew, name))

    def _remember(self, scope: str, question: Hashable, answer: T) -> T:
        self._answers.setdefault(scope, {})[question] = answer
        return answer


def _compare(what: str, known: object, anew: object) -> None:
    if known != anew:
        raise StaleIndexError(f"{what}: {known} is remembered, and it is {anew}")
