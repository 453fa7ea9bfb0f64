"""The room of a cache: promised, taken, given up; and who knows of which blocks."""

import msgspec
import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.caching.cache_capacity import benefits
from millrace.control.journal.cache_events import BlocksDeleted
from millrace.control.journal.snapshot import plain
from millrace.control.state.cache_state import place_of
from millrace.planning.cache_point import CachePoint
from millrace.policies.caching.io_cost import TransferCost
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import BlocksKnown, CacheUsed, KeptBlock, MeasureStore, StoreCost, StoreMeasured

FINGERPRINT, ANOTHER = "ab" * 16, "cd" * 16
PLACE, OTHER = (place_of(each, "", "default") for each in (FINGERPRINT, ANOTHER))
LINE = TransferCost((1,), (1e-6,))
COST = StoreCost(LINE, LINE, LINE, 1e-12, 4)


def point(fingerprint=FINGERPRINT, mode="cache", **fields):
    return CachePoint(0, "map(f)", mode, fingerprint, items=8, **fields)


KEPT = point()


def begun(limit=1600, tasks=8, points=(KEPT,), workers=2, **settings):
    """A service whose workers hold leases of a job's first epoch, and its consumer."""
    service = Service(FakePlan(tasks), **{"cache": "/cache", "cache_bytes": limit, **settings})
    service.say(inp.Started("here:1"))
    service.answer_for_store()
    service.points = list(points)
    for number in range(workers):
        service.add_worker(f"w{number}")
    service.say(inp.WorkerSaid("w0", StoreMeasured("", COST)))
    peer = service.join("c")
    for worker in service.workers.values():
        service.plan_tasks(worker)
    return service, peer


def leases(service):
    return {lease: task.cache for worker in service.workers.values() for lease, task in worker.leases.items()}


def words(service, kind):
    return [action for action in service.last if isinstance(action, kind)]


def read_all(service, peer):
    """To the end of the epoch, and the next one is begun."""
    for _ in range(100):
        service.work()
        if peer.done:
            service.begin(peer)
            return
    raise AssertionError("the epoch does not end")


def blocks(service, place=PLACE):
    return set(service.state.caches.points[place].blocks)


# -- room --------------------------------------------------------------------------------------------------------------


def test_a_first_task_gets_an_eighth_and_later_ones_what_others_took():
    service, peer = begun(limit=8000)
    assert {use.room for use in leases(service).values()} == {1000}
    service.block_bytes = 100
    service.work()
    assert {use.room for use in leases(service).values()} == {130}
    assert service.state.caches.points[PLACE].largest == 100
    read_all(service, peer)
    assert blocks(service) == {f"block{task}" for task in range(8)}
    reserved = service.state.caches.reservations
    assert {lease: held.room for lease, held in reserved.items() if not held.over} == {
        lease: use.room for lease, use in leases(service).items()
    }
    assert service.state.caches.taken == 800 + sum(held.room for held in reserved.values())


def test_a_task_that_had_too_little_room_says_how_much_it_takes():
    service, _ = begun(limit=8000)
    service.block_bytes = 1500
    service.work()
    assert {use.room for use in leases(service).values()} == {1950}
    assert not blocks(service)
    service.work()
    assert blocks(service)


def test_room_is_promised_once():
    service, _ = begun(limit=1600, tasks=40, workers=8)
    assert len(leases(service)) > 8
    assert sum(use.room for use in leases(service).values()) <= service.state.caches.taken <= 1600
    assert any(not use.room for use in leases(service).values())


def test_the_room_of_a_run_that_died_is_kept_until_the_store_was_looked_at():
    service, _ = begun()
    lease = next(iter(service.workers["w0"].leases))
    service.store[PLACE] = {"left": KeptBlock("left", 50, 3)}  # it had published this, and nobody heard of it
    service.kill("w0")
    assert service.state.caches.reservations[lease].over
    before = service.state.caches.taken
    service.tick(1.0)
    assert service.state.caches.taken == before
    service.answer_for_store()
    assert lease not in service.state.caches.reservations
    assert blocks(service) == {"left"}
    assert service.state.caches.points[PLACE].items == 3


@pytest.mark.parametrize("ends", ["finish", "return"])
def test_a_word_about_a_run_that_got_lost_is_looked_up_in_the_store(ends):
    service, _ = begun(workers=1)
    worker = service.workers["w0"]
    lease, task = next(iter(worker.leases.items()))
    if ends == "finish":
        service.silent = 1
        service.finish(worker, lease)
    else:
        worker.leases.pop(lease)
        service.say(inp.WorkerSaid("w0", msg.TaskReturned(task.ref, lease)))
    assert service.state.caches.reservations[lease].over
    service.tick(1.0)
    service.answer_for_store()
    assert lease not in service.state.caches.reservations
    assert blocks(service) == set(service.store.get(PLACE, ()))


def test_who_adds_to_its_own_folder_is_promised_nothing_of_the_service():
    service, _ = begun(points=[point(path="/there")], cache="", limit=0)
    (use,) = {use.place for use in leases(service).values()}
    assert use == f"{FINGERPRINT}@/there"
    assert service.state.caches.taken == 0
    before = set(leases(service))
    service.kill("w0")
    service.tick(1.0)
    assert not service.asked_of_store
    assert service.state.caches.reservations.keys() == leases(service).keys() != before


def test_what_came_after_all_is_counted_and_what_is_too_much_then_goes():
    service, _ = begun(limit=1600)
    late = [KeptBlock(f"late{number}", 300, 1) for number in range(5)]
    service.say(inp.WorkerSaid("gone", CacheUsed("a", 999, PLACE, late)))
    assert blocks(service) == {block.name for block in late}
    point = service.state.caches.points[PLACE]
    assert sum(block.bytes for block in point.readable) + sum(use.room for use in leases(service).values()) <= 1600
    assert list(point.evicting) == ["late0", "late1", "late2"]


def test_a_service_that_may_have_less_than_before_gives_up_what_is_too_much():
    service, peer = begun(limit=1600)
    read_all(service, peer)
    assert sum(block.bytes for block in service.store[PLACE].values()) == 800
    service.say(inp.ConsumerSaid("c", msg.LeaveJob()))
    service.settings = msgspec.structs.replace(service.settings, cache_bytes=350)
    service.restart()
    service.answer_for_store()
    assert sum(block.bytes for block in service.store[PLACE].values()) == 300
    assert blocks(service) == set(service.store[PLACE])


def test_a_store_is_measured_once_it_is_listed_with_a_part_of_the_room_that_is_left():
    service = Service(FakePlan(8), cache="/cache", cache_bytes=1600)
    service.store = {PLACE: {"b": KeptBlock("b", 800, 4)}}
    service.say(inp.Started("here:1"))
    service.add_worker("w0")
    assert not service.workers["w0"].measuring
    service.answer_for_store()
    (asked,) = [action.message for action in words(service, act.SendToWorker)]
    assert asked == MeasureStore("", 200)
    service.points = [KEPT]
    service.join("c")
    service.plan_tasks(service.workers["w0"])
    assert sum(use.room for use in leases(service).values()) <= 1600 - 800 - 200


def test_why_nothing_is_kept_is_known_until_something_is():
    service, _ = begun()
    observation = service.observed.caching["a"]
    full = CacheUsed("a", 999, PLACE, lost=["x", "y"], error="the disk is full")
    service.say(inp.WorkerSaid("w0", full))
    service.say(inp.WorkerSaid("w0", CacheUsed("a", 999, PLACE, error="there is no room for all", wanted=500)))
    assert (observation.lost, observation.trouble) == (2, "the disk is full")
    service.say(inp.WorkerSaid("w0", CacheUsed("a", 999, PLACE, [KeptBlock("b", 10, 1)])))
    assert (observation.lost, observation.trouble) == (2, "")


OTHERS = place_of("ef" * 16, "", "them")


@pytest.mark.parametrize(
    "said",
    [
        CacheUsed("a", 999, OTHERS, lost=["theirs"]),
        CacheUsed("a", 999, OTHERS, [KeptBlock("false", 10, 1)]),
        CacheUsed("nobody", 999, PLACE, [KeptBlock("false", 10, 1)]),
        CacheUsed("nobody", 999, OTHERS, lost=["theirs"]),
    ],
)
def test_what_a_worker_says_of_points_that_are_not_its_jobs_counts_for_nothing(said):
    """A worker had others' blocks deleted, and blocks of its own read in their place."""
    service, _ = begun()
    service.store[OTHERS] = {"theirs": KeptBlock("theirs", 100, 1)}
    service.restart()
    service.answer_for_store()
    assert blocks(service, OTHERS) == {"theirs"}
    known = blocks(service)
    service.say(inp.WorkerSaid("w0", said))
    assert blocks(service, OTHERS) == {"theirs"}
    assert blocks(service) == known
    assert not service.state.caches.points[OTHERS].evicting


def test_what_a_run_could_not_read_is_given_up_though_its_job_is_over_when_that_is_heard():
    """Whoever read the job's last element closed it before the word of its last run came."""
    service, peer = begun()
    read_all(service, peer)
    service.say(inp.ConsumerSaid("c", msg.LeaveJob()))
    assert not service.state.jobs
    name = min(blocks(service))
    service.say(inp.WorkerSaid("w0", CacheUsed("a", 999, PLACE, lost=[name])))
    assert name in service.state.caches.points[PLACE].evicting


def test_what_a_worker_says_of_anothers_lease_counts_for_nothing():
    service, _ = begun()
    lease = next(iter(service.state.workers["w0"].unfinished))
    room = service.state.caches.reservations[lease].room
    service.say(inp.WorkerSaid("w1", CacheUsed("a", lease, PLACE, [KeptBlock("false", 10, 1)])))
    assert "false" not in blocks(service)
    assert service.state.caches.reservations[lease].room == room > 0


# -- what is given up --------------------------------------------------------------------------------------------------


def test_what_nobody_uses_any_more_makes_room_for_what_somebody_does():
    service, peer = begun(limit=800)
    read_all(service, peer)
    assert len(blocks(service)) >= 7
    service.say(inp.ConsumerSaid("c", msg.LeaveJob()))
    service.tick(7200.0)
    service.points = [point(ANOTHER)]
    peer = service.join("d", "b")
    for _ in range(6):
        while not peer.done:
            service.work()
            service.tick(2.0)
            service.answer_for_store()
            assert sum(block.bytes for there in service.store.values() for block in there.values()) <= 800
        service.begin(peer)
    assert len(service.store[OTHER]) > 4
    assert len(service.store[PLACE]) < 4


def test_a_block_is_deleted_when_those_who_may_read_it_are_done():
    service, _ = begun(tasks=20)
    service.work(read=False)
    some = min(blocks(service))
    readers = set(leases(service))
    service.say(inp.RemovalAsked([PLACE]))
    assert not words(service, act.DeleteBlocks)
    assert some not in {block.name for block in service.state.caches.points[PLACE].readable}
    gone = {name for worker in service.workers.values() for name in worker.known.get(PLACE, ())}
    assert some not in gone
    for _ in range(3):
        service.work(read=False)
        service.tick(0.1)
        if readers & set(leases(service)):
            assert some in service.store[PLACE]
    service.answer_for_store()
    assert some not in service.store[PLACE]
    assert some not in blocks(service)


def test_a_block_that_is_made_again_while_it_is_deleted_is_deleted_once_more():
    service, peer = begun()
    read_all(service, peer)
    service.say(inp.ConsumerSaid("c", msg.LeaveJob()))
    service.say(inp.RemovalAsked([PLACE]))
    service.work_of_store()  # it is deleted, and nobody knows yet
    again = KeptBlock("block0", 100, 1)
    service.store[PLACE]["block0"] = again
    service.say(inp.WorkerSaid("w0", CacheUsed("a", 999, PLACE, [again])))
    service.answer_for_store()
    assert not service.store[PLACE]
    assert PLACE not in service.state.caches.points


def test_a_block_that_is_deleted_and_not_listed_any_more_is_deleted_again_if_it_comes_again():
    """A listing may know it before the answer does; who reads it when it has come again may not lose it."""
    service, peer = begun()
    read_all(service, peer)
    service.say(inp.ConsumerSaid("c", msg.LeaveJob()))
    service.say(inp.RemovalAsked([PLACE]))
    (asked,) = [asked for asked in service.asked_of_store if isinstance(asked, act.DeleteBlocks)]
    service.say(inp.StoreListed({}, []))
    again = KeptBlock("block0", 100, 1)
    service.say(inp.WorkerSaid("w0", CacheUsed("a", 999, PLACE, [again])))
    assert not service.state.caches.points[PLACE].readable
    service.asked_of_store.remove(asked)
    service.say(inp.BlocksGone(PLACE, asked.names))
    assert [*blocks(service)] == ["block0"]
    service.answer_for_store()
    assert PLACE not in service.state.caches.points


def test_a_block_that_is_made_while_the_store_is_listed_is_not_missing():
    service, _ = begun()
    service.work(read=False)
    name = min(blocks(service))
    block = service.store[PLACE].pop(name)  # somebody else has deleted it
    service.restart()
    service.work_of_store()
    service.store[PLACE][name] = block
    service.say(inp.WorkerSaid("w0", CacheUsed("a", 999, PLACE, [block])))
    service.answer_for_store()
    assert name in blocks(service)


def test_a_damaged_block_that_was_made_anew_under_its_name_stays():
    service, _ = begun()
    service.work(read=False)
    name = min(blocks(service))
    service.say(inp.WorkerSaid("w0", CacheUsed("a", 999, PLACE, [service.store[PLACE][name]], lost=[name])))
    assert name in {block.name for block in service.state.caches.points[PLACE].readable}
    service.say(inp.WorkerSaid("w0", CacheUsed("a", 999, PLACE, lost=[name])))
    assert name not in {block.name for block in service.state.caches.points[PLACE].readable}


def test_what_cannot_be_deleted_counts_until_it_can():
    service, peer = begun()
    read_all(service, peer)
    service.say(inp.ConsumerSaid("c", msg.LeaveJob()))
    service.say(inp.RemovalAsked([PLACE]))
    (asked,) = [asked for asked in service.asked_of_store if isinstance(asked, act.DeleteBlocks)]
    service.asked_of_store.clear()
    service.say(inp.BlocksGone(PLACE, [], asked.names))
    assert len(blocks(service)) == 8
    service.tick(1.0)
    service.answer_for_store()
    assert PLACE not in service.state.caches.points


def test_a_user_s_own_folder_is_theirs_to_clear():
    service, _ = begun(points=[point(path="/there")])
    service.work(read=False)
    place = f"{FINGERPRINT}@/there"
    name = min(blocks(service, place))
    service.say(inp.RemovalAsked([place]))
    assert name in {block.name for block in service.state.caches.points[place].readable}
    service.say(inp.WorkerSaid("w0", CacheUsed("a", 999, place, lost=[name])))
    assert name not in blocks(service, place)
    assert name not in service.workers["w0"].known[place]
    assert not [asked for asked in service.asked_of_store if isinstance(asked, act.DeleteBlocks)]


def test_words_about_a_store_that_cannot_be_listed_change_nothing_and_it_is_asked_again():
    service, _ = begun()
    service.work(read=False)
    before = plain(service.state)
    service.kill("w0")
    service.tick(1.0)
    (asked,) = service.asked_of_store
    service.asked_of_store.clear()
    service.say(inp.StoreListed(None, asked.leases))
    assert plain(service.state)["caches"] != before
    assert any(held.over for held in service.state.caches.reservations.values())
    assert len(blocks(service)) == len(service.store[PLACE])
    service.tick(1.0)
    service.answer_for_store()
    assert not any(held.over for held in service.state.caches.reservations.values())


def test_a_block_of_another_size_than_it_had_is_looked_into():
    service, peer = begun()
    read_all(service, peer)
    service.store[PLACE]["block3"] = KeptBlock("block3", 7, 2)
    service.restart()
    (asked,) = service.asked_of_store
    assert asked.known[PLACE]["block3"] == 100
    service.answer_for_store()
    assert service.state.caches.points[PLACE].blocks["block3"] == KeptBlock("block3", 7, 2)


# -- who knows what ----------------------------------------------------------------------------------------------------


def test_workers_hear_of_blocks_with_the_first_lease_that_reads_them_and_then_at_once():
    service, peer = begun(workers=1)
    read_all(service, peer)
    assert service.workers["w0"].known[PLACE] == blocks(service)
    late = service.add_worker("w1")
    service.run()
    assert late.known.get(PLACE, set()) in (set(), blocks(service))
    extra = KeptBlock("extra", 10, 1)
    service.say(inp.WorkerSaid("w0", CacheUsed("a", 999, PLACE, [extra])))
    told = {action.worker for action in words(service, act.SendToWorker) if isinstance(action.message, BlocksKnown)}
    assert told == {name for name, worker in service.workers.items() if PLACE in service.observed.told.get(name, ())}
    assert "w0" in told


def test_a_worker_that_comes_back_is_told_anew():
    service, _ = begun(workers=1)
    service.work(read=False)
    worker = service.workers["w0"]
    worker.connected = False
    service.say(inp.WorkerSessionLost("w0"))
    worker.known.clear()
    service.hello("w0")
    service.work()
    service.work()
    assert worker.known[PLACE] >= blocks(service) - {f"block{number}" for number in range(2, 8)}


def test_a_point_is_worth_what_jobs_that_are_there_save_and_forgotten_with_its_last_block():
    service, peer = begun()
    read_all(service, peer)
    service.now += 7200.0
    there = benefits(service.state, service.now)[PLACE]
    service.say(inp.ConsumerSaid("c", msg.LeaveJob()))
    assert 0 < benefits(service.state, service.now)[PLACE] < there
    service.say(inp.RemovalAsked([PLACE]))
    service.answer_for_store()
    assert PLACE not in service.state.caches.points
    assert any(isinstance(event, BlocksDeleted) for event in service.events)
    assert plain(service.replayed()) == plain(service.state)


def test_a_worker_forgets_what_was_given_up_while_it_was_away():
    service, _ = begun(workers=1)
    worker = service.workers["w0"]
    lease = next(iter(worker.leases))
    service.say(inp.WorkerSaid("w0", CacheUsed("a", lease, PLACE, [KeptBlock("b", 50, 1)])))
    assert worker.known[PLACE] == {"b"}
    service.say(inp.WorkerSessionLost("w0"))
    worker.connected = False
    service.say(inp.RemovalAsked([PLACE]))
    service.hello("w0")
    service.run()
    assert "b" not in worker.known[PLACE]


def test_small_tasks_get_room_for_what_a_block_has_beside_its_elements():
    service, _ = begun(limit=64 << 20)
    service.work()
    assert {use.room for use in leases(service).values()} == {64 << 10}
