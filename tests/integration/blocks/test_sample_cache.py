"""The cache of samples: bounded, shared by threads and processes, and right whatever becomes of its files."""

import contextlib
import fcntl
import gc
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.blocks.samples import sample_table
from millrace.blocks.samples.claims import place_of
from millrace.blocks.samples.sample_cache import SampleCache, folder_stats
from millrace.blocks.samples.sample_table import SampleTable
from millrace.errors import CacheError, PipelineError


def nothing():
    raise AssertionError("it is in the cache, so nobody needs to fetch it")


@pytest.fixture
def cache(tmp_path):
    with contextlib.closing(SampleCache(1 << 20, folder=tmp_path / "samples")) as cache:
        yield cache


def test_what_was_counted_can_be_asked_for_by_the_folder_while_it_is_used_and_after_it_was_kept(tmp_path):
    with contextlib.closing(SampleCache(1 << 20, folder=tmp_path, keep=True)) as cache:
        for name in "ab":
            assert cache.read(name, 3, lambda: "sample") == "sample"
        assert cache.read("a", 3, nothing) == "sample"
        found = folder_stats(str(tmp_path))
        assert found == cache.stats()
        assert (found.hits, found.misses, found.fetched) == (1, 2, 2)
    assert folder_stats(str(tmp_path)) == found
    with pytest.raises(CacheError, match="has no cache of samples: give the folder"):
        folder_stats(str(tmp_path / "none"))


def test_ctrl_c_while_another_process_writes_leaves_no_transaction_open(tmp_path):
    """It comes as SQLite returns from waiting, before anything is done."""

    class Interrupted(sqlite3.Connection):
        def execute(self, statement, *parameters):
            found = super().execute(statement, *parameters)
            if statement == "begin immediate":
                raise KeyboardInterrupt
            return found

    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None, factory=Interrupted)) as base:
        with pytest.raises(KeyboardInterrupt), sample_table._transaction(base):
            pytest.fail("it was begun")
        assert not base.in_transaction


def test_those_that_make_one_database_at_a_time_wait_for_each_other(tmp_path):
    """SQLite itself fails at once where another process makes the same new file."""
    path, folder = str(tmp_path / "samples.db"), os.open(tmp_path, os.O_RDONLY)
    made: list[SampleTable] = []
    with contextlib.ExitStack() as held:
        held.callback(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_EX)
        making = threading.Thread(target=lambda: made.append(SampleTable(path, most_bytes=None, most_samples=None)))
        making.start()
        making.join(0.2)
        assert making.is_alive()
        assert not made
    making.join(20)
    assert made[0].get("name", 0) is None
    made[0].close()


class TestBounds:
    @pytest.mark.parametrize("eviction", ["fifo", "lru", "random"])
    @settings(max_examples=25, deadline=None)
    @given(reads=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 400)), max_size=40), bound=st.integers(0, 1000))
    def test_bytes_and_samples_stay_within_them(self, eviction, reads, bound):
        with contextlib.closing(SampleCache(bound, max_samples=4, eviction=eviction)) as cache:
            values: dict[int, bytes] = {}
            for index, size in reads:
                value = values.setdefault(index, bytes(size))
                assert cache.read("a", index, partial(values.__getitem__, index)) == value
                count, nbytes = cache.totals()
                assert count <= 4
                assert nbytes <= bound
            found = cache.stats("a")
            assert found.reads == len(reads)
            assert found.stored - found.evicted == cache.totals()[0]
            assert found.stored + found.refused == found.fetched == found.misses

    def held(self, cache):
        found = []
        for index in range(10):
            with contextlib.suppress(AssertionError):
                found.append(cache.read("a", index, nothing))
        return found

    def test_first_in_first_out_lets_go_of_the_oldest_though_it_was_read_again(self):
        with contextlib.closing(SampleCache(max_samples=3)) as cache:
            for index in [0, 1, 2, 0, 3]:
                cache.read("a", index, partial(int, index))
            assert self.held(cache) == [1, 2, 3]

    def test_lru_lets_go_of_what_was_read_longest_ago(self):
        with contextlib.closing(SampleCache(max_samples=3, eviction="lru")) as cache:
            for index in [0, 1, 2, 0, 3]:
                cache.read("a", index, partial(int, index))
            assert self.held(cache) == [0, 2, 3]

    @pytest.mark.parametrize("eviction", ["fifo", "lru", "random"])
    def test_what_is_fetched_ahead_and_was_there_already_goes_as_late_as_what_comes_new(self, eviction):
        with contextlib.closing(SampleCache(max_samples=3, eviction=eviction)) as cache:
            for index in [0, 1, 2, 0, 3]:
                cache.fetch_ahead("a", index, partial(int, index))
            held = self.held(cache)
            assert len(held) == 3
            assert eviction == "random" or held == [0, 2, 3]

    @pytest.mark.parametrize("eviction", ["fifo", "lru"])
    def test_samples_go_in_the_order_in_which_they_were_asked_for_however_their_fetches_end(self, eviction):
        with contextlib.closing(SampleCache(max_samples=3, eviction=eviction)) as cache:

            def last() -> int:
                for index in [1, 2]:
                    assert cache.fetch_ahead("a", index, partial(int, index))
                return 0

            assert cache.fetch_ahead("a", 0, last)
            assert self.held(cache) == [0, 1, 2]
            assert cache.fetch_ahead("a", 3, partial(int, 3))
            assert self.held(cache) == [1, 2, 3]

    @pytest.mark.parametrize("eviction", ["fifo", "lru"])
    def test_looking_up_which_samples_are_held_lets_none_of_them_stay_longer(self, eviction):
        with contextlib.closing(SampleCache(max_samples=3, eviction=eviction)) as cache:
            for index in range(3):
                cache.read("a", index, partial(int, index))
            cache.read("b", 9, lambda: 9)
            assert sorted(cache.held("a", range(100_000))) == [1, 2]
            assert cache.held("b", [1, 2]) == []
            cache.held("a", [1])
            cache.read("a", 3, lambda: 3)
            assert self.held(cache) == [2, 3]
            assert cache.stats().refused == 0

    @pytest.mark.parametrize("eviction", ["fifo", "lru"])
    def test_samples_that_are_about_to_be_read_go_as_late_as_what_comes_new(self, eviction):
        with contextlib.closing(SampleCache(max_samples=3, eviction=eviction)) as cache:
            for index in range(3):
                cache.read("a", index, partial(int, index))
            cache.renew("a", [1, 7, 0])
            cache.read("a", 3, lambda: 3)
            assert sorted(cache.held("a", range(10))) == [0, 1, 3]
            cache.read("a", 4, lambda: 4)
            assert sorted(cache.held("a", range(10))) == [0, 3, 4]

    def test_a_smaller_bound_than_before_is_honoured_at_once(self, tmp_path):
        with contextlib.closing(SampleCache(max_samples=10, folder=tmp_path, keep=True)) as cache:
            for index in range(10):
                cache.read("a", index, partial(int, index))
        with contextlib.closing(SampleCache(max_samples=2, folder=tmp_path, keep=True)) as cache:
            assert self.held(cache) == [8, 9]

    def test_a_sample_larger_than_the_cache_is_read_without_it(self, caplog):
        with contextlib.closing(SampleCache(1000)) as cache:
            for _ in range(2):
                assert cache.read("a", 7, lambda: bytes(5000)) == bytes(5000)
            assert (cache.stats("a").refused, cache.totals()) == (2, (0, 0))
        size = len(pickle.dumps(bytes(5000), protocol=5))
        assert [each.message.split(": ")[1] for each in caplog.records] == [
            f"its {size:,} bytes are more than the cache may hold; it is read without the cache"
        ]

    def test_without_a_bound_half_of_the_disk_is_for_it_and_for_its_ranks_together(self, tmp_path, monkeypatch):
        free = 1 << 30
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
        with contextlib.closing(SampleCache()) as cache:
            assert cache.max_bytes == free // 2 // 4
        kept = partial(SampleCache, folder=tmp_path, keep=True)
        with contextlib.closing(kept()) as cache:
            assert cache.max_bytes == free // 2
            cache.read("a", 1, lambda: bytes(1 << 20))
        free -= 1 << 20
        with contextlib.closing(kept()) as cache:
            assert cache.max_bytes is not None
            assert cache.max_bytes >= 1 << 29

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"max_bytes": -1}, "max_bytes must be a whole number of at least 0, not -1"),
            ({"max_bytes": True}, "not True"),
            ({"max_samples": "many"}, "max_samples must be a whole number of at least 0, not 'many'"),
            ({"eviction": "belady"}, "none of 'fifo', 'lru', 'random'"),
            ({"keep": True}, "needs folder="),
        ],
    )
    def test_arguments_out_of_range_are_refused(self, arguments, message):
        with pytest.raises(PipelineError, match=message):
            SampleCache(**arguments)


class TestTogether:
    def test_threads_that_read_one_sample_fetch_it_once(self, cache):
        reached, go = threading.Event(), threading.Event()

        def fetch():
            reached.set()
            go.wait()
            return "sample"

        found = []
        threads = [threading.Thread(target=lambda: found.append(cache.read("a", 1, fetch))) for _ in range(4)]
        for thread in threads:
            thread.start()
        reached.wait()
        go.set()
        for thread in threads:
            thread.join()
        stats = cache.stats("a")
        assert (found, stats.fetched, stats.reads) == (["sample"] * 4, 1, 4)

    def test_a_failed_fetch_is_the_readers_own_and_another_reader_tries_again(self, cache):
        with pytest.raises(ZeroDivisionError):
            cache.read("a", 1, lambda: 1 / 0)
        assert cache.read("a", 1, lambda: "sample") == "sample"

    def test_a_failure_ahead_is_counted_and_left_to_the_reader(self, cache):
        cache.fetch_ahead("a", 1, lambda: 1 / 0)
        assert cache.stats("a").failed == 1
        assert cache.read("a", 1, lambda: "sample") == "sample"

    def test_a_fetch_that_ends_after_the_cache_was_closed_leaves_nothing(self, tmp_path):
        cache = SampleCache(1 << 20, folder=tmp_path)
        cache.fetch_ahead("a", 1, cache.close)
        cache.fetch_ahead("a", 2, lambda: "sample")
        assert os.listdir(cache.folder) == ["users"]
        with pytest.raises(CacheError, match="was closed"):
            cache.read("a", 1, nothing)

    def test_datasets_of_one_cache_keep_apart(self, cache):
        assert cache.read("a", 1, lambda: "of a") == "of a"
        assert cache.read("b", 1, lambda: "of b") == "of b"
        assert cache.read("a", 1, nothing) == "of a"
        assert (cache.stats("a").reads, cache.stats("b").reads, cache.stats().reads) == (2, 1, 3)

    def test_a_copy_reads_what_the_original_has(self, cache):
        cache.read("a", 1, lambda: "sample")
        copy = pickle.loads(pickle.dumps(cache))
        try:
            assert copy.read("a", 1, nothing) == "sample"
            assert cache.stats("a").hits == 1
        finally:
            copy.close()
        assert cache.read("a", 1, nothing) == "sample"

    def test_reads_are_counted_by_owner_though_rows_of_ended_processes_are_taken_over(self, cache):
        for owner in (1, 2):
            cache.read("a", owner, int, owner)
            assert ended(lambda owner=owner: cache.read("a", 3, int, owner)) == 0
            assert ended(lambda: cache.read("a", 3, int, 3)) == 0
        assert [cache.reads("a", owner) for owner in range(4)] == [0, 2, 2, 2]
        assert cache.stats("a").reads == 6

    def test_a_forked_child_reads_and_counts(self, cache):
        cache.read("a", 1, lambda: "sample")
        assert ended(lambda: cache.read("a", 1, nothing)) == 0
        assert cache.stats("a").hits == 1
        assert cache.read("a", 1, nothing) == "sample"

    def test_a_forked_child_inherits_no_open_database(self, cache):
        cache.read("a", 1, lambda: "sample")

        def look():
            links = {link for link in Path("/proc/self/fd").iterdir() if link.exists()}
            assert not [link for link in links if link.readlink().name.startswith("samples.db")]
            assert cache.read("a", 1, nothing) == "sample"

        assert ended(look) == 0
        assert cache.read("a", 1, nothing) == "sample"

    def test_a_fork_waits_for_calls_of_other_threads(self, cache):
        """A handler that is called before the cache's own lets a thread go on that is in the middle of a write."""
        inside, forking = threading.Event(), threading.Event()

        def write():
            with cache._table._connected() as base:
                base.execute("begin immediate")
                inside.set()
                forking.wait()
                base.execute("commit")

        writer = threading.Thread(target=write)
        writer.start()
        inside.wait()
        os.register_at_fork(before=forking.set)
        assert ended(lambda: cache.read("a", 1, lambda: "sample")) == 0
        writer.join()
        assert cache.read("a", 1, nothing) == "sample"

    def test_children_are_forked_while_threads_read(self, cache):
        over = threading.Event()

        def read(start):
            index = start
            while not over.is_set():
                cache.read("a", index, lambda: bytes(10_000))
                index += 2

        threads = [threading.Thread(target=read, args=(start,)) for start in range(2)]
        for thread in threads:
            thread.start()
        statuses = [ended(lambda: cache.read("b", 1, lambda: "sample")) for _ in range(20)]
        over.set()
        for thread in threads:
            thread.join()
        assert statuses == [0] * 20
        assert cache.stats("b").reads == 20

    def test_a_closed_cache_leaves_no_lock_to_a_forked_child(self, tmp_path):
        cache = SampleCache(1 << 20, folder=tmp_path)
        with forked(signal.pause), open(os.path.join(cache.folder, "users")) as users:
            cache.close()
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def forked(function):
    """Have a forked child call ``function``; it is killed in the end, unless it has ended."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            function()
            os._exit(0)
        finally:
            os._exit(1)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def ended(function):
    """Status with which a forked child ends that has called ``function``; it is killed after a minute."""

    def call():
        signal.alarm(60)
        function()

    with forked(call) as child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


OTHER = """
import os, sys
from millrace.blocks.samples.sample_cache import SampleCache

cache = SampleCache(1 << 20, folder=sys.argv[1])

def fetch():
    print("fetching", flush=True)
    sys.stdin.readline()
    return "theirs"

cache.read("a", 1, fetch)
print("read", flush=True)
sys.stdin.readline()
cache.close()
"""


FORKING = """
import os, signal, sys
from millrace.blocks.samples.sample_cache import SampleCache

def fetch():
    if os.fork():
        signal.pause()
    print("fetching", flush=True)
    os.read(0, 1)  # until whoever has started this process ends it
    os._exit(0)

SampleCache(1 << 20, folder=sys.argv[1]).read("a", 1, fetch)
"""

TEMPORARY = """
import signal, sys, tempfile
from millrace.blocks.samples.sample_cache import SampleCache

tempfile.tempdir = sys.argv[1]
cache = SampleCache(max_samples=5)
cache.read("a", 1, lambda: "sample")
print(cache.folder, flush=True)
signal.pause()
"""


@contextlib.contextmanager
def another(folder, program=OTHER):
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class TestProcesses:
    def test_a_reader_waits_for_the_fetch_of_another_process(self, cache):
        with another(Path(cache.folder).parent) as process:
            assert process.stdout.readline() == "fetching\n"
            found = []
            reader = threading.Thread(target=lambda: found.append(cache.read("a", 1, nothing)))
            reader.start()
            process.stdin.write("\n")
            process.stdin.flush()
            reader.join()
            assert found == ["theirs"]
            assert cache.stats("a").fetched == 1

    def test_a_claim_passes_on_when_its_owner_dies(self, cache):
        with another(Path(cache.folder).parent) as process:
            assert process.stdout.readline() == "fetching\n"
            found = []
            reader = threading.Thread(target=lambda: found.append(cache.read("a", 1, lambda: "ours")))
            reader.start()
            process.send_signal(signal.SIGKILL)
            reader.join()
            assert found == ["ours"]

    def test_a_claim_passes_on_when_its_owner_dies_before_a_child_of_it(self, cache):
        with another(Path(cache.folder).parent, FORKING) as process:
            assert process.stdout.readline() == "fetching\n"
            with cache._claims.claim(place_of("a", 1)) as ours:
                assert not ours
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            with cache._claims.claim(place_of("a", 1)) as ours:
                assert ours

    def test_a_child_that_is_forked_in_a_fetch_may_go_on_with_it(self, cache):
        def fetch():
            child = os.fork()
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else "the child's"

        parent = os.getpid()
        found = None
        try:
            found = cache.read("a", 1, fetch)
        finally:
            if os.getpid() != parent:  # pragma: no cover
                os._exit(7 if found == "the child's" else 1)
        assert found == 7

    def test_the_last_to_close_removes_the_files(self, tmp_path):
        folder = tmp_path / "samples"
        mine = SampleCache(1 << 20, folder=folder)
        with another(folder) as process:
            process.stdin.write("\n\n")
            process.stdin.flush()
            assert process.stdout.read().endswith("read\n")
        assert mine.read("a", 1, nothing) == "theirs"
        mine.close()
        assert os.listdir(mine.folder) == ["users"]

    def test_what_a_killed_process_left_is_not_taken_for_this_runs(self, tmp_path):
        with another(tmp_path) as process:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "fetching\n"
            assert process.stdout.readline() == "read\n"
        with contextlib.closing(SampleCache(1 << 20, folder=tmp_path)) as cache:
            assert cache.read("a", 1, lambda: "anew") == "anew"


class TestFiles:
    @pytest.mark.parametrize("keep", [False, True])
    def test_files_of_the_users_are_left_alone(self, tmp_path, keep):
        theirs = {"users.parquet", "users", "counts.csv", "counts", "claims.json", "samples.db", "samples.db.bak"}
        for name in theirs:
            (tmp_path / name).write_text("a user's")
        for _ in range(2):
            with contextlib.closing(SampleCache(1 << 20, folder=tmp_path, keep=keep)) as cache:
                cache.read("a", 1, lambda: "sample")
        assert {each.name for each in tmp_path.iterdir() if each.is_file()} == theirs
        assert {(tmp_path / name).read_text() for name in theirs} == {"a user's"}

    def test_a_temporary_folder_goes_with_the_cache(self):
        cache = SampleCache(max_samples=5)
        cache.read("a", 1, lambda: "sample")
        folder = cache.folder
        assert os.stat(folder).st_mode & 0o077 == 0
        del cache
        assert not os.path.exists(folder)

    def test_a_fetch_that_is_under_way_leaves_nothing_of_a_temporary_folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        cache, rmdir, late = SampleCache(max_samples=5), os.rmdir, []

        def rmdir_late(path, **options):
            with pytest.raises(CacheError, match="was closed"), cache._claims.claim(1):
                pass  # what a thread does that has looked whether the cache is closed just before it was
            late.append(path)
            rmdir(path, **options)

        monkeypatch.setattr(os, "rmdir", rmdir_late)
        cache.close()
        assert late
        assert not list(tmp_path.iterdir())

    def test_a_folder_whose_remover_was_killed_is_removed_by_the_next_one(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        for name, file in (("millrace-samples-of-the-user.gone", "notes"), ("millrace-samples-x.gone", "claims")):
            (tmp_path / name).mkdir()
            (tmp_path / name / file).touch()
        SampleCache(max_samples=5).close()
        assert [each.name for each in tmp_path.iterdir()] == ["millrace-samples-of-the-user.gone"]

    def test_temporary_folders_of_killed_processes_are_removed_by_the_next_one(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        (tmp_path / "millrace-samples-of-the-user").mkdir()
        with contextlib.closing(SampleCache(max_samples=5)) as used:
            with another(tmp_path, TEMPORARY) as process:
                left = Path(process.stdout.readline().strip())
            assert (left / "samples.db").exists()
            with contextlib.closing(SampleCache(max_samples=5)) as cache:
                expected = {"millrace-samples-of-the-user", Path(used.folder).name, Path(cache.folder).name}
                assert {each.name for each in tmp_path.iterdir()} == expected
                assert used.read("a", 1, lambda: "sample") == "sample"

    def test_a_folder_that_is_removed_while_it_is_joined_is_not_used(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        lock = fcntl.flock
        removed: list[Path] = []

        def flock(handle, operation):
            if not removed:
                removed.extend(tmp_path.iterdir())
                shutil.rmtree(removed[0])
            lock(handle, operation)

        monkeypatch.setattr(fcntl, "flock", flock)
        with contextlib.closing(SampleCache(max_samples=5)) as cache:
            assert cache.read("a", 1, lambda: "sample") == "sample"
            assert cache.folder != str(removed[0])

    def test_a_kept_folder_is_there_for_the_next_run(self, tmp_path):
        for fetch in (lambda: "sample", nothing):
            with contextlib.closing(SampleCache(1 << 20, folder=tmp_path, keep=True)) as cache:
                assert cache.read("a", 1, fetch) == "sample"

    @pytest.mark.parametrize("garbage", [b"no database at all" * 1000, b""])
    def test_a_damaged_database_is_thrown_away(self, tmp_path, garbage):
        with contextlib.closing(SampleCache(1 << 20, folder=tmp_path, keep=True)) as cache:
            cache.read("a", 1, lambda: "sample")
        (tmp_path / "millrace-samples/samples.db").write_bytes(garbage)
        with contextlib.closing(SampleCache(1 << 20, folder=tmp_path, keep=True)) as cache:
            assert cache.read("a", 1, lambda: "anew") == "anew"

    def test_a_database_that_is_damaged_in_use_is_read_past(self, cache, caplog):
        for index in range(200):
            cache.read("a", index, lambda: bytes(4000))
        cache._table._base.execute("pragma wal_checkpoint(truncate)")
        cache._table._base.execute("pragma cache_size = 0")
        with open(os.path.join(cache.folder, "samples.db"), "r+b") as file:
            file.write(b"\xff" * 400_000)
        for index in range(200):
            assert cache.read("a", index, lambda: bytes(4000)) == bytes(4000)
        assert cache.held("a", range(200)) == []
        assert cache.stats("a").refused > 0
        assert len(caplog.records) == 1

    def test_a_damaged_sample_is_fetched_again(self, tmp_path):
        kept = partial(SampleCache, 1 << 20, folder=tmp_path, keep=True)
        with contextlib.closing(kept()) as cache:
            cache.read("a", 1, lambda: b"a" * 5000)
        database = Path(cache.folder, "samples.db")
        content = database.read_bytes()
        assert b"a" * 1000 in content
        database.write_bytes(content.replace(b"a" * 1000, b"b" * 1000))
        with contextlib.closing(kept()) as cache:
            for fetch in (lambda: "anew", nothing):
                assert cache.read("a", 1, fetch) == "anew"

    def test_a_sample_that_is_found_in_anothers_place_is_fetched_again(self, cache):
        cache.read("a", 1, lambda: "sample")
        cache._table._base.execute("update samples set number = 2")
        assert cache.read("a", 2, lambda: "another") == "another"

    def test_a_total_that_is_damaged_makes_room_and_no_more(self):
        with contextlib.closing(SampleCache(max_samples=3)) as cache:
            cache.read("a", 1, lambda: "sample")
            with cache._table._connected() as base:
                base.execute("update total set count = 1000")
            for _ in range(2):
                assert cache.read("a", 2, lambda: "another") == "another"
            assert cache.totals()[0] == 1

    def test_a_folder_of_somebody_else_is_refused_with_its_name(self, tmp_path):
        (tmp_path / "millrace-samples").mkdir()
        (tmp_path / "millrace-samples/other").write_text("a file of the user's")
        (tmp_path / "millrace-samples").chmod(0o777)
        with pytest.raises(CacheError, match=str(tmp_path)):
            SampleCache(1 << 20, folder=tmp_path)

    def test_a_dropped_cache_leaves_no_file_open(self):
        gc.collect()  # what tests before this one have left
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            SampleCache(max_samples=5).read("a", 1, lambda: "sample")
            gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before  # of tests before this one some may be closed only now

    def test_kept_samples_that_cannot_be_read_are_fetched_again_and_replaced(self, tmp_path, caplog):
        with contextlib.closing(SampleCache(1 << 20, folder=tmp_path, keep=True)) as cache:
            for index in range(3):
                cache._table.put("a", index, b"of a class that is gone")
            for fetch in (lambda: "anew", nothing):
                assert [cache.read("a", index, fetch) for index in range(3)] == ["anew"] * 3
            assert cache.totals() == (3, 3 * len(pickle.dumps("anew", protocol=5)))
        assert [each.message.split(": ")[0].split(" in ")[0] for each in caplog.records] == ["sample 0"]
        assert "is fetched again" in caplog.records[0].message

    def test_a_sample_that_can_neither_be_read_nor_thrown_away_is_read_without_the_cache(self, cache, monkeypatch):
        def drop(*_):
            raise CacheError("the database is locked")

        monkeypatch.setattr(cache._table, "drop", drop)
        cache._table.put("a", 1, b"of a class that is gone")
        assert cache.read("a", 1, lambda: "sample") == "sample"

    def test_a_copy_of_a_closed_cache_says_where_it_was(self):
        cache = SampleCache(max_samples=5)
        copy = pickle.dumps(cache)
        cache.close()
        with pytest.raises(CacheError, match=cache.folder):
            pickle.loads(copy)

    def test_samples_that_cannot_be_pickled_are_read_without_the_cache(self, cache):
        for _ in range(2):
            assert cache.read("a", 1, lambda: lambda: 7)() == 7
        assert cache.stats("a").refused == 2
