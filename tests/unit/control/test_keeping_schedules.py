"""Whatever happens to workers, jobs, dispatcher and store: it never has more than it may, and no room is lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.journal.snapshot import plain
from millrace.planning.cache_point import CachePoint
from millrace.protocol import messages as msg

LIMIT = 1600
SIZES = st.sampled_from([1, 150, 200, 260, 400])
POINTS = {
    "first": CachePoint(0, "range(100)", "cache", "ab" * 16, items=9),
    "second": CachePoint(0, "range(100)", "cache", "cd" * 16, items=9),
    "at times": CachePoint(0, "range(100)", "auto", "ab" * 16, items=9),
    "elsewhere": CachePoint(0, "range(100)", "cache", "ab" * 16, path="/there", items=9),
}


class Keeping(RuleBasedStateMachine):
    """Two workers and more, up to four jobs, and a store in which their blocks do not all have room."""

    service: Service

    @initialize(mains=st.sampled_from([1, 4, 9, 13]), fan_in=st.sampled_from([0, 3]))
    def begin(self, mains: int, fan_in: int) -> None:
        self.service = Service(FakePlan(mains, fan_in), cache="/cache", cache_bytes=LIMIT)
        self.service.say(inp.Started("here:1"))
        self.named = 0
        for _ in range(2):
            self.add_worker()

    # -- what workers do

    def add_worker(self) -> None:
        self.service.add_worker(f"w{self.named}")
        self.named += 1

    @rule(size=SIZES, steps=st.integers(1, 6), reads=st.booleans())
    def work(self, size: int, steps: int, reads: bool) -> None:
        self.service.block_bytes = size
        for _ in range(steps):
            self.service.work(read=reads, room=3)
        self.read_on()

    @rule(size=SIZES, silent=st.integers(1, 3))
    def work_and_lose_the_word_about_it(self, size: int, silent: int) -> None:
        self.service.silent = silent
        self.work(size, 1, reads=True)
        self.service.silent = 0

    @rule(what=st.sampled_from(["kill", "crash", "break", "leave", "return"]), which=st.integers(0, 9))
    def disturb(self, what: str, which: int) -> None:
        workers = self.service.workers
        name = sorted(workers)[which % len(workers)]
        if what == "kill":
            self.service.kill(name)
        elif what == "crash":
            del workers[name]
            self.service.say(inp.WorkerSessionLost(name))
        elif what == "break":
            workers[name].connected = False
            self.service.say(inp.WorkerSessionLost(name))
        elif what == "leave":
            self.service.say(inp.WorkerSaid(name, msg.WorkerLeaving(2.0)))
        elif workers[name].leases and workers[name].connected:
            lease, task = workers[name].leases.popitem()
            self.service.say(inp.WorkerSaid(name, msg.TaskReturned(task.ref, lease)))
        if len(workers) < 2:
            self.add_worker()

    @rule()
    def all_come_back(self) -> None:
        for name, worker in self.service.workers.items():
            if not worker.connected:
                self.service.hello(name)
        for peer in self.service.consumers.values():
            if not peer.connected:
                self.service.rejoin(peer)

    # -- what jobs do

    def read_on(self) -> None:
        """Whoever has read its epoch begins another."""
        for peer in self.service.consumers.values():
            if peer.connected and not peer.closed and peer.done:
                self.service.begin(peer)

    @rule(job=st.sampled_from(sorted(POINTS)))
    def come_or_go(self, job: str) -> None:
        if job in self.service.consumers:
            self.leave(job)
            return
        self.service.points = [POINTS[job]]
        self.service.join(job, job)
        for _ in range(2):
            for worker in self.service.workers.values():
                self.service.plan_tasks(worker)

    def leave(self, job: str) -> None:
        peer = self.service.consumers.get(job)
        if peer is not None and peer.connected:
            self.service.say(inp.ConsumerSaid(job, msg.LeaveJob()))
            del self.service.consumers[job]

    # -- what the dispatcher and its store do

    @rule(seconds=st.sampled_from([0.1, 1.5, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.service.tick(seconds)

    @rule(told=st.booleans())
    def the_store_works(self, told: bool) -> None:
        self.service.work_of_store()
        if told:
            self.service.answer_for_store()

    @rule(deaf=st.integers(-1, 3))
    def restart(self, deaf: int) -> None:
        if deaf < 0:
            self.service.save()
            return
        assert plain(self.service.restored()) == plain(self.service.state)
        self.service.deaf = True
        for _ in range(deaf):
            self.service.work()
        self.service.restart()
        self.all_come_back()

    # -- what others do

    @rule(place=st.sampled_from(["ab" * 16, "cd" * 16]), which=st.integers(0, 9), asks=st.booleans())
    def somebody_deletes(self, place: str, which: int, asks: bool) -> None:
        there = sorted(self.service.store.get(place, ()))
        if asks:
            self.service.say(inp.RemovalAsked([place, "ef" * 16]))
        elif there:
            del self.service.store[place][there[which % len(there)]]

    # -- what is true all the time

    @invariant()
    def nothing_has_more_than_it_may(self) -> None:
        kept = self.kept()
        assert sum(sum(blocks.values()) for blocks in kept.values()) <= LIMIT
        # What a lease has written that is not over may count twice after a restart: then something goes.
        points = self.service.state.caches.points.values()
        going = sum(cached.blocks[block].bytes for cached in points if not cached.path for block in cached.evicting)
        assert self.service.state.caches.taken - going <= LIMIT

    def kept(self) -> dict[str, dict[str, int]]:
        return {
            place: {block.name: block.bytes for block in there.values()}
            for place, there in self.service.store.items()
            if there and "@" not in place
        }

    def settle(self) -> None:
        """Those who are leaving are gone, and whatever was asked of the store is done."""
        for seconds in (6.0, 0.1, 0.1):
            self.service.tick(seconds)
            self.service.answer_for_store()

    def known(self) -> dict[str, dict[str, int]]:
        points = self.service.state.caches.points
        return {
            place: {block.name: block.bytes for block in cached.blocks.values()}
            for place, cached in points.items()
            if cached.blocks and "@" not in place
        }

    def teardown(self) -> None:
        """In the end all that is there is known, nothing is promised to nobody, and what goes is gone."""
        if not hasattr(self, "service"):
            return
        self.all_come_back()
        self.settle()
        state = self.service.state
        assert state.caches.reservations.keys() <= {lease for w in state.workers.values() for lease in w.unfinished}
        known = self.known()
        assert all(block in known[place].items() for place, there in self.kept().items() for block in there.items())
        for name in sorted(POINTS):
            self.leave(name)
        self.settle()
        assert not state.caches.reservations
        assert not any(cached.evicting for cached in state.caches.points.values())
        self.service.restart()
        self.settle()
        assert self.known() == self.kept()
        assert plain(self.service.replayed()) == plain(self.service.state)


TestKeeping = Keeping.TestCase
TestKeeping.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
