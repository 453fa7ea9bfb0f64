"""As many workers as are planned, whatever the cluster does."""

import asyncio

import pytest

from millrace.dispatcher import fleet as fleets
from millrace.dispatcher.fleet import Fleet
from millrace.errors import ServiceError


class Paper:
    """A cluster that only counts."""

    def __init__(self, failing=0):
        self.asked, self.stopped, self.failing = [], [], failing
        self.waiting, self.given_up = 0, []
        self.changed = asyncio.Event()

    def watch(self, ended):
        self.ended = ended

    async def start(self, workers):
        if self.failing:
            self.failing -= 1
            self.changed.set()
            raise ServiceError("no machine is to be had")
        self.asked += [workers] if workers else []
        self.changed.set()

    async def forgo(self, workers):
        await asyncio.sleep(0)
        found = min(workers, self.waiting)
        self.waiting -= found
        self.given_up.append(found)
        self.changed.set()
        return found

    async def stop(self, workers):
        self.stopped += workers

    async def close(self):
        pass


def fleet_of(cluster, plan=0):
    ended: list[object] = []
    told: list[str] = []
    return Fleet(cluster, plan, on_end=lambda *who: ended.append(who), notice=told.append), ended, told


async def asked(cluster, total):
    while sum(cluster.asked) < total:
        cluster.changed.clear()
        await asyncio.wait_for(cluster.changed.wait(), 20)


def test_what_is_planned_is_asked_for_once():
    async def story():
        cluster = Paper()
        fleet, *_ = fleet_of(cluster)
        await fleet.start()
        for plan, total in ((3, 3), (3, 3), (8, 8), (5, 8), (8, 8), (9, 9)):
            fleet.resize(plan)
            await asked(cluster, total)
            assert sum(cluster.asked) == total
        await fleet.close()

    asyncio.run(story())


def test_a_worker_that_is_too_many_may_end_and_any_other_is_replaced():
    async def story():
        cluster = Paper()
        fleet, ended, told = fleet_of(cluster)
        await fleet.start()
        fleet.resize(5)
        await asked(cluster, 5)
        fleet.resize(3)
        for name in ("a", "b"):
            fleet._ended(name, "exit status 0")
        assert (fleet.requested, sum(cluster.asked)) == (3, 5)
        fleet._ended("c", "was killed by SIGKILL")
        await asked(cluster, 6)
        assert fleet.requested == 3
        assert ended == [("a", "exit status 0"), ("b", "exit status 0"), ("c", "was killed by SIGKILL")]
        assert not told
        await fleet.close()

    asyncio.run(story())


def test_those_that_have_not_begun_are_given_up_when_fewer_are_planned():
    async def story():
        cluster = Paper()
        fleet, _, told = fleet_of(cluster)
        await fleet.start()
        fleet.resize(8)
        await asked(cluster, 8)
        cluster.waiting = 4  # there is no room for these
        fleet.resize(5)
        fleet.resize(2)
        while len(cluster.given_up) < 2:
            cluster.changed.clear()
            await asyncio.wait_for(cluster.changed.wait(), 20)
        await asyncio.sleep(0)
        assert (sum(cluster.given_up), fleet.requested) == (4, 4)  # those that run leave by themselves
        for name in ("a", "b"):
            fleet._ended(name, "exit status 0")
        assert (fleet.requested, sum(cluster.asked)) == (2, 8)
        fleet.resize(3)
        await asked(cluster, 9)
        assert not told
        await fleet.close()

    asyncio.run(story())


def test_more_that_are_planned_while_some_are_given_up_are_asked_for_again():
    async def story():
        cluster = Paper()
        fleet, *_ = fleet_of(cluster)
        await fleet.start()
        fleet.resize(8)
        await asked(cluster, 8)
        cluster.waiting = 8
        fleet.resize(1)
        await asyncio.sleep(0)  # it asks
        fleet.resize(6)
        await asked(cluster, 13)
        assert (cluster.given_up, fleet.requested) == ([7], 6)
        await fleet.close()

    asyncio.run(story())


def test_a_cluster_that_cannot_start_any_ends_the_service_that_begins():
    async def story():
        fleet, *_ = fleet_of(Paper(failing=1), plan=2)
        await fleet.start()

    with pytest.raises(ServiceError, match="no machine"):
        asyncio.run(story())


def test_a_cluster_that_could_not_is_asked_again(monkeypatch):
    monkeypatch.setattr(fleets, "_AGAIN_S", 0.01)

    async def story():
        cluster = Paper()
        fleet, *_ = fleet_of(cluster)
        await fleet.start()
        cluster.failing = 2
        fleet.resize(4)
        await asyncio.wait_for(cluster.changed.wait(), 20)
        await asked(cluster, 4)
        assert (cluster.failing, fleet.requested) == (0, 4)
        await fleet.close()

    asyncio.run(story())
