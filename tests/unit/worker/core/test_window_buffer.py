"""A slot whose newest outputs are kept for readers of any speed."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.epoch_buffer import EpochBuffer
from millrace.client.slot_cycle import SlotCycle
from millrace.protocol.data_messages import Short
from millrace.worker.core.outbox import Parcel, TaskKey
from millrace.worker.core.window_buffer import WindowBuffer
from millrace.worker.core.worker_inputs import OutputMessage

KEY = (0, 0)


def message(index, count=1, size=10):
    return OutputMessage(index, count, [b"x" * size], size)


def window_of(*readers, limit=60, window=30):
    """Make a buffer of room for three messages on either side of the furthest reader, and a task that all read."""
    buffer = WindowBuffer(limit, readers, window=window)
    buffer.begin(KEY, 1, 0)
    for reader in readers:
        read(buffer, reader)
    return buffer


def read(buffer, reader, key=KEY, lease=1, start=0):
    buffer.read(buffer.outboxes[reader], key, lease, start)
    buffer.validate()


def has(buffer, reader, upto, key=KEY, *, complete=False):
    buffer.received(buffer.outboxes[reader], key, upto, complete=complete)
    buffer.validate()


def put(buffer, *indexes, key=KEY, lease=1, size=10):
    for index in indexes:
        assert buffer.room(key[0], size)
        assert buffer.put(key, lease, message(index, size=size))
        buffer.validate()


def taken(buffer, reader):
    """What a reader is told now: numbers of outputs that are sent, and ("skipped", upto) and ("end", outputs)."""
    outbox = buffer.outboxes[reader]
    told: list[object] = []
    while (parcel := outbox.next()) is not None:
        outbox.sent(parcel)
        if parcel.skipped is not None:
            told.append(("skipped", parcel.skipped.upto))
        told += range(parcel.header.index, parcel.header.index + parcel.header.count)
        if parcel.header.last:
            told.append(("end", parcel.header.index + parcel.header.count))
    return told


def test_the_furthest_reader_sets_the_pace_and_the_other_skips_what_was_dropped():
    buffer = window_of(0, 1, limit=40, window=10)
    put(buffer, 0, 1, 2)
    assert taken(buffer, 0) == [0, 1, 2]
    assert not buffer.room(0, 10), "nobody has said that it has anything"
    has(buffer, 0, 2)
    put(buffer, 3, 4)
    assert not buffer.room(0, 10), "the furthest lacks as much as may be computed ahead of it"
    assert taken(buffer, 1) == [("skipped", 1), 1, 2, 3, 4]
    assert taken(buffer, 0) == [3, 4]


@pytest.mark.parametrize("window", [None, 20])
def test_who_is_a_little_slower_than_the_furthest_misses_nothing_though_workers_are_faster_than_both(window):
    buffer, made = window_of(0, 1, limit=60, window=window), 0
    came: list[object] = []
    for step in range(20):
        while buffer.room(0, 10):
            put(buffer, made)
            made += 1
        has(buffer, 0, step + 1)
        if step:
            came += taken(buffer, 1)
            has(buffer, 1, step)
    assert came == list(range(len(came)))
    assert len(came) > 20


def test_what_the_furthest_does_not_lack_leaves_its_room_to_the_window():
    buffer = window_of(0, limit=60, window=None)
    for index in range(9):
        put(buffer, index)
        has(buffer, 0, index + 1)
    assert buffer.bytes == 60


def test_what_is_lost_in_a_row_is_told_once_and_before_what_comes_next():
    buffer = window_of(0, 1)
    put(buffer, 0)
    assert taken(buffer, 1) == [0]
    for index in range(1, 9):
        put(buffer, index)
        has(buffer, 0, index + 1)
    assert taken(buffer, 1) == [("skipped", 6), 6, 7, 8]


def test_who_lacks_the_end_is_told_what_it_lost_with_it():
    buffer = window_of(0, 1)
    put(buffer, 0, 1)
    taken(buffer, 0)
    has(buffer, 0, 2)
    assert buffer.finish(KEY, 1, 2, 0)
    has(buffer, 0, 2, complete=True)
    buffer.begin((0, 1), 2, 0)
    read(buffer, 0, (0, 1), 2)
    for index in range(3):
        put(buffer, index, key=(0, 1), lease=2)
        has(buffer, 0, index + 1, (0, 1))
    assert taken(buffer, 1) == [("skipped", 2), ("end", 2)]
    has(buffer, 1, 2, complete=True)
    assert KEY not in buffer.tasks


def test_who_joins_gets_what_lies_in_the_window_over_all_tasks():
    buffer = window_of(0)
    put(buffer, 0)
    has(buffer, 0, 1)
    buffer.finish(KEY, 1, 1, 0)
    has(buffer, 0, 1, complete=True)
    buffer.begin((0, 1), 2, 0)
    read(buffer, 0, (0, 1), 2)
    put(buffer, 0, key=(0, 1), lease=2)
    buffer.join(7)
    read(buffer, 7)
    read(buffer, 7, (0, 1), 2)
    assert taken(buffer, 7) == [0, ("end", 1), 0]


def test_who_asks_for_a_task_of_which_nothing_is_kept_is_told_how_much_it_missed():
    buffer = window_of(0)
    put(buffer, 0, 1)
    has(buffer, 0, 2)
    buffer.finish(KEY, 1, 2, 0)
    has(buffer, 0, 2, complete=True)
    buffer.begin((0, 1), 2, 0)
    read(buffer, 0, (0, 1), 2)
    for index in range(3):
        put(buffer, index, key=(0, 1), lease=2)
        has(buffer, 0, index + 1, (0, 1))
    assert KEY not in buffer.tasks
    buffer.join(7)
    for _ in "once", "again":
        assert not buffer.lacks(KEY, 1, 0)
        read(buffer, 7)
        assert taken(buffer, 7) == [("skipped", 2), ("end", 2)]
    has(buffer, 7, 2, complete=True)
    assert KEY not in buffer.tasks
    buffer.forget(KEY)
    read(buffer, 7)
    assert taken(buffer, 7) == []


def test_who_comes_back_is_told_what_it_lost_on_its_way():
    buffer = window_of(0, 1, window=20)
    put(buffer, 0, 1, 2)
    assert taken(buffer, 1) == [0, 1, 2]
    has(buffer, 0, 3)
    put(buffer, 3)
    buffer.outboxes[1].attach(None)
    read(buffer, 1, start=1)
    assert taken(buffer, 1) == [1, 2, 3], "only what was dropped is lost"
    has(buffer, 0, 4)
    put(buffer, 4)
    buffer.outboxes[1].attach(None)
    read(buffer, 1, start=1)
    assert taken(buffer, 1) == [("skipped", 2), 2, 3, 4]


def test_when_the_furthest_leaves_what_the_others_lack_is_kept_for_them():
    buffer = window_of(0, 1)
    put(buffer, 0, 1, 2)
    has(buffer, 0, 3)
    assert buffer.room(0, 10)
    buffer.leave(0)
    buffer.validate()
    assert not buffer.room(0, 10)
    assert taken(buffer, 1) == [0, 1, 2]


def test_a_reader_of_a_later_epoch_lacks_nothing_of_the_one_before():
    buffer = window_of(0, 1, window=10)
    put(buffer, 0, 1)
    buffer.begin((1, 0), 2, 0)
    read(buffer, 0, (1, 0), 2)
    assert taken(buffer, 0) == []
    put(buffer, 0, 1, key=(1, 0), lease=2)
    assert taken(buffer, 1) == [("skipped", 1), 1]
    assert taken(buffer, 0) == [0, 1]


def test_a_run_of_an_epoch_that_the_furthest_has_left_waits_for_those_who_read_it():
    buffer = window_of(0, 1)
    buffer.begin((1, 0), 2, 0)
    read(buffer, 0, (1, 0), 2)
    put(buffer, 0, 1, 2)
    assert not buffer.room(0, 10)
    has(buffer, 1, 1)
    put(buffer, 3)


def test_outputs_of_an_epoch_that_nobody_reads_any_more_are_not_kept():
    buffer = window_of(0)
    buffer.begin((1, 0), 2, 0)
    read(buffer, 0, (1, 0), 2)
    assert not buffer.put(KEY, 1, message(0))
    buffer.finish(KEY, 1, 1, 0)
    buffer.begin((0, 1), 3, 0)
    assert not buffer.put((0, 1), 3, message(0))
    assert list(buffer.tasks) == [(1, 0), (0, 1)]


def test_who_asks_for_more_than_a_run_begins_with_is_told_so():
    buffer = WindowBuffer(30, [0])
    read(buffer, 0)
    buffer.begin(KEY, 1, 3)
    put(buffer, 3)
    assert taken(buffer, 0) == [("skipped", 3), 3]


def test_while_nobody_is_there_nothing_is_put_in_and_who_comes_misses_nothing_by_that():
    buffer = window_of(0)
    put(buffer, 0)
    buffer.leave(0)
    assert buffer.paused
    assert not buffer.room(0, 10)
    assert not buffer.spared(KEY), "else it would go on, and be dropped"
    buffer.join(1)
    assert not buffer.paused
    read(buffer, 1)
    put(buffer, 1)
    buffer.finish(KEY, 1, 2, 0)
    assert taken(buffer, 1) == [0, 1, ("end", 2)]


def test_a_task_that_runs_on_while_nobody_is_there_and_has_no_more_is_remembered_by_its_end():
    buffer = window_of(0)
    buffer.leave(0)
    buffer.finish(KEY, 1, 0, 0)
    buffer.validate()
    assert [task.key for task in buffer.ended()] == [KEY]


@pytest.mark.parametrize(
    ("limit", "window", "bytes_"), [(64 << 20, None, 1 << 20), (8 << 20, None, 1 << 18), (64, 64, 4)]
)
def test_a_window_has_at_least_sixteen_messages(limit, window, bytes_):
    assert WindowBuffer(limit, [0], window=window).message_bytes == bytes_


def test_who_was_let_go_of_a_task_and_asks_for_it_all_the_same_gets_what_there_is():
    buffer = window_of(0, 1)
    put(buffer, 0)
    buffer.spare(KEY, [0, 1])
    buffer.validate()
    assert buffer.bytes > 0, "it lies in the window"
    read(buffer, 1)
    assert buffer.put(KEY, 1, message(1))
    buffer.validate()
    assert taken(buffer, 1) == [0, 1]
    assert taken(buffer, 0) == []


def test_who_has_what_came_after_what_is_dropped_has_come_further_by_that():
    buffer = WindowBuffer(60, [0, 1], window=5)
    for task in range(2):
        buffer.begin((0, task), task, 0)
        read(buffer, 0, (0, task), task)
    read(buffer, 1, (0, 1), 1)
    put(buffer, 0, key=(0, 0), lease=0)
    put(buffer, 0, 1, 2, 3, key=(0, 1), lease=1)
    has(buffer, 1, 3, (0, 1))
    assert not buffer.room(0, 10), "nobody has the first one"
    has(buffer, 0, 1, (0, 0))
    assert (0, 0) in buffer.tasks
    assert not buffer.tasks[0, 0].messages
    assert buffer.room(0, 40), "now the other one is the furthest, who lacks the last one only"


def test_another_process_in_the_place_of_the_furthest_holds_back_what_it_lacks():
    buffer = window_of(0, 1)
    put(buffer, 0, 1, 2)
    has(buffer, 0, 3)
    buffer.outboxes[0].attach(None)
    read(buffer, 0)
    assert not buffer.room(0, 10)
    assert taken(buffer, 0) == [0, 1, 2]


def test_what_is_computed_for_the_epoch_after_the_furthest_readers_has_half_of_the_room():
    buffer = window_of(0, 1, limit=80, window=None)
    buffer.begin((1, 0), 2, 0)
    put(buffer, 0, 1, key=(1, 0), lease=2)
    assert not buffer.room(1, 10)
    read(buffer, 0, (1, 0), 2)
    put(buffer, 2, 3, key=(1, 0), lease=2)
    assert not buffer.room(1, 10)


def test_an_element_larger_than_the_window_is_kept_alone():
    buffer = window_of(0, 1)
    put(buffer, 0)
    has(buffer, 0, 1)
    put(buffer, 1, size=100)
    assert not buffer.room(0, 1)
    has(buffer, 0, 2)
    assert buffer.bytes == 0
    assert taken(buffer, 1) == []
    put(buffer, 2)
    assert taken(buffer, 1) == [("skipped", 2), 2]


def test_the_window_may_be_smaller_than_the_room_for_what_the_furthest_lacks():
    buffer = window_of(0, window=10)
    put(buffer, 0, 1, 2)
    has(buffer, 0, 3)
    assert buffer.bytes == 10


def test_less_room_drops_what_the_furthest_has():
    buffer = window_of(0)
    put(buffer, 0, 1, 2)
    has(buffer, 0, 2)
    buffer.resize(10)
    buffer.validate()
    assert buffer.bytes == 10
    buffer.resize(5)
    assert buffer.bytes == 10, "what it lacks stays"


def test_a_failure_waits_for_the_furthest_alone():
    buffer = window_of(0, 1)
    put(buffer, 0, 1)
    assert buffer.waits(KEY, 1)
    has(buffer, 0, 2)
    assert not buffer.waits(KEY, 1)


def test_who_has_everything_here_but_what_lies_in_the_window_lets_the_worker_end():
    buffer = window_of(0)
    put(buffer, 0)
    has(buffer, 0, 1)
    buffer.finish(KEY, 1, 1, 0)
    idle = [buffer.idle]
    has(buffer, 0, 1, complete=True)
    idle.append(buffer.idle)
    assert idle == [False, True]
    assert buffer.tasks, "who comes late still gets it"


# -- many readers of any speed, against what each must see -------------------------------------------------------------

TASKS = 3
"""Tasks of an epoch."""
LIMIT = 40


class Member:
    """A reader with the real buffer of an epoch, behind a connection that takes its time in both directions."""

    def __init__(self, number, in_order):
        self.number, self.in_order = number, in_order
        self.sent: deque[Parcel] = deque()
        self.acks: deque[tuple[int, int, int, bool]] = deque()
        self.asked, self.acknowledged = -1, {}  # as far as the worker knows
        self.begin(0)

    def begin(self, epoch):
        self.inbox = EpochBuffer(epoch, cycle=SlotCycle() if self.in_order else None, decode=list)
        self.delivered = {}

    def hear(self, parcel):
        """Take what came next from the worker; what it answers."""
        skipped, header = parcel.skipped, parcel.header
        if header.epoch != self.inbox.number:
            return
        if skipped is not None:
            self.inbox.skip(skipped.task, skipped.lease, skipped.upto)
        elements = [(header.task, header.index + at) for at in range(header.count)]
        self.inbox.accept(
            header.task, header.index, header.count, elements, 0, "w", lease=header.lease, last=header.last
        )
        upto, complete = self.inbox.holds(header.task)
        self.acks.append((header.epoch, header.task, upto, complete))
        while (arrival := self.inbox.take()) is not None:
            for task, number in arrival.decoded():
                self.delivered.setdefault(task, []).append(number)


class World:
    """One slot of one worker: runs one after the other, and members who come, go, stop and break."""

    def __init__(self, in_order, window):
        self.buffer = WindowBuffer(LIMIT, window=window, in_order=in_order)
        self.in_order, self.window = in_order, LIMIT if window is None else window
        self.members = {}
        self.leases = []  # (epoch, task), by lease
        self.ends = {}
        self.run: TaskKey | None = None
        self.index = 0
        self.produced = []  # (key, end of a message), oldest first
        self.came = 0

    def step(self, action, who, size):
        member = self.members.get(who)
        if action == "run" and self.run is None:
            key = divmod(len(self.leases), TASKS)
            if who % 2:
                self.tell(key)
            self.leases.append(key)
            self.run, self.index = key, 0
            self.buffer.begin(key, len(self.leases) - 1, 0)
            self.tell(key)
        elif action == "put" and self.run is not None:
            self.put(size, 1 + who)
        elif action == "finish" and self.run is not None:
            self.finish()
        elif action == "epoch":
            for each in ["run", "put", "finish", "run", "put", "put", "finish", "run", "finish"]:
                self.step(each, who, size)
        elif action == "join" and member is None:
            self.came += 1
            self.members[who] = member = Member(who, self.in_order)
            member.begin(max((each.inbox.number for each in self.members.values()), default=0))
            self.buffer.join(who, member.inbox.number if size % 2 else 0)
            self.connect(member)
        elif member is None:
            return
        elif action == "leave":
            del self.members[who]
            self.buffer.leave(who)
        elif action == "break":
            self.connect(member)
        elif action == "credit":
            self.outbox(member).credit.grant(size)
        elif action == "arrive" and member.sent:
            member.hear(member.sent.popleft())
        elif action == "ack" and member.acks:
            epoch, task, upto, complete = member.acks.popleft()
            self.buffer.received(self.outbox(member), (epoch, task), upto, complete=complete)
            member.acknowledged[epoch, task] = upto
        elif action == "read":
            self.step("credit", who, 1000)
            while member.sent or member.acks:
                self.step("arrive", who, 0)
                self.step("ack", who, 0)
        elif action == "next":
            self.next(member)
        elif action == "replace":
            member.acknowledged.clear()
            member.begin(member.inbox.number)
            self.connect(member)
        self.send()

    def outbox(self, member):
        return self.buffer.outboxes[member.number]

    def tell(self, key):
        """The dispatcher says where a task runs, before the worker knows of it perhaps."""
        lease = key[0] * TASKS + key[1]
        for member in self.members.values():
            if member.inbox.number == key[0]:
                self.ask(member, key[1], lease)

    def connect(self, member):
        member.sent.clear()
        member.acks.clear()
        self.outbox(member).attach(object())
        self.begin(member)

    def begin(self, member):
        for lease, (epoch, task) in enumerate(self.leases):
            if epoch == member.inbox.number:
                self.ask(member, task, lease)

    def ask(self, member, task, lease):
        epoch, start = member.inbox.number, member.inbox.assign(task, lease, "w")
        if member.inbox.wanted(task):
            self.buffer.read(self.outbox(member), (epoch, task), lease, start)
            member.asked, member.acknowledged[epoch, task] = epoch, start

    def next(self, member):
        """Begin the next epoch, once the user came to the end of this one."""
        epoch = member.inbox.number
        if all(member.inbox.holds(task)[1] for task in range(TASKS)):
            self.check(member)
            member.begin(epoch + 1)
            self.begin(member)

    def put(self, size, count):
        assert self.run is not None
        epoch, task = self.run
        if not (self.buffer.spared(self.run) or self.buffer.room(epoch, size)):
            return
        before = list(self.kept())
        free = max((self.leading(member, before) for member in self.members.values()), default=0)
        if self.buffer.put(self.run, epoch * TASKS + task, message(self.index, count, size)):
            self.produced.append((self.run, self.index + count))
        self.index += count
        after = self.kept()
        assert all(each in after for each in before[free:]), "the furthest reader loses nothing"

    def kept(self):
        tasks = self.buffer.tasks
        held = {(key, each.index + each.count): each.size for key in tasks for each in tasks[key].messages}
        return {each: held[each] for each in self.produced if each in held}

    def leading(self, member, kept):
        """Number of the oldest messages of which the worker knows that a member needs none."""
        needed = (
            number
            for number, (key, end) in enumerate(kept)
            if key[0] >= member.asked and member.acknowledged.get(key, 0) < end
        )
        return next(needed, len(kept))

    def finish(self):
        assert self.run is not None
        epoch, task = self.run
        if self.buffer.has(self.run, epoch * TASKS + task):
            self.buffer.finish(self.run, epoch * TASKS + task, self.index, 0)
        self.ends[self.run], self.run = self.index, None

    def send(self):
        for member in self.members.values():
            outbox = self.outbox(member)
            while (parcel := outbox.credit.next(outbox)) is not None:
                if not isinstance(parcel, Short):
                    member.sent.append(parcel)
        self.buffer.validate()
        assert self.buffer.bytes <= LIMIT + 25, "no more than there is room for, and one message"
        kept = self.kept()
        free = max((self.leading(member, kept) for member in self.members.values()), default=0)
        assert not free or self.buffer.bytes <= LIMIT
        assert sum(list(kept.values())[:free]) <= self.window, "what the furthest has is kept for others in the window"

    def check(self, member):
        """What a member was given of its epoch: each output once and in order, and all the others were said to miss."""
        inbox, missed = member.inbox, 0
        for task in range(TASKS):
            numbers = member.delivered.get(task, [])
            assert numbers == sorted(set(numbers))
            held, complete = inbox.holds(task)
            missed += held - len(numbers)
            assert not complete or held == self.ends[inbox.number, task]
        assert missed == inbox.missed

    def drain(self):
        """Everybody reads on to the end of the epoch that the last one has come to."""
        last = max((member.inbox.number for member in self.members.values()), default=0)
        for _ in range(60):
            for who, member in self.members.items():
                self.step("read", who, 0)
                if member.inbox.number < last:
                    self.step("next", who, 0)
            if len(self.leases) < (last + 1) * TASKS or self.run is not None:
                for action in "run", "put", "finish":
                    self.step(action, 0, 10)
        for member in self.members.values():
            self.check(member)
            assert member.inbox.number == last
            assert all(member.inbox.holds(task)[1] for task in range(TASKS))


PRODUCING = ["run", "put", "put", "finish", "epoch"]
READING = ["join", "leave", "break", "replace", "credit", "arrive", "arrive", "ack", "ack", "read", "read", "next"]
STEPS = st.tuples(st.sampled_from(PRODUCING + READING), st.integers(0, 2), st.sampled_from([1, 5, 10, 25]))


@given(st.lists(STEPS, min_size=40, max_size=100), st.booleans(), st.sampled_from([None, 0, 20]))
def test_members_of_any_speed_get_each_output_once_or_are_told_that_they_missed_it(steps, in_order, window):
    world = World(in_order, window)
    for step in [("join", 0, 0), *steps]:
        world.step(*step)
    world.drain()


def test_who_is_alone_from_the_beginning_misses_nothing():
    world = World(in_order=False, window=None)
    world.step("join", 0, 0)
    for _ in range(60):
        for action in "run", "put", "credit", "arrive", "ack":
            world.step(action, 0, 10)
    world.drain()
    assert world.members[0].inbox.missed == 0
