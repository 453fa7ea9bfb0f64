import os
import tarfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import PipelineError, SourceChangedError, SourceCorruptError, SourceError, SourceNotFoundError
from millrace.graph import nodes
from millrace.sources import list_source, open_source, storage
from millrace.sources.packs.packer import pack, verify
from millrace.sources.reads import Reads

CONTENTS = {
    f"{kind}/{number:02}.{field}": f"{kind}{number}{field}".encode() * (number * 40)
    for kind in ("cat", "dog")
    for number in range(15)
    for field in ("jpg", "cls")
}
SHARD_BYTES = 60_000


def samples(contents):
    found: dict[str, dict[str, Any]] = {}
    for name, data in contents.items():
        key, _, field = name.partition(".")
        found.setdefault(key, {"__key__": key})[field] = data
    return found


@pytest.fixture
def files(tmp_path):
    """Files of samples, on a disk."""
    for name, data in CONTENTS.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return f"{tmp_path}/files"


@pytest.fixture(params=["disk", "store"])
def folder(request, tmp_path, bucket):
    return f"{tmp_path}/packed" if request.param == "disk" else f"{bucket}packed"


def names(folder):
    if storage.is_remote(folder):
        return sorted(file.location.rpartition("/")[2] for file in storage.list_folder(f"{folder}/", recursive=True))
    return sorted(os.listdir(folder))


def read(folder, *, random_access):
    node = nodes.FromWebDataset(patterns=(f"{folder}/shard-*.tar",), random_access=random_access)
    table = list_source(node, Reads())
    assert table.count == len(samples(CONTENTS))
    source: Any = open_source(node, table, Reads())
    if random_access:
        return source.fetch(range(table.count))
    return [one for split in table.splits for some in source.read(split, 0, -1, lambda: 4) for one in some]


def test_a_pack_holds_what_was_packed(files, folder):
    made = pack([f"{files}/**/*.*"], folder, shard_bytes=SHARD_BYTES, seed=3)
    assert (made.samples, made.files) == (30, 60)
    assert made.shards == made.made == 3
    assert names(folder) == ["index.parquet", *(f"shard-{number:06}.tar" for number in range(made.shards))]
    one_by_one, in_pieces = read(folder, random_access=True), read(folder, random_access=False)
    assert one_by_one == in_pieces
    assert {sample["__key__"]: sample for sample in one_by_one} == samples(CONTENTS)
    assert [sample["__key__"] for sample in one_by_one] != sorted(samples(CONTENTS))
    assert verify(folder) == (made.shards, 30, [])


def test_shards_are_tar_archives_that_others_read(files, tmp_path):
    pack([f"{files}/**/*.*"], f"{tmp_path}/packed", shard_bytes=1 << 30)
    with tarfile.open(tmp_path / "packed" / "shard-000000.tar") as archive:
        files_of: Any = archive.extractfile
        found = {member.name: files_of(member).read() for member in archive.getmembers()}
    assert found == CONTENTS
    assert list(found) == sorted(CONTENTS)


def test_the_same_files_give_the_same_bytes(files, tmp_path, bucket):
    for place in (f"{tmp_path}/one", f"{bucket}other"):
        pack([f"{files}/**/*.*"], place, shard_bytes=SHARD_BYTES)
    for name in names(f"{tmp_path}/one"):
        assert storage.read(f"{tmp_path}/one/{name}") == storage.read(f"{bucket}other/{name}")


class Died(BaseException):
    pass


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_run_that_dies_at_any_write_is_gone_on_with(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("pack")
    for number in range(6):
        (root / f"{number}.bin").write_bytes(bytes([number]) * 700)
    pattern, folder = f"{root}/*.bin", f"{root}/packed"
    writes = 1 + 6 * 2 + 1  # the mark, shards and their parts of the index, the index
    whole = 0
    for death in [*data.draw(st.lists(st.integers(0, writes - 1), max_size=3)), writes]:
        left = death

        def replace(before, after, real=os.replace):
            nonlocal left
            if left == 0:
                raise Died
            left -= 1
            real(before, after)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", replace)
            try:
                report = pack([pattern], folder, shard_bytes=1)
            except Died:
                assert not os.path.exists(f"{folder}/index.parquet")
                whole = sum(name.endswith(".part") for name in names(folder))
                continue
        assert report.made == 6 - whole
        break
    assert names(folder) == ["index.parquet", *(f"shard-{number:06}.tar" for number in range(6))]
    assert verify(folder).wrong == []


def test_a_finished_pack_is_left_as_it_is_and_a_lost_shard_is_made_again(files, folder):
    first = pack([f"{files}/**/*.*"], folder, shard_bytes=SHARD_BYTES)
    assert pack([f"{files}/**/*.*"], folder, shard_bytes=SHARD_BYTES).made == 0
    lost = f"{folder}/shard-000001.tar"
    before = storage.read(lost)
    if storage.is_remote(folder):
        storage.delete(lost)
    else:
        os.unlink(lost)
    assert verify(folder).wrong == [f"{lost} does not exist"]
    again = pack([f"{files}/**/*.*"], folder, shard_bytes=SHARD_BYTES)
    assert (again.made, again.shards) == (1, first.shards)
    assert storage.read(lost) == before


def test_another_pack_is_replaced_only_if_asked_for(files, folder):
    pack([f"{files}/**/*.*"], folder, shard_bytes=20_000)
    before = names(folder)
    with pytest.raises(
        PipelineError, match=r"holds a finished pack that was made of other files, .* replace what is there with --over"
    ):
        pack([f"{files}/cat/*.*"], folder, shard_bytes=20_000)
    assert names(folder) == before
    report = pack([f"{files}/cat/*.*"], folder, shard_bytes=20_000, overwrite=True)
    assert names(folder) == ["index.parquet", *(f"shard-{number:06}.tar" for number in range(report.shards))]
    assert len(names(folder)) < len(before)
    assert verify(folder) == (report.shards, 15, [])


def test_shards_of_somebody_else_are_not_touched(files, folder):
    pack([f"{files}/cat/*.*"], folder, shard_bytes=20_000)
    if storage.is_remote(folder):
        storage.delete(f"{folder}/index.parquet")
    else:
        os.unlink(f"{folder}/index.parquet")
    with pytest.raises(PipelineError, match="which is of no pack"):
        pack([f"{files}/**/*.*"], folder)


def test_a_file_that_changes_while_it_is_packed_is_an_error_that_names_it(files, tmp_path, monkeypatch):
    real = Reads.fetch

    def changed(self, entries):
        return [
            data + b"!" if entry.location.endswith("dog/03.jpg") else data
            for entry, data in zip(entries, real(self, entries), strict=True)
        ]

    monkeypatch.setattr(Reads, "fetch", changed)
    with pytest.raises(SourceError, match=r"dog/03\.jpg is not what it was when it was listed"):
        pack([f"{files}/**/*.*"], f"{tmp_path}/packed", shard_bytes=SHARD_BYTES)
    assert "index.parquet" not in names(f"{tmp_path}/packed")
    assert not [name for name in names(f"{tmp_path}/packed") if name.endswith(".partial")]
    monkeypatch.setattr(Reads, "fetch", real)
    assert pack([f"{files}/**/*.*"], f"{tmp_path}/packed", shard_bytes=SHARD_BYTES).samples == 30


def test_a_damaged_sample_is_found_and_named(files, tmp_path):
    folder = f"{tmp_path}/packed"
    pack([f"{files}/**/*.*"], folder, shard_bytes=SHARD_BYTES)
    with open(f"{folder}/shard-000001.tar", "r+b") as file:
        file.seek(600)
        byte = file.read(1)
        file.seek(600)
        file.write(bytes([byte[0] ^ 1]))
    (said,) = verify(folder).wrong
    assert "shard-000001.tar: the sample 'cat/" in said
    os.truncate(f"{folder}/shard-000002.tar", 5000)
    assert "has 5000 bytes, and the index says" in verify(folder).wrong[-1]


def test_there_is_nothing_to_verify_without_an_index(folder):
    with pytest.raises(
        SourceNotFoundError, match=r"index\.parquet is not there, or can't be read as the index of a pack"
    ):
        verify(folder)


@pytest.mark.parametrize("name", ["index.parquet", "pack.json"])
def test_files_of_somebody_else_stay(files, folder, name):
    put(f"{folder}/{name}", b"{}")
    with pytest.raises(PipelineError, match=f"holds {name}, which is of no pack"):
        pack([f"{files}/**/*.*"], folder)
    assert names(folder) == [name]
    assert pack([f"{files}/**/*.*"], folder, overwrite=True).made == 1


def put(location, data):
    if storage.is_remote(location):
        storage.write(location, data)
    else:
        os.makedirs(os.path.dirname(location), exist_ok=True)
        with open(location, "wb") as file:
            file.write(data)


def test_what_is_in_the_folder_is_not_packed_into_it(files, tmp_path):
    for pattern, folder in ((f"{files}/cat/*.jpg", f"{files}/cat"), (f"{files}/**/*.*", files)):
        with pytest.raises(PipelineError, match=r"cat/00\.\w+ is to be packed, and lies in the folder to pack into"):
            pack([pattern], folder)
    with pytest.raises(PipelineError, match="has an empty name"):
        pack([f"{files}/cat/*.jpg"], "")


def test_of_two_packs_in_one_folder_one_goes_on(files, folder, monkeypatch):
    pack([f"{files}/dog/*.*"], folder, shard_bytes=1)
    first = storage.write if storage.is_remote(folder) else os.replace
    begun: list[bool] = []

    def second_begins(*args, real=first):
        """Another run takes the folder before the third shard of the first one is there."""
        real(*args)
        if any("000002.tar.part" in str(arg) for arg in args) and not begun:
            begun.append(True)
            pack([f"{files}/**/*.*"], folder, shard_bytes=1, seed=2, overwrite=True)

    monkeypatch.setattr(*((storage, "write") if storage.is_remote(folder) else (os, "replace")), second_begins)
    with pytest.raises(SourceError, match="another millrace pack has begun to write there"):
        pack([f"{files}/**/*.*"], folder, shard_bytes=1, seed=1, overwrite=True)
    monkeypatch.undo()
    assert begun
    assert verify(folder) == (30, 30, [])
    again = pack([f"{files}/**/*.*"], folder, shard_bytes=1, seed=2)
    assert again.made == 0


def test_a_shard_that_another_run_has_replaced_meanwhile_is_no_part_of_a_pack(files, tmp_path, monkeypatch):
    folder, real = f"{tmp_path}/packed", os.replace

    def replaced(before, after):
        real(before, after)
        if after.endswith("shard-000001.tar.part"):  # one that was on its way when its run was told to stop
            put(f"{folder}/shard-000000.tar", b"another")

    monkeypatch.setattr(os, "replace", replaced)
    with pytest.raises(SourceError, match="another millrace pack has begun to write there"):
        pack([f"{files}/**/*.*"], folder, shard_bytes=SHARD_BYTES)
    monkeypatch.undo()
    report = pack([f"{files}/**/*.*"], folder, shard_bytes=SHARD_BYTES)
    assert report.made == 1
    assert verify(folder).wrong == []


def test_what_an_ended_run_has_left_goes_although_all_is_packed(files, folder):
    pack([f"{files}/**/*.*"], folder, shard_bytes=SHARD_BYTES)
    before = names(folder)
    for name in ("shard-000099.tar", "shard-000000.tar.part", ".shard-000001.tar.0af.partial", "pack.json"):
        put(f"{folder}/{name}", b"{}")
    assert verify(folder).wrong == [f"{folder}/shard-000099.tar is of no sample in the index: remove it"]
    assert pack([f"{files}/**/*.*"], folder, shard_bytes=SHARD_BYTES).made == 0
    assert names(folder) == before


def test_a_pack_that_is_not_finished_is_not_read(files, folder):
    pack([f"{files}/**/*.*"], folder, shard_bytes=SHARD_BYTES)
    index = f"{folder}/index.parquet"
    if storage.is_remote(folder):
        storage.delete(index)
    else:
        os.unlink(index)
    put(f"{folder}/pack.json", b'{"plan": "p", "run": "r"}')
    with pytest.raises(
        SourceCorruptError, match="holds a pack that is not finished: run the same `millrace pack` again"
    ):
        read(folder, random_access=False)


def test_a_file_that_is_replaced_by_one_of_its_size_is_not_packed(files, folder, monkeypatch):
    real = Reads.fetch

    def late(self, entries):
        for entry in entries:
            if entry.location.endswith("dog/03.jpg"):
                os.utime(entry.location, ns=(1, 1))
        return real(self, entries)

    monkeypatch.setattr(Reads, "fetch", late)
    with pytest.raises(SourceChangedError, match=r"dog/03\.jpg is not what it was when it was listed.*--overwrite"):
        pack([f"{files}/**/*.*"], folder, shard_bytes=SHARD_BYTES)
    assert "index.parquet" not in names(folder)


# -- reading by the index ----------------------------------------------------------------------------------------------


def test_shards_in_a_store_are_cut_where_the_index_says(files, bucket):
    pack([f"{files}/**/*.*"], f"{bucket}packed", shard_bytes=1 << 30)
    node = nodes.FromWebDataset(patterns=(f"{bucket}packed/shard-000000.tar",))
    table = list_source(node, Reads())
    assert table.count == 30
    assert len(table.splits) > 1
    storage.delete(f"{bucket}packed/index.parquet")
    assert list_source(node, Reads()).count == -1


def test_an_index_of_other_shards_is_said_and_not_believed(files, folder, caplog):
    pack([f"{files}/**/*.*"], folder, shard_bytes=1 << 30)
    shard = f"{folder}/shard-000000.tar"
    longer = storage.read(shard) + bytes(512)
    if storage.is_remote(folder):
        storage.write(shard, longer)
    else:
        with open(shard, "wb") as file:
            file.write(longer)
    table = list_source(nodes.FromWebDataset(patterns=(shard,)), Reads())
    assert table.count == (-1 if storage.is_remote(folder) else 30)
    assert "it is read as if it were not in there" in caplog.text


def test_random_access_needs_to_know_where_samples_are(files, bucket, tmp_path):
    pack([f"{files}/**/*.*"], f"{bucket}packed")
    storage.delete(f"{bucket}packed/index.parquet")
    with pytest.raises(PipelineError, match=r"no index\.parquet beside it has it.*millrace pack"):
        list_source(nodes.FromWebDataset(patterns=(f"{bucket}packed/*.tar",), random_access=True), Reads())


def test_random_access_to_a_changed_shard_is_an_error_that_names_the_sample(files, tmp_path):
    folder = f"{tmp_path}/packed"
    pack([f"{files}/**/*.*"], folder, shard_bytes=1 << 30)
    node = nodes.FromWebDataset(patterns=(f"{folder}/*.tar",), random_access=True)
    table = list_source(node, Reads())
    source: Any = open_source(node, table, Reads())
    size = os.path.getsize(f"{folder}/shard-000000.tar")
    with open(f"{folder}/shard-000000.tar", "r+b") as file:
        file.write(bytes(size))
    with pytest.raises(SourceCorruptError, match=r"shard-000000\.tar, record 7: 0 samples lie in bytes"):
        source.fetch(range(7, 8))
