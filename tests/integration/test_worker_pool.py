"""As many workers as are planned, whatever the cluster does."""

import asyncio
import os
import platform

import pytest

from millrace.control.state.state import Worker
from millrace.dispatcher import worker_pool as fleets
from millrace.dispatcher.worker_pool import WorkerPool, dead_workers
from millrace.errors import ServiceError
from millrace.host_limits import process_space

DONE = "ended with exit status 0", True
KILLED = "was killed by SIGKILL", False


class Paper:
    """A cluster that only counts."""

    def __init__(self, failing=0):
        self.asked, self.stopped, self.failing = [], [], failing
        self.waiting, self.given_up = 0, []
        self.error: Exception = ServiceError("no machine is to be had")
        self.changed = asyncio.Event()

    def watch(self, ended):
        self.ended = ended

    async def start(self, workers):
        if self.failing:
            self.failing -= 1
            self.changed.set()
            raise self.error
        self.asked += [workers] if workers else []
        self.changed.set()

    def trouble(self):
        return ""

    async def forgo(self, workers):
        await asyncio.sleep(0)
        found = min(workers, self.waiting)
        self.waiting -= found
        self.given_up.append(found)
        self.changed.set()
        return found

    def running(self):
        return []

    async def stop(self, workers):
        self.stopped += workers
        self.changed.set()

    async def close(self):
        pass

    async def until(self, so):
        while not so():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 20)

    async def until_asked_for(self, total):
        await self.until(lambda: sum(self.asked) >= total)
        assert sum(self.asked) == total


def play(story, plan=0, **options):
    """Has a story happen to a fleet that is to have ``plan`` workers; returns the ends and notices that it told of."""

    async def played():
        ended: list[tuple[str, str]] = []
        notices: list[str] = []
        cluster = Paper(**options)
        fleet = WorkerPool(cluster, plan, on_end=lambda *end: ended.append(end), notice=notices.append)
        await fleet.start()
        await story(cluster, fleet)
        await fleet.close()
        return ended, notices

    return asyncio.run(played())


def test_what_is_planned_is_asked_for_once():
    async def story(cluster, fleet):
        for plan, total in ((3, 3), (3, 3), (8, 8), (5, 8), (8, 8), (9, 9)):
            fleet.resize(plan)
            await cluster.until_asked_for(total)

    play(story)


def test_a_worker_that_is_too_many_may_end_and_any_other_is_replaced(caplog):
    async def story(cluster, fleet):
        fleet.resize(3)
        for name in ("a", "b"):
            fleet.leaves(name)
            fleet._ended(name, *DONE)
        assert (fleet.requested, sum(cluster.asked)) == (3, 5)
        fleet._ended("c", *KILLED)
        await cluster.until_asked_for(6)
        assert fleet.requested == 3

    assert play(story, 5) == ([("a", DONE[0]), ("b", DONE[0]), ("c", KILLED[0])], [])
    assert caplog.messages == ["worker c was killed by SIGKILL"]


def test_those_that_were_told_to_leave_are_replaced_at_once_if_more_are_planned_when_they_end(caplog):
    names = [f"w{number}" for number in range(40)]

    async def story(cluster, fleet):
        fleet.resize(2)
        for name in names:
            fleet.leaves(name)
        fleet._ended(names[0], *DONE)
        assert fleet.requested == 41
        fleet.resize(42)
        await cluster.until_asked_for(43)
        for name in names[1:]:
            fleet._ended(name, *DONE)
        await cluster.until_asked_for(42 + 40)
        assert (fleet.requested, fleet.why) == (42, "")

    assert play(story, 42) == ([(name, DONE[0]) for name in names], [])
    assert caplog.messages == []


def test_so_are_those_that_leave_by_themselves(caplog):
    async def story(cluster, fleet):
        for number in range(10):
            fleet.leaves(f"w{number}")
            fleet._ended(f"w{number}", *DONE)
            await cluster.until_asked_for(2 + number)

    _, notices = play(story, 1)
    assert (notices, caplog.messages) == ([], [])


def test_one_that_was_told_to_leave_and_is_killed_has_died(caplog):
    async def story(cluster, fleet):
        fleet.resize(1)
        for name in ("a", "b"):
            fleet.leaves(name)
        fleet._ended("a", *KILLED)
        assert (fleet.requested, sum(cluster.asked)) == (2, 3)  # nobody needs another one in its place
        fleet.resize(2)
        fleet._ended("b", *KILLED)
        await cluster.until_asked_for(4)

    play(story, 3)
    assert caplog.messages == [f"worker {name} was killed by SIGKILL" for name in ("a", "b")]


def test_nobody_waits_for_the_replacement_of_those_that_are_too_many():
    async def story(cluster, fleet):
        fleet.resize(1)
        for name in ("a", "b", "c", "d"):
            fleet._ended(name, *KILLED)
        assert (fleet.requested, fleet.why) == (1, "")

    _, notices = play(story, 5)
    assert notices == []


def test_one_that_ends_before_it_was_told_to_has_died_however_it_ends(caplog):
    async def story(cluster, fleet):
        fleet.resize(2)
        fleet._ended("a", *DONE)
        fleet._ended("", *DONE)
        assert (fleet.requested, sum(cluster.asked)) == (2, 4)
        fleet.leaves("b")
        fleet._ended("b", *DONE)  # it was told to when there were more
        await cluster.until_asked_for(5)

    ended, _ = play(story, 4)
    assert ended == [("a", DONE[0]), ("b", DONE[0])]
    assert caplog.messages == [f"worker {name} ended with exit status 0" for name in ("a", "(not registered)")]


def test_one_that_is_ended_has_not_died_though_it_is_killed(caplog):
    async def story(cluster, fleet):
        for number in range(10):
            fleet.stop([f"w{number}"], "was silent for 12.5 s")
            await cluster.until(lambda number=number: len(cluster.stopped) == number + 1)
            fleet._ended(f"w{number}", *KILLED)
            await cluster.until_asked_for(2 + number)

    _, notices = play(story, 1)
    assert notices == []
    assert caplog.messages == [f"worker w{number} is given up: it was silent for 12.5 s" for number in range(10)]


def test_those_that_do_not_come_back_while_all_are_ended_are_no_news(caplog):
    async def story(cluster, fleet):
        await fleet.close()
        fleet.stop(["a", "b"], "did not come back within 0.5 s")
        await asyncio.sleep(0)
        assert cluster.stopped == []

    play(story, 2)
    assert caplog.messages == []


def test_while_workers_keep_dying_those_that_leave_are_not_replaced_any_sooner():
    async def story(cluster, fleet):
        for number in range(3):
            await cluster.until_asked_for(2 + number)
            fleet._ended(f"w{number}", *KILLED)
        fleet.leaves("a")
        fleet._ended("a", *DONE)
        fleet.resize(3)
        assert (fleet.requested, sum(cluster.asked)) == (0, 4)
        assert fleet.why.startswith("3 workers ended within 10 s")

    _, notices = play(story, 2)
    assert len(notices) == 1


def test_those_that_have_not_begun_are_given_up_when_fewer_are_planned():
    async def story(cluster, fleet):
        cluster.waiting = 4  # there is no room for these
        fleet.resize(5)
        fleet.resize(2)
        await cluster.until(lambda: len(cluster.given_up) == 2)
        await asyncio.sleep(0)
        assert (sum(cluster.given_up), fleet.requested) == (4, 4)  # those that run leave by themselves
        for name in ("a", "b"):
            fleet.leaves(name)
            fleet._ended(name, *DONE)
        assert (fleet.requested, sum(cluster.asked)) == (2, 8)
        fleet.resize(3)
        await cluster.until_asked_for(9)

    _, notices = play(story, 8)
    assert not notices


def test_more_that_are_planned_while_some_are_given_up_are_asked_for_again():
    async def story(cluster, fleet):
        cluster.waiting = 8
        fleet.resize(1)
        await asyncio.sleep(0)  # it asks
        fleet.resize(6)
        await cluster.until_asked_for(13)
        assert (cluster.given_up, fleet.requested) == ([7], 6)

    play(story, 8)


def test_those_that_end_or_are_asked_for_while_some_are_given_up_count():
    async def story(cluster, fleet):
        cluster.waiting = 7
        fleet.resize(1)
        await asyncio.sleep(0)  # it asks
        fleet._ended("a", *KILLED)
        fleet.resize(10)
        await cluster.until(lambda: cluster.given_up)
        await cluster.until_asked_for(18)
        assert (cluster.asked, fleet.requested) == ([8, 3, 7], 10)

    play(story, 8)


def test_what_was_to_be_asked_when_the_service_closes_is_not_asked():
    there = []

    async def story(cluster, fleet):
        there.append(cluster)
        fleet.resize(1)
        fleet.resize(3)
        fleet.stop(["a"], "was silent")

    play(story, 2)
    (cluster,) = there
    assert (cluster.asked, cluster.given_up, cluster.stopped) == ([2], [], [])


def test_a_cluster_that_cannot_start_any_ends_the_service_that_begins():
    with pytest.raises(ServiceError, match="no machine"):
        play(None, 2, failing=1)


@pytest.mark.parametrize("error", [ServiceError("no machine"), RuntimeError("can't start new thread")])
def test_a_cluster_that_could_not_is_asked_again(monkeypatch, error):
    monkeypatch.setattr(fleets, "_RETRY_S", 0.01)

    async def story(cluster, fleet):
        cluster.failing, cluster.error = 2, error
        fleet.resize(4)
        await cluster.until_asked_for(4)
        assert (cluster.failing, fleet.requested) == (0, 4)

    play(story)


def test_only_processes_that_can_be_seen_from_here_are_known_to_have_ended(monkeypatch):
    """A container that has its host's name has numbers of processes of its own."""
    monkeypatch.setattr(fleets, "process_exists", lambda pid: pid == os.getpid())
    here, there, space = platform.node(), "elsewhere", process_space()
    assert space

    def worker(name, host, pid, life, lost_at=1.0):
        fields = dict.fromkeys(Worker.__struct_fields__)
        return Worker(**{**fields, "id": name, "host": host, "pid": pid, "life": life, "lost_at": lost_at})

    workers = [
        worker("ended", here, 7, f"{space}/a"),
        worker("of before", here, 7, ""),
        worker("lives", here, os.getpid(), f"{space}/a"),
        worker("there", there, 7, f"{space}/a"),
        worker("in a container", here, 7, "pid:[1]/a"),
        worker("connected", here, 7, f"{space}/a", None),
    ]
    assert dead_workers(workers) == ["ended", "of before"]
