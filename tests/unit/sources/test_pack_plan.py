import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import PipelineError
from millrace.planning.split_table import files_table
from millrace.sources.packs.pack_plan import make_plan

NAMES = st.sets(st.from_regex(r"\A[ab](\.d)?(/[abc-])?/[abc-]{1,2}(\.(jpg|cls|a\.b))?\Z"), min_size=1, max_size=40)
FILES = NAMES.flatmap(
    lambda names: st.tuples(*(st.tuples(st.just("s3://bucket/" + name), st.integers(0, 5000)) for name in names))
)


def table(files):
    return files_table([(name, size, f"{name}-{size}") for name, size in files])


@given(files=FILES, shard_bytes=st.integers(1, 20_000), seed=st.none() | st.integers(0, 9), data=st.data())
def test_every_file_is_once_in_the_sample_of_its_name_whatever_the_order_of_the_listing(files, shard_bytes, seed, data):
    plan = make_plan(table(files), shard_bytes, seed)
    shards = [list(plan.samples(number)) for number in range(len(plan.shards) - 1)]
    packed = [file for shard in shards for _, members in shard for file in members]
    assert sorted((file.location, file.size) for file in packed) == sorted(files)
    keys = [key for shard in shards for key, _ in shard]
    assert len(set(keys)) == len(keys)
    for shard in shards:
        assert shard
        for key, members in shard:
            for file in members:
                folder, slash, name = file.name.rpartition("/")
                assert folder + slash + name.partition(".")[0] == key
    other = make_plan(table(data.draw(st.permutations(files))), shard_bytes, seed)
    assert other.digest == plan.digest
    assert [list(other.samples(number)) for number in range(len(shards))] == shards


@given(files=FILES, shard_bytes=st.integers(1, 20_000))
def test_a_shard_ends_with_the_sample_that_fills_it(files, shard_bytes):
    plan = make_plan(table(files), shard_bytes)

    def extent(members):
        return sum(512 + -(-file.size // 512) * 512 for file in members)

    for number in range(len(plan.shards) - 1):
        sizes = [extent(members) for _, members in plan.samples(number)]
        assert sum(sizes[:-1]) < shard_bytes
        assert number == len(plan.shards) - 2 or sum(sizes) >= shard_bytes


def test_a_seed_packs_the_samples_in_another_order():
    files = [(f"d/{number:03}.jpg", 10) for number in range(100)]
    plain, shuffled, again = make_plan(table(files)), make_plan(table(files), seed=1), make_plan(table(files), seed=1)
    assert np.array_equal(plain.order, np.arange(100))
    assert not np.array_equal(shuffled.order, plain.order)
    assert np.array_equal(np.sort(shuffled.order), plain.order)
    assert np.array_equal(shuffled.order, again.order)


@pytest.mark.parametrize(
    "changed",
    [
        {"files": [("d/0.jpg", 10), ("d/1.jpg", 11)]},
        {"files": [("d/0.jpg", 10), ("d/2.jpg", 10)]},
        {"files": [("d/0.jpg", 10)]},
        {"shard_bytes": 11},
        {"seed": 0},
        {"version": "other"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_decides_what_is_packed_is_in_the_digest(changed):
    def digest(files=(("d/0.jpg", 10), ("d/1.jpg", 10)), shard_bytes=10, seed=None, version="v"):
        return make_plan(files_table([(*file, version) for file in files]), shard_bytes, seed).digest

    assert digest() == digest()
    assert digest(**changed) != digest()


def test_samples_are_named_from_below_the_folder_that_all_are_in():
    plan = make_plan(
        table([("s3://b/train/cat/1.jpg", 3), ("s3://b/train/cat/1.cls", 1), ("s3://b/train/dog/1.jpg", 3)])
    )
    assert [(key, [file.name for file in files]) for key, files in plan.samples(0)] == [
        ("cat/1", ["cat/1.cls", "cat/1.jpg"]),
        ("dog/1", ["dog/1.jpg"]),
    ]
    (single,) = make_plan(table([("/data/1.jpg", 3)])).samples(0)
    assert single[0] == "1"


def test_a_file_without_an_ending_gets_one():
    ((key, files),) = make_plan(table([("/d/0001", 3)])).samples(0)
    assert (key, files[0].name, files[0].location) == ("0001", "0001.bin", "/d/0001")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["d/a.jpg", "d/a.JPG"], r"d/a\.jpg and .*d/a\.JPG would both be the field 'jpg' of the sample 'a'"),
        (["d/a.jpg", "d/./a.jpg"], "name it once"),
        (["d/a", "d/a-b.jpg", "d/a.bin"], "would both be the field 'bin'"),
        (["d/a.__key__"], "readers call a sample's name __key__"),
        (["d/a.jpg", "s3://b/a.jpg"], "lies in another place than other files"),
        (["d/a.jpg", "d/a.jpg"], "name it once"),
        (["d/a", "d/a.bin"], "would both be the field 'bin'"),
        (["d/a.jpg", "d/.hidden.jpg"], r"d/\.hidden\.jpg can't be part of a sample"),
        (["d/a.jpg", "d/__meta__/b.jpg"], r"d/__meta__/b\.jpg can't be part of a sample"),
        (["d/a.jpg", "d/\udcff.jpg"], "its name is not UTF-8"),
    ],
)
def test_what_no_reader_would_find_again_is_refused(names, message):
    with pytest.raises(PipelineError, match=message):
        make_plan(table([(name, 1) for name in names]))
