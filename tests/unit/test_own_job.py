"""Jobs that a process reads beside the one of its dataset: who joins another one waits until those have been left."""

from typing import Any

from millrace.own_job import OwnJobs


class FakeSession:
    """A session that notes what becomes of it in ``seen``, under its name."""

    def __init__(self, name, seen):
        self.close = lambda: seen.append(f"{name} closed")
        self.waits_until_left = lambda: seen.append(f"{name} left")


def test_those_that_nobody_knows_any_more_are_waited_for_once():
    seen: list[str] = []
    jobs: Any = OwnJobs()
    kept, dropped = FakeSession("kept", seen), FakeSession("dropped", seen)
    for session in (kept, dropped):
        jobs.add(session)
    assert list(jobs) == [kept, dropped]
    jobs.wait()
    assert seen == []
    del dropped, session
    jobs.wait()
    jobs.wait()
    assert seen == ["dropped left"]
    assert list(jobs) == [kept]


def test_all_are_left_with_the_dataset():
    seen: list[str] = []
    jobs: Any = OwnJobs()
    kept = FakeSession("kept", seen)
    jobs.add(kept)
    jobs.add(FakeSession("dropped", seen))
    jobs.close(FakeSession("its own", seen))
    assert seen == ["its own closed", "kept closed", "dropped left"]
    seen.clear()
    jobs.close(None)
    assert seen == ["kept closed"]
