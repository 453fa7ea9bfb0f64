"""A rolling restart under load: dispatcher and workers are exchanged one by one, and each element still comes once."""

import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
from tests.integration.service.service_driving import WAIT_S, Service, wait_for_end

import millrace as mr
from millrace.clusters.child_process import hang_up
from millrace.dispatcher.journal_file import SqliteJournal

COUNT = 400
NEWER = {"owner", "reads", "may_read"}
"""Fields of jobs that journals did not have before tokens had rights."""


def without(value):
    """Plain data as a version wrote it that did not know these fields."""
    if isinstance(value, dict):
        return {key: without(each) for key, each in value.items() if key not in NEWER}
    return [without(each) for each in value] if isinstance(value, list) else value


def written_by_the_version_before(folder):
    """Rewrites a journal; returns the number of fields that are gone."""
    path = folder / "journal.db"
    journal = SqliteJournal(path)
    past = journal.read()
    journal.close()
    for file in folder.glob("journal*"):
        file.unlink()
    journal = SqliteJournal(path)
    journal.read()
    kept = [msgspec.msgpack.encode(events) for events in past.events]
    older = [msgspec.msgpack.encode(without(msgspec.msgpack.decode(body))) for body in kept]
    for body in older:
        journal.write(len(msgspec.msgpack.decode(body)), past.at, body)
    journal.close()
    assert past.snapshot is None
    return sum(map(len, kept)) - sum(map(len, older))


def exchange_dispatcher(service, folder):
    """In good order; the next one reads a journal of the version before."""
    service.dispatcher.send_signal(signal.SIGTERM)
    assert service.dispatcher.wait() == 0
    hang_up(service.dispatcher)
    assert written_by_the_version_before(folder) > 0
    service.start_again()
    service.until(all_there)


def all_there(status):
    consumers = [consumer for job in status["jobs"] for consumer in job["consumers"]]
    return all(c["connected"] for c in consumers) and not any("session broke" in w["why"] for w in status["workers"])


def test_all_processes_are_exchanged_one_by_one_while_two_ranks_read(tmp_path, gate, keeper):
    def look(number):
        if number == COUNT // 2:
            gate.pass_through()
        return number

    done, more = threading.Event(), [True]
    side_by_side = threading.Barrier(2, lambda: more.append(not done.is_set()))  # both ranks read equally many epochs

    def read(distributed, begun):
        with distributed:
            epochs = [list(begun)]
            try:
                while side_by_side.wait() >= 0 and more[-1]:
                    epochs.append(list(distributed))
                    done.wait(0.1)  # it is read again and again, and not as fast as can be
            except BaseException:
                side_by_side.abort()  # the other one would wait for ever
                raise
            return epochs

    folder = tmp_path / "work"
    dataset = mr.Dataset.range(COUNT).map(look).batch(16)
    with Service(2, work_dir=folder) as service, ThreadPoolExecutor(2) as pool:
        ranks = [dataset.distribute(service.address, job_name="ours", num_consumers=2, tasks=20) for _ in range(2)]
        reading = [pool.submit(read, rank, begun) for rank, begun in [(rank, iter(rank)) for rank in ranks]]
        try:
            holder = service.named(keeper.wait())  # it is in the middle of an epoch, with a task that lasts
            (other,) = service.workers.keys() - {holder}
            exchange_dispatcher(service, folder)
            keeper.open()
            for name in (other, holder):
                service.add(1)
                service.leave(name)
                assert wait_for_end(service.workers[name]) == 0
            exchange_dispatcher(service, folder)
            assert {worker["id"] for worker in service.status()["workers"]} == {"w2", "w3"}
        finally:
            done.set()
            keeper.open()
        parts = [each.result(WAIT_S) for each in reading]
    assert len(parts[0]) == len(parts[1]) > 1
    for epoch in zip(*parts, strict=True):
        assert Counter(number for part in epoch for batch in part for number in batch.tolist()) == Counter(range(COUNT))
