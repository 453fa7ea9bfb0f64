"""A worker's desk and a consumer's core and connections, over real connections, with the test as their dispatcher."""

import contextlib
import itertools
import queue
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.integration.service.service_gate import Gate, Keeper

import millrace as mr
from millrace.client import consumer_io as io
from millrace.client.consumer_core import ConsumerCore
from millrace.client.shared_core import SharedCore
from millrace.dispatcher.job_keys import JobKeys
from millrace.errors import ElementTooLargeError
from millrace.functions.bundles import pack
from millrace.graph import serialize
from millrace.protocol import data_messages
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import (
    CloseJob,
    EpochBegun,
    EpochEnds,
    ForgetTasks,
    JobJoined,
    JoinJob,
    LeaseTask,
    LeftoversLost,
    ListSources,
    OpenJob,
    OutputsReceived,
    ReadTasks,
    RevokeTask,
    SourcesListed,
    TaskFailed,
    TaskFinished,
    TaskRead,
    TaskRef,
    TaskReturned,
    WorkerHello,
    WorkerReport,
)
from millrace.wire.control.blob_transfer import digest_of
from millrace.wire.data import compression as compressing
from millrace.wire.data.data_connection import DataServer, open_data_connection
from millrace.wire.data.data_keys import A_WORKER, consumer_credential, consumer_key, job_key, worker_credential
from millrace.wire.error_codec import error_of
from millrace.worker import delivery_server, task_manager
from millrace.worker.core.worker_inputs import SessionOpened
from millrace.worker.job_pipeline import JobPipeline
from millrace.worker.task_manager import TaskManager

SECRET = bytes(32)
KEYS = JobKeys(SECRET)


class Service:
    """A worker, and what it says."""

    def __init__(self, dataset, *, buffer_bytes=64 << 20, tasks=None, deterministic=False, seed=1):
        structure, slots = serialize.pack(dataset.__pipeline__().graph)
        self.blobs = {"bundle": pack([slot.value for slot in slots], [slot.name for slot in slots])}
        self.spec = JobSpec("job", structure, "bundle", tasks=tasks, deterministic=deterministic)
        self.seed = seed
        self.said = []
        self.changed = threading.Condition()
        self.manager = TaskManager(self.hear, self.blobs.__getitem__, self.put, threads=1, buffer_bytes=buffer_bytes)
        self.server = DataServer("127.0.0.1", self.manager.serve, key_of=self.manager.key_of)
        self.manager.address = self.server.address
        self.lease = 0

    def __enter__(self):
        self.manager.feed(SessionOpened(WorkerHello("w", self.server.address)))
        self.manager.told(KEYS.enclose(OpenJob("job", self.spec, self.seed)))
        self.manager.told(ListSources("job"))
        listed = self.wait(lambda m: isinstance(m, SourcesListed))
        self.manager.told(KEYS.enclose(OpenJob("job", self.spec, self.seed, listed.digest)))
        return self

    def put(self, data):
        self.blobs[digest_of(data)] = data
        return digest_of(data)

    def __exit__(self, *_):
        self.manager.close()
        self.server.close()

    def hear(self, message):
        with self.changed:
            self.said.append(message)
            self.changed.notify_all()

    def report(self):
        self.manager.report()
        return self.wait(lambda message: isinstance(message, WorkerReport))

    def wait(self, wanted, count=1):
        with self.changed:
            assert self.changed.wait_for(lambda: sum(map(wanted, self.said)) >= count, 20), self.said
            return [message for message in self.said if wanted(message)][-1]

    def run(self, task, epoch=0, received=0, holders=()):
        self.lease += 1
        self.manager.told(LeaseTask(TaskRef("job", epoch, task), self.lease, 0, received, list(holders)))
        return TaskRead(task, self.lease, "w", self.server.address)

    def finished(self, task, epoch=0):
        return self.wait(lambda m: isinstance(m, TaskFinished) and m.ref == TaskRef("job", epoch, task))


class Consumer:
    """What consumers have but for their session: this is what the dispatcher says."""

    def __init__(self, buffer_bytes=64 << 20, **options):
        core = ConsumerCore(JoinJob(JobSpec("job", b"", ""), "client", 0), buffer_bytes)
        self.shared = SharedCore(core, self, buffer_bytes=buffer_bytes, **options)
        self.handle(KEYS.enclose(JobJoined("job", 0, 1, 5.0), "client"))

    def handle(self, item):
        self.shared.handle(item)

    def report_soon(self):
        pass

    def warn(self, text):
        pytest.fail(text)

    def epoch_left(self, left):
        pass

    def begin(self, epoch, *, in_order):
        core = self.shared.core
        core.spec = replace(core.spec, deterministic=in_order)
        self.handle(io.EpochWanted(epoch))
        self.handle(EpochBegun(epoch, None))

    def assign(self, epoch, reads):
        self.handle(ReadTasks(epoch, list(reads)))

    def ends(self, epoch, tasks):
        self.handle(EpochEnds(epoch, list(tasks)))

    def close(self):
        self.handle(io.Leave())
        self.shared.close()


@pytest.fixture
def feed():
    opened = []

    def make(**options):
        opened.append(Consumer(**options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def read(consumer, epoch=0, limit=None):
    out: list[Any] = []
    while limit is None or len(out) < limit:
        answer = consumer.shared.take(epoch)
        if isinstance(answer, io.Refuse):
            raise answer.error
        if isinstance(answer, io.Over):
            break
        out.extend(consumer.shared.core.reading.current)
    return out


def all_tasks(service, tasks, epoch=0):
    return [service.run(task, epoch) for task in range(tasks)]


OPENING = data_messages.Open("job", 0, "client")


def credential(opening, secret=SECRET):
    return consumer_credential(consumer_key(job_key(secret, opening.job, opening.generation), opening), opening)


def connected(service, shown):
    return open_data_connection(service.server.address, None, 10.0, credential=shown)


@pytest.mark.parametrize("opening", [replace(OPENING, generation=7), replace(OPENING, job="other")])
def test_a_consumer_of_another_job_is_not_let_in(opening):
    with (
        Service(mr.Dataset.range(10)) as service,
        pytest.raises(mr.ServiceError, match="this worker does not serve job"),
    ):
        connected(service, credential(opening))


@pytest.mark.parametrize(
    "opening", [replace(OPENING, client="stranger"), replace(OPENING, consumer=1), replace(OPENING, consumer=A_WORKER)]
)
def test_a_key_opens_what_it_is_for_and_nothing_else(opening):
    """Whoever has one consumer's key gets no other's elements, and nobody can take a consumer's place without it."""
    with Service(mr.Dataset.range(10)) as service:
        with pytest.raises(mr.ServiceError, match="does not know the consumer that this process is"):
            connected(service, credential(OPENING)._replace(claims=credential(opening).claims))
        with connected(service, credential(OPENING)) as connection:
            connection.send(opening)
            with pytest.raises(mr.ServiceUnreachableError):
                connection.receive(data_messages.TO_READER)
        with connected(service, credential(OPENING)) as connection:
            connection.send(data_messages.FetchLeftovers(TaskRef("job", 0, 0)))
            with pytest.raises(mr.ServiceUnreachableError):
                connection.receive(data_messages.TO_READER)


def test_a_key_of_another_service_and_a_token_open_nothing():
    with Service(mr.Dataset.range(10)) as service:
        with pytest.raises(mr.ServiceError, match="does not know the consumer that this process is"):
            connected(service, credential(OPENING, bytes([1] * 32)))
        with pytest.raises(mr.ProtocolError, match="claims are malformed"):
            open_data_connection(service.server.address)


def test_a_worker_of_the_job_is_given_leftovers_and_no_outputs():
    with Service(mr.Dataset.range(10)) as service:
        shown = worker_credential(job_key(SECRET, "job", 0), "job", 0)
        with connected(service, shown) as connection:
            connection.send(data_messages.FetchLeftovers(TaskRef("job", 0, 0)))
            assert not connection.receive(data_messages.TO_READER)[0].found
            connection.send(data_messages.Read(0, 0, 1))
            with pytest.raises(mr.ServiceUnreachableError):
                connection.receive(data_messages.TO_READER)


def test_all_elements_of_all_tasks_arrive_once(feed):
    dataset = mr.Dataset.range(1000).map(lambda x: x * 2)
    with Service(dataset, tasks=7) as service:
        consumer = feed()
        consumer.begin(0, in_order=False)
        consumer.assign(0, all_tasks(service, 7))
        consumer.ends(0, range(7))
        assert Counter(read(consumer)) == Counter(range(0, 2000, 2))


def test_in_order_reads_task_after_task(feed):
    with Service(mr.Dataset.range(1000), tasks=7, deterministic=True) as service:
        consumer = feed()
        consumer.begin(0, in_order=True)
        reads = [service.run(task) for task in (3, 1, 0, 2, 6, 5, 4)]
        consumer.assign(0, reads)
        consumer.ends(0, range(7))
        assert read(consumer) == list(range(1000))


def test_buffers_much_smaller_than_the_data_are_enough(feed):
    dataset = mr.Dataset.range(300).map(lambda i: np.full(10_000, i, np.int32))
    with Service(dataset, tasks=4, buffer_bytes=100_000) as service:
        consumer = feed(buffer_bytes=90_000)
        consumer.begin(0, in_order=False)
        consumer.assign(0, all_tasks(service, 4))
        consumer.ends(0, range(4))
        assert sorted(int(array[0]) for array in read(consumer)) == list(range(300))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_elements_are_counted_as_what_they_are(feed, compression, monkeypatch):
    """As much memory is needed for them, so as much credit."""
    expanded = []
    restore = compressing.restore

    def counted(code, receive, target):
        expanded.append((code, target.nbytes))
        restore(code, receive, target)

    monkeypatch.setattr(compressing, "restore", counted)
    dataset = mr.Dataset.range(300).map(lambda i: np.full(10_000, i, np.int32))
    with Service(dataset, tasks=4, buffer_bytes=100_000) as service:
        consumer = feed(buffer_bytes=90_000, compression=compression)
        consumer.begin(0, in_order=False)
        consumer.assign(0, all_tasks(service, 4))
        consumer.ends(0, range(4))
        assert sorted(int(array[0]) for array in read(consumer)) == list(range(300))
    assert {code for code, _ in expanded} == {compressing.CODES[compression]}
    assert sum(size for _, size in expanded) > 300 * 40_000
    assert max(size for _, size in expanded) <= 90_000


def test_in_order_does_not_deadlock_when_later_tasks_hold_all_credit(feed):
    dataset = mr.Dataset.range(40).map(lambda i: np.full(10_000, i, np.int32))
    with (
        Service(dataset, tasks=4, buffer_bytes=100_000, deterministic=True) as one,
        Service(dataset, tasks=4, buffer_bytes=100_000, deterministic=True) as two,
    ):
        consumer = feed(buffer_bytes=90_000)
        consumer.begin(0, in_order=True)
        consumer.assign(0, [two.run(task) for task in (1, 2, 3)])
        consumer.assign(0, [one.run(0)])
        consumer.ends(0, range(4))
        got = [int(array[0]) for array in read(consumer)]
        assert sorted(got) == list(range(40))


def test_a_consumer_that_stops_reading_blocks_its_lane_and_can_go_on(feed):
    dataset = mr.Dataset.range(100).map(lambda i: np.full(10_000, i, np.int32))
    with Service(dataset, tasks=1, buffer_bytes=200_000) as service:
        consumer = feed(buffer_bytes=200_000)
        consumer.begin(0, in_order=False)
        consumer.assign(0, [service.run(0)])
        consumer.ends(0, [0])
        first = read(consumer, limit=3)
        assert not any(isinstance(message, TaskFinished) for message in service.said)
        report = service.report()
        assert report.lanes[0].running
        assert report.lanes[0].buffered_bytes <= 200_000
        assert len(first) + len(read(consumer)) == 100


def test_outputs_that_were_received_are_not_sent_again(feed):
    with Service(mr.Dataset.range(100), tasks=1) as service:
        consumer = feed()
        consumer.begin(0, in_order=False)
        consumer.assign(0, [service.run(0, received=90)])
        # As if 90 had been received from another worker.
        with pytest.raises(mr.ProtocolError, match="output 0 is missing"):
            read(consumer)
        assert service.finished(0).outputs == 100


def test_a_task_moves_to_another_worker_in_the_middle(feed):
    dataset = mr.Dataset.range(200).map(lambda i: np.full(10_000, i, np.int32))
    with Service(dataset, tasks=1, buffer_bytes=200_000) as one, Service(dataset, tasks=1) as two:
        consumer = feed(buffer_bytes=400_000)
        consumer.begin(0, in_order=False)
        consumer.assign(0, [one.run(0)])
        consumer.ends(0, [0])
        got = read(consumer, limit=20)
        one.server.close()
        received = consumer.shared.core.inbox.progress()[0].received
        assert 20 <= received < 200
        consumer.assign(0, [two.run(0, received=received - 5)])
        got += read(consumer)
        assert [int(array[0]) for array in got] == list(range(200))


def test_a_connection_that_breaks_is_made_again(feed):
    dataset = mr.Dataset.range(200).map(lambda i: np.full(10_000, i, np.int32))
    with Service(dataset, tasks=1, buffer_bytes=200_000) as service:
        consumer = feed(buffer_bytes=400_000)
        consumer.begin(0, in_order=False)
        consumer.assign(0, [service.run(0)])
        consumer.ends(0, [0])
        got = read(consumer, limit=20)
        for connection in list(consumer.shared._connections._connections.values()):
            connection.close()
        got += read(consumer)
        assert [int(array[0]) for array in got] == list(range(200))


def test_leftovers_go_to_the_tail_from_wherever_they_are(feed):
    dataset = mr.Dataset.range(100).filter(lambda x: x % 3 == 0).batch(8)
    with Service(dataset, tasks=3) as one, Service(dataset, tasks=3) as two:
        consumer = feed()
        consumer.begin(0, in_order=False)
        consumer.assign(0, [one.run(0), one.run(1), two.run(2)])
        left = [
            (task, service.server.address)
            for service, task in ((one, 0), (one, 1), (two, 2))
            if service.finished(task).leftovers
        ]
        assert left
        consumer.assign(0, [two.run(3, holders=left)])
        consumer.ends(0, range(4))
        batches = read(consumer)
        assert sorted(np.concatenate(batches).tolist()) == list(range(0, 100, 3))
        assert sum(len(batch) < 8 for batch in batches) <= 1


def test_a_tail_says_which_leftovers_are_gone():
    dataset = mr.Dataset.range(100).filter(lambda x: x % 3 == 0).batch(8)
    with Service(dataset, tasks=3) as one, Service(dataset, tasks=3) as two:
        for task in range(3):
            one.run(task)
            one.finished(task)
        one.manager.told(ForgetTasks([TaskRef("job", 0, 1)]))
        holders = [(task, one.server.address) for task in range(3)]
        two.run(3, holders=holders)
        assert two.wait(lambda m: isinstance(m, LeftoversLost)).missing == [1]
        one.server.close()
        two.run(3, holders=holders)
        assert two.wait(lambda m: isinstance(m, LeftoversLost), 2).missing == [0, 1, 2]


def test_leftovers_of_a_worker_that_stands_still_are_missing(monkeypatch):
    """Its kernel still answers, and the dispatcher may have given it up long ago."""
    monkeypatch.setattr(delivery_server, "FETCH_TIMEOUT_S", 0.5)
    over = threading.Event()
    dataset = mr.Dataset.range(100).filter(lambda x: x % 3 == 0).batch(8)

    def stand_still(connection):
        connection.receive(data_messages.TO_SERVER)
        over.wait()

    with Service(dataset, tasks=3) as tail:
        key_of = tail.manager.key_of
        frozen = DataServer("127.0.0.1", stand_still, key_of=key_of)
        tail.run(3, holders=[(task, frozen.address) for task in range(3)])
        assert tail.wait(lambda m: isinstance(m, LeftoversLost)).missing == [0, 1, 2]
        over.set()
        frozen.close()


def test_a_blob_is_waited_for_while_the_dispatcher_is_away(monkeypatch):
    monkeypatch.setattr(task_manager, "delays", lambda: itertools.repeat(0.01))
    service, refused = Service(mr.Dataset.range(100), tasks=3), list[str]()

    def fetch(digest):
        if len(refused) < 3:
            refused.append(digest)
            raise mr.ServiceUnreachableError("the dispatcher did not answer FetchBlob within 300 s")
        return service.blobs[digest]

    service.manager._fetch = fetch
    with service:
        service.run(0)
        assert service.finished(0).outputs == 34
    assert len(refused) == 3


def test_only_leftovers_wanted_keeps_no_outputs():
    dataset = mr.Dataset.range(100).filter(lambda x: x % 3 == 0).batch(8)
    with Service(dataset, tasks=3) as service:
        service.run(0, received=-1)
        finished = service.finished(0)
        assert finished.leftovers
        assert finished.outputs > 0
        assert service.report().lanes[0].buffered_bytes == 0


def test_a_run_does_not_wait_for_a_consumer_that_has_its_outputs_from_another_one():
    dataset = mr.Dataset.range(60).filter(lambda x: True).map(lambda i: np.full(10_000, i, np.int32)).batch(4)
    with Service(dataset, tasks=2, buffer_bytes=200_000) as service:
        service.run(0)
        service.run(1)
        service.manager.told(OutputsReceived([TaskRef("job", 0, 0), TaskRef("job", 0, 1)]))
        for task in range(2):
            assert service.finished(task).leftovers


def test_a_lease_that_is_revoked_as_it_finishes_leaves_nothing_behind():
    with Service(mr.Dataset.range(50).filter(lambda x: True).batch(20), tasks=2) as service:
        service.run(0)
        assert service.finished(0).leftovers
        service.manager.told(RevokeTask(TaskRef("job", 0, 0), service.lease))
        service.wait(lambda m: isinstance(m, TaskReturned))
        assert service.manager._core.held() == []


def test_errors_of_user_functions_name_operator_and_element():
    def broken(x):
        return 1 // x  # the first one fails: a worker says so once its consumer has what came before

    with Service(mr.Dataset.range(100).map(broken), tasks=1) as service:
        service.run(0)
        error = error_of(service.wait(lambda m: isinstance(m, TaskFailed)).failure)
        assert isinstance(error, mr.ElementError)
        assert "map(broken)" in error.operator
        assert error.where == "item 0"
        assert "ZeroDivisionError" in error.user_traceback


def test_revoking_returns_the_lease_whether_it_runs_or_not(feed):
    dataset = mr.Dataset.range(100).map(lambda i: np.full(10_000, i, np.int32))
    with Service(dataset, tasks=2, buffer_bytes=100_000) as service:
        running, waiting = service.run(0), service.run(1)
        service.manager.told(RevokeTask(TaskRef("job", 0, 1), waiting.lease))
        assert service.wait(lambda m: isinstance(m, TaskReturned)).lease == waiting.lease
        service.manager.told(RevokeTask(TaskRef("job", 0, 0), running.lease))
        assert service.wait(lambda m: isinstance(m, TaskReturned), 2).lease == running.lease
        assert service.manager._core.held() == []


def test_an_earlier_epoch_comes_before_what_was_computed_ahead(feed):
    dataset = mr.Dataset.range(30).map(lambda i: np.full(10_000, i, np.int32))
    with Service(dataset, tasks=1, buffer_bytes=100_000) as service:
        ahead = service.run(0, epoch=1)
        with service.changed:
            pass
        consumer = feed()
        consumer.begin(0, in_order=False)
        consumer.assign(0, [service.run(0, epoch=0)])
        consumer.ends(0, [0])
        assert len(read(consumer)) == 30
        returned = [message.lease for message in service.said if isinstance(message, TaskReturned)]
        assert returned in ([], [ahead.lease])


def test_an_element_larger_than_the_buffers_is_refused_with_the_remedy(feed):
    dataset = mr.Dataset.range(2).map(lambda i: np.zeros(1_000_000, np.uint8))
    with Service(dataset, tasks=1, buffer_bytes=100_000) as service:
        service.run(0)
        error = error_of(service.wait(lambda m: isinstance(m, TaskFailed)).failure)
        assert isinstance(error, ElementTooLargeError)
        assert "--buffer-bytes" in str(error)
    with Service(dataset, tasks=1) as service:
        consumer = feed(buffer_bytes=100_000)
        consumer.begin(0, in_order=False)
        consumer.assign(0, [service.run(0)])
        with pytest.raises(ElementTooLargeError, match="buffer of 100,000"):
            read(consumer)


def test_closing_the_job_stops_it():
    dataset = mr.Dataset.range(100).map(lambda i: np.full(10_000, i, np.int32))
    with Service(dataset, tasks=1, buffer_bytes=100_000) as service:
        service.run(0)
        service.manager.told(CloseJob("job"))
        assert service.manager._core.held() == []
        assert service.report().job == ""


def test_user_code_that_goes_on_after_its_job_is_let_end(tmp_path, monkeypatch):
    gate, warnings, closed = Gate(tmp_path), queue.SimpleQueue[str](), threading.Event()
    keeper = Keeper(gate)
    close = JobPipeline.close

    def close_and_say(job):
        close(job)
        closed.set()

    monkeypatch.setattr(task_manager, "JOIN_S", 0.01)
    monkeypatch.setattr(task_manager._logger, "warning", lambda text, *values: warnings.put(text % values))
    monkeypatch.setattr(JobPipeline, "close", close_and_say)

    def wait(number):
        gate.pass_through()
        return number

    with contextlib.closing(keeper), Service(mr.Dataset.range(10).map(wait)) as service:
        service.run(0)
        keeper.wait()
        [lane] = [thread for thread in threading.enumerate() if thread.name.startswith("millrace-lane")]
        service.manager.told(CloseJob("job"))
        assert "job job: user code has not stopped" in warnings.get(timeout=20)
        assert not closed.is_set()
        keeper.open()
        lane.join(20)
        assert not lane.is_alive()
        assert closed.wait(20)


def test_epochs_left_early_cost_nothing_later(feed):
    dataset = mr.Dataset.range(200).map(lambda i: np.full(10_000, i, np.int32))
    with Service(dataset, tasks=1, buffer_bytes=200_000) as service:
        consumer = feed(buffer_bytes=400_000)
        consumer.begin(0, in_order=False)
        consumer.assign(0, [service.run(0)])
        read(consumer, limit=5)
        consumer.handle(io.End(0))
        service.manager.told(ForgetTasks([TaskRef("job", 0, 0)]))
        consumer.begin(1, in_order=False)
        consumer.assign(1, [service.run(0, epoch=1)])
        consumer.ends(1, [0])
        assert len(read(consumer, epoch=1)) == 200
