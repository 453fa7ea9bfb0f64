"""A service in memory: the dispatcher's mind, and workers and consumers as plain functions of its actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.decide import decide
from millrace.control.journal.epoch_events import EpochReweighted
from millrace.control.journal.job_events import TableRecorded
from millrace.control.journal.replay import AnyEvent, apply
from millrace.control.journal.snapshot import dump, fill_in, load
from millrace.control.journal.task_events import TaskDone
from millrace.control.state.observed import Observed
from millrace.control.state.settings import Settings
from millrace.control.state.state import State
from millrace.graph.nodes import Range, Repeat, SampleFromDatasets
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import pack, unpack
from millrace.planning.cache_point import CachePoint
from millrace.planning.epoch_shape import WeightChange
from millrace.planning.plan import Piece, Task
from millrace.planning.split_table import positions_table
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import BlocksKnown, CacheUsed, KeptBlock, MeasureStore
from millrace.protocol.caller import ADMINISTRATOR
from millrace.protocol.group_messages import DropLeftovers, TasksGone
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.reports import NodeMeasure
from millrace.protocol.weight_messages import SetWeights, WeightsSet

GIVEN = NodeMeasure(0, "range(1)", 1, 8, 0.0)

STRUCTURE = pack(Graph(Range(start=0, stop=100)))[0]
MIXED_STRUCTURE = pack(
    Graph(
        SampleFromDatasets(
            inputs=(Repeat(inputs=(Range(start=0, stop=100),)), Repeat(inputs=(Range(start=100, stop=200),))),
            weights=(1.0, 1.0),
        )
    )
)[0]
"""Of a mixture without end, of which a plan may have some elements."""
OTHER_STRUCTURE = pack(Graph(Range(start=0, stop=7)))[0]


class FakePlan:
    """``mains`` tasks (None: without end); with ``fan_in`` a tail after each so many, and one over those at the end.

    With a ``cycle`` so many tasks are repeated, of which all but ``gives`` give nothing.
    """

    def __init__(self, mains: int | None, fan_in: int = 0, *, cycle: int = 0, gives: int = -1) -> None:
        self.warnings: tuple[str, ...] = ()
        self.exact = not fan_in
        self.equal = False
        self.left_out = 0
        self.chunks = 0
        self.cycle = cycle
        self.gives = gives
        self.mains = mains
        self.fan_in = fan_in
        self.tasks: list[Task] = []
        self.length: int | None = None
        if mains is not None:
            self.tasks = _tasks(mains, fan_in)
            self.length = len(self.tasks)

    def task(self, index: int) -> Task:
        return self.tasks[index] if self.mains is not None else Task(index, index, index + 1)

    def main(self, number: int) -> int:
        return [task.index for task in self.tasks if not task.inputs][number]

    def before(self, index: int) -> int:
        return index

    def between(self, start: int, stop: int) -> Iterator[Piece]:
        yield Piece.of(start, stop)

    def undivided(self) -> list[Piece]:
        return []

    def put_out(self, task: Task, left: list[str], *, flush: bool) -> tuple[list[str], list[str]]:
        """(outputs, what is left to the tail): three elements of a task, or those ``left`` to a tail, two an output."""
        elements = left if task.inputs else [f"{task.start}{letter}" for letter in "abc"]
        outputs = ["+".join(elements[at : at + 2]) for at in range(0, len(elements), 2)]
        if task.parent < 0 or flush or not len(elements) % 2:
            return outputs, []
        return outputs[:-1], elements[-1:]


def _tasks(mains: int, fan_in: int) -> list[Task]:
    if not fan_in or mains < 2:
        return [Task(i, i, i + 1) for i in range(mains)]
    tasks: list[dict[str, Any]] = []
    tails = []
    for first in range(0, mains, fan_in):
        inputs = []
        for main in range(first, min(first + fan_in, mains)):
            inputs.append(len(tasks))
            tasks.append({"start": main, "stop": main + 1})
        tails.append(len(tasks))
        for task in inputs:
            tasks[task]["parent"] = tails[-1]
        tasks.append({"start": 0, "stop": 0, "inputs": tuple(inputs)})
    if len(tails) > 1:
        for task in tails:
            tasks[task]["parent"] = len(tasks)
        tasks.append({"start": 0, "stop": 0, "inputs": tuple(tails)})
    return [Task(i, **fields) for i, fields in enumerate(tasks)]


class FakeWorker:
    def __init__(self, name: str, **fields: Any) -> None:
        self.name = name
        self.fields = fields
        self.leases: dict[int, msg.LeaseTask] = {}
        self.finished: dict[tuple[str, int, int], int] = {}
        self.leftovers: set[tuple[str, int, int]] = set()
        self.nothing: set[tuple[str, int, int]] = set()
        self.outputs: dict[tuple[str, int, int], list[str]] = {}
        self.left: dict[tuple[str, int, int], list[str]] = {}
        """What the tasks that it has finished gave and left over, be it forgotten by now."""
        self.open: set[str] = set()
        self.unread: dict[tuple[str, int, int], int] = {}
        self.stale: list[int] = []
        self.spared: list[msg.TaskRef] = []
        self.planning: deque[Any] = deque()
        self.stopped = False
        self.connected = True
        self.known: dict[str, set[str]] = {}
        self.measuring = False

    def take(self, message: Any) -> None:
        if isinstance(message, BlocksKnown):
            known = set() if message.whole else self.known.get(message.place, set())
            self.known[message.place] = (known | set(message.names)) - set(message.gone)
        elif isinstance(message, MeasureStore):
            self.measuring = True
        elif isinstance(message, msg.OpenJob):
            self.open.add(message.job)
        elif isinstance(message, msg.LeaseTask):
            assert message.ref.job in self.open
            self.leases[message.lease] = message
        elif isinstance(message, msg.RevokeTask):
            self.leases.pop(message.lease, None)
        elif isinstance(message, msg.ForgetTasks):
            for ref in message.refs:
                self.forget(ref)
        elif isinstance(message, DropLeftovers):
            self.leftovers -= {(ref.job, ref.epoch, ref.task) for ref in message.refs}
        elif isinstance(message, msg.OutputsReceived):
            self.spared += message.refs
            for ref in message.refs:
                self.unread.pop((ref.job, ref.epoch, ref.task), None)
            for number, task in self.leases.items():
                if task.ref in message.refs:  # it runs on for what it leaves over, and fills no lane
                    self.leases[number] = msgspec.structs.replace(task, received=-1)
        elif isinstance(message, msg.CloseJob):
            self.open.discard(message.job)
            self.leases = {k: v for k, v in self.leases.items() if v.ref.job != message.job}
            self.finished = {k: v for k, v in self.finished.items() if k[0] != message.job}
            self.unread = {k: v for k, v in self.unread.items() if k[0] != message.job}
            self.leftovers = {k for k in self.leftovers if k[0] != message.job}
        elif isinstance(message, msg.ListSources | msg.ChooseSharding):
            self.planning.append(message)
        elif isinstance(message, msg.StopWorker):
            self.stopped = True
        elif isinstance(message, msg.WorkerWelcome):
            self.welcome, self.stale = message, message.stale
            for lease in message.stale:
                self.leases.pop(lease, None)
            for key, lease in list(self.finished.items()):
                if lease in message.stale:
                    self.forget(msg.TaskRef(*key))

    def forget(self, ref: msg.TaskRef) -> None:
        key = (ref.job, ref.epoch, ref.task)
        self.finished.pop(key, None)
        self.leftovers.discard(key)
        self.unread.pop(key, None)
        self.leases = {k: v for k, v in self.leases.items() if v.ref != ref}

    def can_run(self, lease: int, room: int) -> bool:
        """It is the first of its lane, and the lane's buffer has room: what blocks a real worker."""
        task = self.leases[lease]
        lane = [k for k, v in self.leases.items() if (v.ref.job, v.consumer) == (task.ref.job, task.consumer)]
        full = sum(1 for key, c in self.unread.items() if (key[0], c) == (task.ref.job, task.consumer)) >= room
        return task.received < 0 or (lane[0] == lease and not full)


class FakeConsumer:
    def __init__(self, client: str) -> None:
        self.client = client
        self.joined: Any = None
        self.epoch: Any = None
        self.reweighted: tuple[WeightChange, ...] = ()
        """What it knows of weights that were set in the epoch."""
        self.answers: list[WeightsSet] = []
        self.resumed = -1
        self.reads: dict[int, msg.TaskRead] = {}
        self.complete: list[int] = []
        self.got: list[str] = []
        """Outputs that it has of the epoch."""
        self.alone: set[int] = set()
        self.ends: list[int] | None = None
        self.gone: dict[int, int] = {}
        self.unread = ""
        self.failure: Any = None
        self.notices: list[str] = []
        self.connected = True
        self.spec: Any = None
        self.host = ""
        self.wanted = -1
        self.closed = False

    def take(self, message: Any) -> None:
        if isinstance(message, msg.JobJoined):
            self.joined = message
            if not message.waits:
                self.resumed = message.epoch + 1
        elif isinstance(message, msg.Resumed):
            self.resumed = message.epoch
        elif isinstance(message, msg.EpochBegun):
            if self.epoch is None or message.epoch != self.epoch.epoch:
                self.reads, self.complete, self.got, self.alone, self.ends = {}, [], [], set(), None
                self.gone = {}
            self.epoch, self.reweighted = message, message.reweighted
        elif isinstance(message, WeightsSet):
            if self.epoch is not None and message.epoch == self.epoch.epoch and not message.refused:
                self.reweighted = message.reweighted
            self.answers += [message] if message.number >= 0 else []
        elif isinstance(message, msg.ReadTasks):
            assert self.epoch is not None
            assert message.epoch == self.epoch.epoch
            self.alone.update(message.alone)
            for read in message.reads:
                self.reads[read.task] = read
        elif isinstance(message, TasksGone):
            self.gone.update({task: n for task, n in message.outputs.items() if task not in self.complete})
        elif isinstance(message, msg.EpochEnds):
            if self.epoch is not None:  # else it is in the place of one that read that epoch
                assert message.epoch == self.epoch.epoch
                self.ends, self.unread = message.tasks, message.unread
        elif isinstance(message, msg.StepsReady):
            self.unread = message.unread if message.last else self.unread
        elif isinstance(message, msg.JobFailed):
            self.failure = message.failure
        elif isinstance(message, msg.Notice):
            self.notices.append(message.text)

    @property
    def done(self) -> bool:
        return self.ends is not None and set(self.ends) <= {*self.complete, *self.gone}


def in_order(peer: FakeConsumer, task: int, service: Service) -> bool:
    """A deterministic consumer reads the lowest task of a slot that it has heard of: always the plan's next there."""
    assert peer.joined is not None
    job = service.state.jobs[peer.joined.job]
    if not job.spec.deterministic:
        return True
    step = job.stride
    heard = [each for each in {*peer.reads, *peer.complete} if each % step == task % step]
    if task != min(set(heard) - set(peer.complete)):
        return False
    epoch = job.epochs[peer.epoch.epoch]
    mine = range(min(heard), task + 1, step)  # what is before went with who had its place
    left = [each for each in mine if each not in peer.complete and not epoch.over(each)]
    if task != left[0]:  # so may tails have that were dealt before
        key = peer.joined.job, peer.epoch.epoch
        ended = [event for event in service.events if isinstance(event, TaskDone) and event.dropped]
        gone = {event.task for event in ended if (event.job, event.epoch) == key}
        assert task == next(each for each in left if each not in gone)
    return True


class Service:
    """Everything at once, under virtual time. ``plan`` is what every job gets; ``checked``: state is validated."""

    def __init__(self, plan: FakePlan | None = None, *, checked: bool = True, **settings: Any) -> None:
        self.checked = checked
        self.plan = plan or FakePlan(8)
        self.settings = Settings(version="1", python="3.11", **settings)
        self.state = self.fresh_state()
        self.observed = Observed()
        self.now = 0.0
        self.events: list[Any] = []
        self.boundaries: list[EpochReweighted] = []
        self.workers: dict[str, FakeWorker] = {}
        self.consumers: dict[str, FakeConsumer] = {}
        self.refused: dict[str, msg.Failure] = {}
        self.last: list[Any] = []
        self.held: set[tuple[str, str]] = set()
        """(job, digest) of the blobs of split tables that jobs need."""
        self.lost_leftovers = 0
        self.saved = (dump(self.state), 0)
        self.deaf = False
        self.prints = ["range()|100|0|ab"]
        self.points: list[CachePoint] = []
        """Of all jobs whose sources are listed from now on."""
        self.store: dict[str, dict[str, KeptBlock]] = {}
        """The service's blocks, by place and name."""
        self.block_bytes = 100
        self.silent = 0
        """So many runs do not get to say what they did with their cache."""
        self.asked_of_store: deque[Any] = deque()
        self.answers_of_store: deque[Any] = deque()

    def fresh_state(self) -> State:
        def planner(graph: Any, tables: Any, *, tasks: Any, seed: Any, ranks: Any, pieces: Any, chunks: Any) -> Any:
            return self.plan

        return State(self.settings, planner=planner, checked=self.checked)

    def say(self, item: Any) -> list[Any]:
        if self.deaf:
            return []
        events, actions = decide(self.state, self.observed, item, self.now)
        self.carry_out(events, actions)
        self.check_ends()
        return actions

    def check_ends(self) -> None:
        """Who was told that it knows all tasks of its epoch does: it would end it before what it never heard of."""
        for client, peer in self.consumers.items():
            job = None if peer.joined is None else self.state.jobs.get(peer.joined.job)
            place = None if job is None else job.consumers.get(peer.joined.consumer)
            if job is None or place is None or peer.ends is None or not peer.connected or place.client != client:
                continue
            epoch = job.epochs.get(place.epoch)
            if epoch is not None and peer.epoch.epoch == place.epoch and job.failure is None:
                unknown = {*epoch.shares.get(peer.joined.consumer, ())} - {*peer.ends}
                assert not unknown, (client, unknown)

    def check_weights(self, peer: FakeConsumer, message: Any) -> None:
        """Who hears of a task, which it may read from then on, knows the weights that this was leased with."""
        if isinstance(message, msg.ReadTasks) and self.boundaries:
            job, last = peer.joined.job, max(read.task for read in message.reads)
            mine = [each for each in self.boundaries if (each.job, each.epoch) == (job, message.epoch)]
            known = sum(1 + each.replaced for each in peer.reweighted)
            assert known >= sum(each.task <= last for each in mine), (peer.client, message)

    def carry_out(self, events: list[Any], actions: list[Any]) -> None:
        """Let peers hear what was decided."""
        self.events += events
        self.boundaries += [event for event in events if isinstance(event, EpochReweighted)]
        self.last = actions
        for action in actions:
            if isinstance(action, act.SendToWorker):
                worker = self.workers.get(action.worker)
                if worker is not None and worker.connected:
                    worker.take(action.message)
            elif isinstance(action, act.SendToClient):
                peer = self.consumers.get(action.client)
                if peer is not None and peer.connected:
                    peer.take(action.message)
                    self.check_weights(peer, action.message)
            elif isinstance(action, act.CloseWorker):
                self.refused[action.worker] = action.failure
            elif isinstance(action, act.DropBlobs):
                self.held -= {blob for blob in self.held if blob[0] == action.job}
            elif isinstance(action, act.ListStore | act.DeleteBlocks):
                self.asked_of_store.append(action)
        self.held.update((event.job, event.digest) for event in events if isinstance(event, TableRecorded))

    def work_of_store(self) -> None:
        """What was asked of the store is done; the answers are under way."""
        while self.asked_of_store:
            asked = self.asked_of_store.popleft()
            if isinstance(asked, act.DeleteBlocks):
                assert "@" not in asked.place
                for name in asked.names:
                    self.store.get(asked.place, {}).pop(name, None)
                self.answers_of_store.append(inp.BlocksGone(asked.place, asked.names))
                continue
            blocks = {
                place: [
                    msgspec.structs.replace(block, items=0)
                    if asked.known.get(place, {}).get(block.name) == block.bytes
                    else block
                    for block in there.values()
                ]
                for place, there in self.store.items()
                if "@" not in place
            }
            self.answers_of_store.append(inp.StoreListed(blocks, asked.leases))

    def answer_for_store(self) -> None:
        """What was asked of the store is done, and all know it."""
        self.work_of_store()
        while self.answers_of_store:
            self.say(self.answers_of_store.popleft())
            self.work_of_store()

    # -- workers

    def add_worker(self, name: str, **fields: Any) -> FakeWorker:
        self.workers[name] = FakeWorker(name, **fields)
        self.hello(name)
        return self.workers[name]

    def hello(self, name: str, **fields: Any) -> None:
        worker = self.workers[name]
        worker.connected = True
        held = [msg.HeldTask(lease.ref, lease.lease, lease.consumer) for lease in worker.leases.values()]
        held += [
            msg.HeldTask(msg.TaskRef(*key), lease, 0, True, 1, key in worker.leftovers, key in worker.nothing)
            for key, lease in worker.finished.items()
        ]
        hello = msg.WorkerHello(
            name, f"{name}:1", **{"version": "1", "python": "3.11", "held": held, **worker.fields, **fields}
        )
        self.say(inp.WorkerSaid(name, hello))

    def plan_tasks(self, worker: FakeWorker) -> None:
        """Answer what the dispatcher has asked for."""
        while worker.planning:
            asked = worker.planning.popleft()
            if isinstance(asked, msg.ListSources):
                job = self.state.jobs.get(asked.job)  # None: it is over by now
                graph = unpack(STRUCTURE if job is None else job.spec.structure)
                tables = {number: positions_table(100).summary() for number, _ in graph.sources()}
                listed = msg.SourcesListed(asked.job, tables, self.prints, self.points, "tables")
                self.say(inp.WorkerSaid(worker.name, listed))
            else:
                owners = [task % len(asked.workers) for task in range(asked.tasks)]
                self.say(inp.WorkerSaid(worker.name, msg.ShardingChosen(asked.job, asked.epoch, owners)))

    def finish(self, worker: FakeWorker, lease: int, *, leftovers: bool | None = None) -> None:
        task = worker.leases.pop(lease)
        key = (task.ref.job, task.ref.epoch, task.ref.task)
        planned = self.plan.task(task.ref.task if task.run < 0 else task.run)
        missing: list[int] = []
        taken: list[str] = []
        for holder_task, address in task.holders:
            holder = self.workers.get(address.split(":")[0])
            below = (task.ref.job, task.ref.epoch, holder_task)
            if holder is None or below not in holder.leftovers:
                missing.append(holder_task)
            else:
                taken += holder.left[below]
        if missing:
            self.lost_leftovers += len(missing)
            self.say(inp.WorkerSaid(worker.name, msg.LeftoversLost(task.ref, lease, missing)))
            return
        keeps = planned.parent >= 0 and not task.flush if leftovers is None else leftovers
        worker.finished[key] = lease
        worker.outputs[key], worker.left[key] = self.plan.put_out(planned, taken, flush=task.flush)
        if task.received >= 0:
            worker.unread[key] = task.consumer
        if keeps:
            worker.leftovers.add(key)
        self.keep(worker, task)
        nothing = self.plan.cycle > 0 and planned.start % self.plan.cycle != self.plan.gives
        worker.nothing |= {key} if nothing else set()
        told = msg.TaskFinished(task.ref, lease, 1, leftovers=keeps, nothing=nothing)
        self.say(inp.WorkerSaid(worker.name, told))

    def end_earlier(self, job: str) -> None:
        """Finish what workers run of a job since before its cache came into its mode."""
        first = self.observed.regimes[job].lease if job in self.observed.regimes else 0
        for worker in self.workers.values():
            for lease, task in list(worker.leases.items()):
                if task.ref.job == job and lease < first:
                    self.finish(worker, lease)

    def fail(self, worker: FakeWorker, lease: int, failure: msg.Failure) -> None:
        """A run fails, when its consumer has what came before that."""
        task = worker.leases.pop(lease)
        self.say(inp.WorkerSaid(worker.name, msg.TaskFailed(task.ref, lease, failure)))

    def keep(self, worker: FakeWorker, task: msg.LeaseTask) -> None:
        """What a run does with its cache: one item, named by the task, is found or kept."""
        if task.cache is None:
            return
        use = task.cache
        name = f"block{task.ref.task if task.run < 0 else task.run}"
        lost: dict[str, list[str]] = {use.place: []}
        hit = 0
        for place in (use.place, *use.also):
            known = worker.known.setdefault(place, set())
            if name in known and name not in self.store.setdefault(place, {}):
                known.remove(name)
                lost[place] = [name]
            hit = hit or int(name in known)
        new = [] if hit or use.room < self.block_bytes else [KeptBlock(name, self.block_bytes, 1)]
        wanted = self.block_bytes if not hit and 0 < use.room < self.block_bytes else 0
        self.store.setdefault(use.place, {}).update((block.name, block) for block in new)
        worker.known[use.place].update(block.name for block in new)
        mine = lost.pop(use.place)
        used = CacheUsed(task.ref.job, task.lease, use.place, new, mine, hits=hit, misses=1 - hit, wanted=wanted)
        if self.silent:
            self.silent -= 1
            return
        self.say(inp.WorkerSaid(worker.name, used))
        for place, names in lost.items():
            self.say(inp.WorkerSaid(worker.name, CacheUsed(task.ref.job, task.lease, place, lost=names)))

    def kill(self, name: str) -> None:
        """Its process ends, and the cluster says so."""
        del self.workers[name]
        self.say(inp.WorkerEnded(name, "was killed"))

    def report(self, name: str, **fields: Any) -> None:
        if fields.get("busy_s"):  # who has computed has given something
            fields.setdefault("nodes", [GIVEN])
        self.say(inp.WorkerSaid(name, msg.WorkerReport(job=self.state.workers[name].job, **fields)))

    # -- consumers

    def join(
        self, client: str, job: str = "a", *, consumer: int | None = None, begin: bool = True, **fields: Any
    ) -> FakeConsumer:
        known = ("resume", "generation", "states", "version", "host", "pid", "age_s", "lingers", "told")
        extra = {k: fields.pop(k) for k in known if k in fields}
        caller = fields.pop("caller", ADMINISTRATOR)
        spec = JobSpec(job, **{"structure": STRUCTURE, "bundle": "b", "python": "3.11", **fields})
        peer = self.consumers.setdefault(client, FakeConsumer(client))
        if peer.joined is not None:
            extra.setdefault("generation", peer.joined.generation)
        peer.spec, peer.host = spec, extra.get("host", "")
        self.say(inp.JoinRequested(msg.JoinJob(spec, client, consumer, **extra), f"job-of-{client}", 11, caller))
        if begin and peer.failure is None:
            self.begin(peer)
        return peer

    def begin(self, peer: FakeConsumer, epoch: int | None = None) -> None:
        peer.wanted = peer.wanted + 1 if epoch is None else epoch
        if peer.connected:
            self.say(inp.ConsumerSaid(peer.client, msg.BeginEpoch(epoch)))

    def rejoin(self, peer: FakeConsumer) -> None:
        """Its session broke; it says anew all that matters."""
        peer.connected = True
        place = peer.joined
        known = {"host": peer.host, "resume": True, "generation": place.generation}
        join = msg.JoinJob(peer.spec, peer.client, place.consumer, **known)
        self.say(inp.JoinRequested(join, f"job-of-{peer.client}", 11))
        if peer.epoch is not None and peer.failure is None:
            everything = [msg.TaskProgress(task, 1, complete=True) for task in peer.complete]
            self.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(peer.epoch.epoch, everything)))
        self.say(inp.ConsumerSaid(peer.client, msg.BeginEpoch(peer.wanted)))

    def set_weights(self, peer: FakeConsumer, *weights: float, number: int, epoch: int | None = None) -> None:
        """Its training sets weights in the epoch that it reads."""
        wanted = SetWeights(peer.epoch.epoch if epoch is None else epoch, weights, number)
        if peer.connected:
            self.say(inp.ConsumerSaid(peer.client, wanted))

    def read(self, peer: FakeConsumer, task: int) -> None:
        """Read a task to its end and say so."""
        assert peer.epoch is not None
        assert task not in peer.complete
        peer.complete.append(task)
        worker = self.workers.get(peer.reads[task].worker)
        if worker is not None and peer.joined is not None:
            key = (peer.joined.job, peer.epoch.epoch, task)
            worker.unread.pop(key, None)
            peer.got += worker.outputs[key][peer.reads[task].start :]
        progress = msg.TaskProgress(task, 1, complete=True)
        if peer.connected:
            self.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(peer.epoch.epoch, [progress])))

    def read_part(self, peer: FakeConsumer, task: int, count: int) -> tuple[int, int]:
        """Read ``count`` more outputs of a task, or what there is, and say so; (task, outputs of it that were read)."""
        assert peer.epoch is not None
        start, key = peer.reads[task].start, (peer.joined.job, peer.epoch.epoch, task)
        outputs = self.workers[peer.reads[task].worker].outputs[key][start : start + count]
        peer.got += outputs
        progress = msg.TaskProgress(task, start + len(outputs))
        self.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(peer.epoch.epoch, [progress])))
        return task, start + len(outputs)

    def readable(self, peer: FakeConsumer) -> list[int]:
        """Tasks that lie finished where the consumer was told."""
        return [task for task in sorted(peer.reads) if self._lies_ready(peer, task)]

    def _lies_ready(self, peer: FakeConsumer, task: int) -> bool:
        if peer.epoch is None or peer.joined is None or peer.failure is not None or task in peer.complete:
            return False
        worker, key = self.workers.get(peer.reads[task].worker), (peer.joined.job, peer.epoch.epoch, task)
        return worker is not None and worker.finished.get(key) == peer.reads[task].lease

    def tick(self, seconds: float = 0.0) -> None:
        """Time passes; everybody connected gives a sign of life."""
        self.now += seconds
        for name, worker in list(self.workers.items()):
            if worker.connected and name in self.state.workers:
                self.report(name)
        self.say(inp.Tick())

    # -- all together

    def work(self, *, read: bool = True, room: int = 1000) -> bool:
        """One step of everybody; whether anything moved."""
        moved = False
        for worker in list(self.workers.values()):
            if worker.planning:
                self.plan_tasks(worker)
                moved = True
            for lease in list(worker.leases):
                if lease in worker.leases and worker.connected and worker.can_run(lease, room):
                    self.finish(worker, lease)
                    moved = True
        if read:
            for peer in self.consumers.values():
                for task in peer.complete:  # run again, as the dispatcher did not know: it has all of it
                    holder = self.workers.get(peer.reads[task].worker)
                    if holder is not None and peer.epoch is not None:
                        holder.unread.pop((peer.joined.job, peer.epoch.epoch, task), None)
                for task in self.readable(peer):
                    if self._lies_ready(peer, task) and in_order(peer, task, self):  # reading one may move another
                        self.read(peer, task)
                        moved = True
        return moved

    def run(self, limit: int = 500, room: int = 1000) -> None:
        """Until nothing moves any more."""
        for _ in range(limit):
            if not self.work(room=room):
                return
        raise AssertionError("it goes on for ever")

    def replayed(self) -> State:
        """A state made of the events alone, by way of their encoding."""
        return self._applied(self.fresh_state(), self.events)

    def _applied(self, state: State, events: list[Any]) -> State:
        for event in msgspec.msgpack.decode(msgspec.msgpack.encode(events), type=list[AnyEvent]):
            apply(state, event)
        return state

    # -- the journal

    def save(self) -> None:
        """Write a snapshot."""
        self.saved = (dump(self.state), len(self.events))

    def restored(self) -> State:
        """A state made of the last snapshot and the events since."""
        state = self.fresh_state()
        snapshot, base = self.saved
        load(state, snapshot)
        self._applied(state, self.events[base:])
        for job in state.jobs.values():
            fill_in(job, {digest: b"" for _, digest in self.held}.__getitem__)
        return state

    def restart(self, address: str = "here:1", drawn: str = "") -> None:
        """The dispatcher died, and another goes on with its journal; nobody has found that one yet."""
        self.deaf = False
        self.asked_of_store.clear()
        self.answers_of_store.clear()
        self.state = self.restored()
        self.observed = Observed()
        peers: list[FakeWorker | FakeConsumer] = [*self.workers.values(), *self.consumers.values()]
        for peer in peers:
            peer.connected = False
        self.say(inp.Started(address, drawn))
