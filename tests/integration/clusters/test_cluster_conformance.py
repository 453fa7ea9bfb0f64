"""What every cluster does, whatever it runs workers on; after each story it is closed, and nothing may be left."""

import asyncio
import os
import signal

from tests.integration.clusters.cluster_stage import gone, on_every_cluster


@on_every_cluster
async def test_as_many_come_as_were_asked_for(stage):
    await stage.cluster.start(0)
    await stage.cluster.start(1)
    await stage.until_there(1)
    await stage.cluster.start(2)
    await stage.until_there(3)
    assert len(stage.seen) == 3
    assert stage.ended == []


@on_every_cluster
async def test_exactly_those_named_are_stopped(stage):
    await stage.cluster.start(3)
    workers = await stage.until_there(3)
    first, second, third = workers
    await stage.until(lambda: set(stage.cluster.running()) == set(workers))
    await stage.cluster.stop([first, third, "of somebody else"])
    await stage.until(lambda: len(stage.ended) == 2)
    await gone([workers[first], workers[third]])
    assert stage.told == {first: 1, third: 1}
    assert stage.cluster.running() == [second]
    assert await stage.until_there(1) == {second: workers[second]}
    assert len(stage.seen) == 3


@on_every_cluster
async def test_stopping_twice_is_told_once(stage):
    await stage.cluster.start(2)
    workers = await stage.until_there(2)
    first, second = workers
    await asyncio.gather(stage.cluster.stop([first]), stage.cluster.stop([first]))
    await stage.until(lambda: stage.ended)
    await stage.cluster.stop([first])
    await stage.cluster.stop([])
    assert stage.told == {first: 1}
    assert await stage.until_there(1) == {second: workers[second]}


@on_every_cluster
async def test_the_death_of_a_process_is_told_and_its_place_can_be_filled(stage):
    await stage.cluster.start(2)
    workers = await stage.until_there(2)
    victim, other = workers
    os.kill(workers[victim], signal.SIGKILL)
    await stage.until(lambda: stage.ended)
    await stage.cluster.start(1)
    after = await stage.until_there(2)
    assert after[other] == workers[other]
    assert stage.told == {victim: 1}
    assert not stage.orderly


@on_every_cluster
async def test_one_that_leaves_by_itself_does_not_come_back_by_itself(stage):
    await stage.cluster.start(2)
    workers = await stage.until_there(2)
    leaving, other = workers
    os.kill(workers[leaving], signal.SIGTERM)
    await stage.until(lambda: stage.ended)
    await gone([workers[leaving]])
    assert await stage.until_there(1) == {other: workers[other]}
    assert stage.told == {leaving: 1}
    assert stage.orderly == {leaving}
    await stage.cluster.start(1)  # one more than there is, not one more than there were
    await stage.until_there(2)


@on_every_cluster
async def test_some_start_while_others_end(stage):
    await stage.cluster.start(3)
    workers = await stage.until_there(3)
    first, second, third = workers
    await asyncio.gather(stage.cluster.stop([first]), stage.cluster.start(2), stage.cluster.stop([second]))
    await stage.until(lambda: len(stage.ended) == 2)
    after = await stage.until_there(3)
    assert after[third] == workers[third]
    assert not {first, second} & after.keys()
    assert stage.told == {first: 1, second: 1}


@on_every_cluster
async def test_those_that_have_not_begun_are_given_up_and_no_others(stage):
    await stage.cluster.start(1)
    workers = await stage.until_there(1)
    await stage.cluster.start(3)
    given_up = await stage.cluster.forgo(2)
    assert given_up <= 2
    await stage.until_there(4 - given_up)
    await stage.cluster.start(given_up)  # for as many as were given up there is room again, and not for more
    assert workers.items() <= (await stage.until_there(4)).items()
    assert await stage.cluster.forgo(0) == 0
    assert stage.ended == []


@on_every_cluster
async def test_all_may_die_at_once(stage):
    await stage.cluster.start(3)
    workers = await stage.until_there(3)
    for pid in workers.values():
        os.kill(pid, signal.SIGKILL)
    await stage.until(lambda: len(stage.ended) == 3)
    assert stage.told == dict.fromkeys(workers, 1)
    await stage.cluster.start(1)
    await stage.until_there(1)


@on_every_cluster
async def test_closing_ends_all_and_tells_of_none(stage):
    await stage.cluster.start(2)
    workers = await stage.until_there(2)
    await stage.cluster.close()
    await gone(list(workers.values()))
    assert stage.ended == []


@on_every_cluster
async def test_closing_ends_those_that_have_not_come_yet(stage):
    await stage.cluster.start(2)


@on_every_cluster
async def test_closing_before_anything_was_started_is_harmless(stage):
    assert stage.workers == {}
