import fcntl
import gzip
import hashlib
import os
import threading
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import PipelineError, SourceChangedError, SourceCorruptError, SourceError, SourceNotFoundError
from millrace.sources import storage
from millrace.sources.digests import digest_maker, item_hashing
from millrace.sources.digests.digest_file import ItemKind
from millrace.sources.digests.digest_maker import make_digest
from millrace.sources.digests.stored_digest import open_digest
from millrace.sources.listing import expand_many
from millrace.sources.reads import Reads

LONG_AGO = (10**9, 10**9)


class Killed(BaseException):
    """The process ends here."""


def die(*_):
    raise Killed


def made(patterns, output, **options):
    with Reads() as reads:
        return make_digest([patterns] if isinstance(patterns, str) else patterns, output, reads, **options)


def items_of(digest):
    """Items by location: (offset, bytes, hash) of each."""
    found = {}
    with Reads() as reads, open_digest(digest, reads) as parts:
        for rows in parts:
            for row, location in enumerate(rows.locations):
                chosen = slice(rows.firsts[row], rows.firsts[row + 1])
                columns = rows.offsets[chosen].tolist(), rows.lengths[chosen].tolist(), map(bytes, rows.hashes[chosen])
                found[os.fsdecode(location)] = list(zip(*columns, strict=True))
    return found


def whole(data):
    return [(0, len(data), hashlib.sha256(data).digest())]


def write(path, data, time=LONG_AGO):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, time)


@pytest.fixture
def folder(tmp_path):
    for number in range(5):
        write(tmp_path / "data" / f"{number}.txt", b"content %d" % (number // 2))
    return tmp_path / "data"


# -- items -------------------------------------------------------------------------------------------------------------


def test_files_are_items(folder, tmp_path):
    report = made(str(folder), f"{tmp_path}/a.digest")
    assert report == (5, 5, 45, 5, 45)
    assert items_of(f"{tmp_path}/a.digest") == {
        f"{folder}/{number}.txt": whole(b"content %d" % (number // 2)) for number in range(5)
    }
    assert sorted(os.listdir(tmp_path)) == ["a.digest", "data"]


def test_a_large_file_is_hashed_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(digest_maker, "_TOGETHER_BYTES", 100)
    monkeypatch.setattr(item_hashing, "_AT_ONCE_BYTES", 30)
    data = bytes(range(256)) * 3
    write(tmp_path / "a.bin", data)
    made(f"{tmp_path}/a.bin", f"{tmp_path}/a.digest")
    assert items_of(f"{tmp_path}/a.digest") == {f"{tmp_path}/a.bin": whole(data)}


def test_members_records_and_column_chunks_are_items(tmp_path, make_tar, make_tfrecords):
    members = [("x/ü.jpg", b"picture"), ("x/empty.cls", b""), ("y" * 150 + ".jpg", b"picture")]
    records = [b"one", b"", b"three" * 1000, b"one"]
    write(tmp_path / "a.tar", make_tar(members, folders=["x"]))
    write(tmp_path / "a.tfrecord-00000-of-00001", make_tfrecords(records))
    write(tmp_path / "a.tfrecord.gz", gzip.compress(make_tfrecords(records)))
    table = pa.table({"id": range(100), "name": [str(number) for number in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=40)
    os.utime(tmp_path / "a.parquet", LONG_AGO)
    made(str(tmp_path), f"{tmp_path}/a.digest")
    found = {os.path.basename(location): items for location, items in items_of(f"{tmp_path}/a.digest").items()}
    for items, contents in (
        (found["a.tar"], [data for _, data in members]),
        (found["a.tfrecord-00000-of-00001"], records),
    ):
        assert [item[1:] for item in items] == [whole(data)[0][1:] for data in contents]
    for name, items in found.items():
        data = (tmp_path / name).read_bytes()
        assert all(hashlib.sha256(data[start : start + size]).digest() == digest for start, size, digest in items)
    assert len(found["a.parquet"]) == 3 * 2
    assert found["a.tfrecord.gz"] == whole((tmp_path / "a.tfrecord.gz").read_bytes())


def test_columns_that_are_read_are_items(tmp_path):
    pq.write_table(pa.table({"id": range(9), "other": range(9)}), tmp_path / "a.parquet", row_group_size=3)
    os.utime(tmp_path / "a.parquet", LONG_AGO)
    arguments = f"{tmp_path}/a.parquet", f"{tmp_path}/a.digest"
    assert made(*arguments, columns=("id",)).items == 3
    assert made(*arguments, columns=("id",)).read_files == 0
    assert made(*arguments) == (
        1,
        6,
        *[os.path.getsize(tmp_path / "a.parquet"), 1],
        os.path.getsize(tmp_path / "a.parquet"),
    )
    with pytest.raises(PipelineError, match="no column 'none'"):
        made(*arguments, columns=("none",))


def test_the_kind_of_items_can_be_chosen(tmp_path, make_tar):
    data = make_tar([("a.txt", b"a")])
    write(tmp_path / "a.tar", data)
    assert made(f"{tmp_path}/a.tar", f"{tmp_path}/a.digest", kind=ItemKind.FILE).items == 1
    assert items_of(f"{tmp_path}/a.digest") == {f"{tmp_path}/a.tar": whole(data)}
    assert made(f"{tmp_path}/a.tar", f"{tmp_path}/a.digest").read_files == 1  # of another kind
    assert items_of(f"{tmp_path}/a.digest")[f"{tmp_path}/a.tar"][0][0] == 512


def test_two_copies_have_the_same_hashes(tmp_path, make_tar):
    contents = [(f"{number}.txt", b"content %d" % number) for number in range(20)]
    for name, data in contents:
        write(tmp_path / "files" / name, data)
    store = f"memory://{uuid.uuid4().hex}"
    storage.write(f"{store}/shard.tar", make_tar(contents))
    made(str(tmp_path / "files"), f"{tmp_path}/here.digest")
    made(store, f"{tmp_path}/there.digest")
    here, there = items_of(f"{tmp_path}/here.digest"), items_of(f"{tmp_path}/there.digest")
    hashes = {item[2] for items in here.values() for item in items}
    assert {item[2] for items in there.values() for item in items} == hashes
    assert len(hashes) == 20


def test_names_that_are_no_text(tmp_path):
    path = os.path.join(os.fsencode(tmp_path), b"d", b"\xff\xfe.txt")
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(b"x")
    os.utime(path, LONG_AGO)
    write(tmp_path / "d" / "日本.txt", b"y")
    made(f"{tmp_path}/d", f"{tmp_path}/a.digest")
    assert set(items_of(f"{tmp_path}/a.digest")) == {os.fsdecode(path), f"{tmp_path}/d/日本.txt"}
    assert made(f"{tmp_path}/d", f"{tmp_path}/a.digest").read_files == 0


# -- what is listed ----------------------------------------------------------------------------------------------------


def test_a_file_named_twice_is_there_once(folder, tmp_path):
    report = made([f"{folder}/*.txt", f"{folder}/[34].txt", f"{folder}"], f"{tmp_path}/a.digest")
    assert (report.files, report.read_files) == (5, 5)


def test_a_digest_is_no_part_of_the_data_it_lies_in(folder):
    assert made(str(folder), f"{folder}/a.digest").files == 5
    (folder / "a.digest.partial").write_bytes(b"")
    assert made(str(folder), f"{folder}/a.digest").files == 5
    for path in folder.glob("*.txt"):
        path.unlink()
    with pytest.raises(SourceNotFoundError, match="nothing is there but the digest itself"):
        made(str(folder), f"{folder}/a.digest")


def test_an_empty_folder_has_no_digest(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceNotFoundError, match="matches no file"):
        made(f"{tmp_path}/empty", f"{tmp_path}/a.digest")
    with pytest.raises(SourceNotFoundError, match="matches no file"):
        made(f"memory://{uuid.uuid4().hex}", f"{tmp_path}/a.digest")
    assert os.listdir(tmp_path) == ["empty"]


def test_a_digest_goes_to_a_store(folder, tmp_path, monkeypatch, bucket):
    monkeypatch.chdir(tmp_path)
    assert made(str(folder), f"{bucket}a.digest").read_files == 5
    assert made(str(folder), f"{bucket}a.digest").read_files == 0
    assert len(items_of(f"{bucket}a.digest")) == 5
    assert os.listdir(tmp_path) == ["data"]


def test_what_is_no_digest_is_not_overwritten(folder, tmp_path):
    (tmp_path / "a.digest").write_bytes(b"something of value")
    with pytest.raises(SourceCorruptError, match=r"a\.digest can't be read as a digest: it is no Arrow stream"):
        made(str(folder), f"{tmp_path}/a.digest")
    assert (tmp_path / "a.digest").read_bytes() == b"something of value"
    with pytest.raises(PipelineError, match="name of a file"):
        made(str(folder), f"{tmp_path}/")
    with pytest.raises(SourceError, match="No such file or directory"):
        made(str(folder), f"{tmp_path}/nowhere/a.digest")


# -- incremental -------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """Locations that are hashed."""
    found: list[str] = []
    together, alone = item_hashing.hash_together, item_hashing.hash_alone

    def both(files, reads):
        found.extend(file.entry.location for file in files)
        return together(files, reads)

    def one(file, *arguments):
        found.append(file.entry.location)
        return alone(file, *arguments)

    monkeypatch.setattr(digest_maker, "hash_together", both)
    monkeypatch.setattr(digest_maker, "hash_alone", one)
    return found


def test_what_has_changed_is_read_again(folder, tmp_path, asked):
    output = f"{tmp_path}/a.digest"
    made(str(folder), output)
    asked.clear()
    write(folder / "1.txt", b"content X", (10**9, 2 * 10**9))  # of the same size
    write(folder / "new" / "5.txt", b"new")
    (folder / "2.txt").unlink()
    assert made(str(folder), output) == (5, 5, 39, 2, 12)
    assert sorted(asked) == [f"{folder}/1.txt", f"{folder}/new/5.txt"]
    contents = {"0.txt": b"content 0", "1.txt": b"content X", "3.txt": b"content 1", "4.txt": b"content 2"}
    contents["new/5.txt"] = b"new"
    assert items_of(output) == {f"{folder}/{name}": whole(data) for name, data in contents.items()}


def test_a_file_that_was_just_written_is_read_the_next_time(folder, tmp_path):
    """It may be written to again without its time being another one."""
    (folder / "2.txt").write_bytes(b"just now!")
    made(str(folder), f"{tmp_path}/a.digest")
    os.utime(folder / "2.txt", LONG_AGO)
    assert made(str(folder), f"{tmp_path}/a.digest").read_files == 1
    assert made(str(folder), f"{tmp_path}/a.digest").read_files == 0


NAMES = st.sampled_from(["a", "b", "c/a", "c/d", "e-f", "ü"])


@settings(max_examples=40)
@given(st.lists(st.dictionaries(NAMES, st.binary(max_size=4), min_size=1), min_size=1, max_size=4), st.booleans())
def test_each_digest_is_that_of_what_is_there(tmp_path_factory, states, killed):
    """And reads what the one before does not know, however much of it an ended process had hashed."""
    folder, store = tmp_path_factory.mktemp("digests"), f"memory://{uuid.uuid4().hex}/"
    output, before = f"{folder}/a.digest", dict[str, bytes]()
    for state in states:
        for name in before.keys() - state.keys():
            storage.delete(store + name)
        fresh = {name for name, data in state.items() if before.get(name) != data}
        for name in fresh:
            storage.write(store + name, state[name])
        if killed:
            with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
                patch.setattr(digest_maker, "write_digest", die)
                made(f"{store}**", output)
            fresh = set()
        assert made(f"{store}**", output).read_files == len(fresh)
        assert items_of(output) == {store + name: whole(data) for name, data in state.items()}
        before = state


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_what_was_hashed_is_kept_when_the_process_ends(folder, tmp_path, monkeypatch, asked):
    monkeypatch.setattr(digest_maker, "_TOGETHER", 1)
    monkeypatch.setattr(digest_maker, "_AT_ONCE", 1)
    hash_one = item_hashing.hash_alone

    def dies(file, *arguments):
        if file.entry.location.endswith("3.txt"):
            raise Killed
        return hash_one(file, *arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(digest_maker, "hash_alone", dies)
        made(str(folder), f"{tmp_path}/a.digest")
    assert not (tmp_path / "a.digest").exists()
    partial = (tmp_path / "a.digest.partial").read_bytes()
    for cut in (0, 1, 8, 9, len(partial) // 2):  # as far as its last record came
        (tmp_path / "b.digest.partial").write_bytes(partial + partial[:cut])
        assert made(str(folder), f"{tmp_path}/b.digest").read_files == 2
        os.unlink(tmp_path / "b.digest")
    asked.clear()
    assert made(str(folder), f"{tmp_path}/a.digest").read_files == 2
    assert sorted(asked) == [f"{folder}/3.txt", f"{folder}/4.txt"]
    assert len(items_of(f"{tmp_path}/a.digest")) == 5
    assert not (tmp_path / "a.digest.partial").exists()


def test_damaged_records_are_hashed_again(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(digest_maker, "_TOGETHER", 1)
    with monkeypatch.context() as patch:
        patch.setattr(digest_maker, "write_digest", die)
        with pytest.raises(Killed):
            made(str(folder), f"{tmp_path}/a.digest")
    partial = bytearray((tmp_path / "a.digest.partial").read_bytes())
    partial[len(partial) // 2] ^= 1
    (tmp_path / "a.digest.partial").write_bytes(partial)
    assert made(str(folder), f"{tmp_path}/a.digest").read_files == 3  # that one and those behind it
    assert len(items_of(f"{tmp_path}/a.digest")) == 5
    (tmp_path / "c.digest.partial").write_bytes(b"something else")
    assert made(str(folder), f"{tmp_path}/c.digest").read_files == 5


def test_two_processes_do_not_make_one_digest(folder, tmp_path):
    with open(tmp_path / "a.digest.partial", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SourceError, match="another millrace digest makes the same one"):
            made(str(folder), f"{tmp_path}/a.digest")


def test_damaged_files_are_named_and_the_others_kept(tmp_path, make_tar):
    shard = make_tar([(f"{number}.txt", bytes(600)) for number in range(3)])
    for number in range(12):
        write(tmp_path / "data" / f"{number:02}.tar", shard[:2000] if number in (3, 7) else shard)
    with pytest.raises(SourceCorruptError) as error:
        made(f"{tmp_path}/data", f"{tmp_path}/a.digest")
    message = str(error.value)
    assert "03.tar is truncated" in message
    assert "07.tar is truncated" in message
    assert "What was hashed is kept" in message
    write(tmp_path / "data" / "03.tar", shard, (10**9, 2 * 10**9))
    (tmp_path / "data" / "07.tar").unlink()
    assert made(f"{tmp_path}/data", f"{tmp_path}/a.digest").read_files == 1


def test_a_file_that_changes_while_it_is_hashed_is_named(folder, tmp_path, monkeypatch):
    hash_bytes = hashlib.sha256

    def changes(data=b""):
        if bytes(data) == b"content 2":
            (folder / "4.txt").write_bytes(b"content 3")
        return hash_bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "sha256", changes)
        with pytest.raises(SourceChangedError, match=r"4\.txt has changed since it was listed") as error:
            made(str(folder), f"{tmp_path}/a.digest")
    assert "0.txt" not in str(error.value)
    assert not (tmp_path / "a.digest").exists()
    assert made(str(folder), f"{tmp_path}/a.digest").read_files == 1


@pytest.mark.parametrize("size", [3, 300])
def test_a_file_that_gets_another_size_is_named(folder, tmp_path, monkeypatch, size):

    def then_changed(*arguments):
        found = list(expand_many(*arguments))
        (folder / "0.txt").write_bytes(bytes(size))
        return found

    monkeypatch.setattr(digest_maker, "expand_many", then_changed)
    with pytest.raises(SourceChangedError, match=r"0\.txt has changed since it was listed"):
        made(str(folder), f"{tmp_path}/a.digest")


def test_a_store_that_fails_ends_it(folder, tmp_path, monkeypatch):
    def fails(*_):
        raise SourceError("the store is away")

    monkeypatch.setattr(digest_maker, "hash_together", fails)
    threads = threading.active_count()
    with pytest.raises(SourceError, match="the store is away"):
        made(str(folder), f"{tmp_path}/a.digest")
    assert threading.active_count() <= threads + digest_maker._AT_ONCE
    assert os.listdir(tmp_path) == ["data"]


def test_progress_counts_all_files_and_bytes(folder, tmp_path):
    said, seen = list[tuple[int, int]](), list[int]()
    for _ in range(2):
        said.clear()
        listed = lambda *counts: said.append(counts)  # noqa: E731
        made(str(folder), f"{tmp_path}/a.digest", seen=seen.append, listed=listed, hashed=listed)
        assert said[0] == (5, 45)
        assert np.sum(said[1:], axis=0).tolist() == [5, 45]
    assert sum(seen) == 10
