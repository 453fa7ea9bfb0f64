import io
import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.sources import storage
from millrace.sources.packs.pack_index import PackedShard, PackIndex, decode_index, encode_index, merged, read_index
from millrace.sources.reads import Reads


def part(number, sizes):
    offsets = np.cumsum([0, *sizes[:-1]])
    return PackIndex(
        "p",
        [PackedShard(f"shard-{number:06}.tar", sum(sizes) + 1024)],
        np.zeros(len(sizes), np.int32),
        offsets.astype(np.int64),
        np.array(sizes, np.int64),
        np.arange(len(sizes), dtype=np.uint32),
        [f"{number}/{place}" for place in range(len(sizes))],
    )


def same(one, other):
    return one.plan == other.plan and all(np.array_equal(a, b) for a, b in zip(one[1:], other[1:], strict=True))


INDEX = merged([part(0, [1024, 512]), part(1, [2048]), part(2, [512, 512])])


@given(st.lists(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=5), min_size=1, max_size=5))
def test_an_index_is_read_as_it_was_written_and_falls_into_its_parts(sizes):
    parts = [part(number, each) for number, each in enumerate(sizes)]
    index = merged(parts)
    found = decode_index(encode_index(index))
    assert found is not None
    assert same(found, index)
    for number, each in enumerate(parts):
        assert same(found.part(number), each)


@pytest.mark.parametrize(
    "damaged",
    [
        INDEX._replace(shard=INDEX.shard[::-1].copy()),
        INDEX._replace(shard=INDEX.shard + 1),
        INDEX._replace(shard=INDEX.shard - 1),
        INDEX._replace(offset=INDEX.offset - 1),
        INDEX._replace(offset=INDEX.offset[::-1].copy()),
        INDEX._replace(bytes=INDEX.bytes * 0),
        INDEX._replace(bytes=INDEX.bytes + 4096),
        INDEX._replace(shards=[]),
    ],
)
def test_samples_that_overlap_or_lie_nowhere_are_refused(damaged):
    with pytest.raises(ValueError, match="its samples overlap, or lie outside their shards"):
        decode_index(encode_index(damaged))


def test_what_is_no_index_is_none_and_what_cannot_be_read_is_said(bucket, caplog):
    place = f"{bucket}index.parquet"
    assert read_index(place, Reads()) is None
    file = io.BytesIO()
    pq.write_table(pa.table({"id": [1]}), file)
    storage.write(place, file.getvalue())
    assert read_index(place, Reads()) is None
    assert not caplog.records
    newer = pq.read_table(pa.BufferReader(encode_index(INDEX)))
    newer = newer.replace_schema_metadata({"millrace.pack": '{"version": 2}'})
    file = io.BytesIO()
    pq.write_table(newer, file)
    for data, why in ((file.getvalue(), "it has version 2"), (b"<html>", "it is no Parquet file")):
        storage.write(place, data)
        with caplog.at_level(logging.WARNING):
            assert read_index(place, Reads()) is None
        assert why in caplog.text
        caplog.clear()
