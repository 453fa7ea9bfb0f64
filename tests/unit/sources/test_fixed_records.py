"""Records of one length."""

import gzip
import re
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.errors import SourceCorruptError
from millrace.graph.source_nodes import FromFixedLengthRecords
from millrace.sources import open_source, storage
from millrace.sources.fixed_records import list_source
from millrace.sources.reads import Reads


@settings(max_examples=20)
@given(
    st.integers(0, 30),
    st.integers(1, 5),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.integers(1, 20),
    st.data(),
)
def test_records_are_tf_datas_wherever_files_are_cut(
    tmp_path_factory, count, record, header, footer, packed, size, data
):
    raw = b"h" * header + bytes(number % 251 for number in range(count * record)) + b"f" * footer
    path = tmp_path_factory.mktemp("records") / ("a.gz" if packed else "a.bin")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    theirs = tf.data.FixedLengthRecordDataset(
        str(path), record, header, footer, compression_type="GZIP" if packed else None
    )
    expected = list(theirs.as_numpy_iterator())
    node = FromFixedLengthRecords(patterns=(str(path),), record_bytes=record, header_bytes=header, footer_bytes=footer)
    with Reads() as reads:
        table = list_source(node, reads, size=size)
        assert table.count == (-1 if packed else count)
        source: Any = open_source(node, table, reads)
        lists = [list(source.read(split, 0, -1, lambda: 4)) for split in table.splits]
        assert [each for split in lists for some in split for each in some] == expected
        if not packed and table.splits:
            split = data.draw(st.sampled_from(list(table.splits)))
            start = data.draw(st.integers(0, split.count))
            stop = data.draw(st.integers(start, split.count))
            some = [each for part in source.read(split, start, stop, lambda: 2) for each in part]
            assert some == expected[split.first_record :][start:stop]


def test_positions_are_known_in_a_store_too():
    storage.write("memory://records/a.bin", bytes(range(200)) * 500)
    dataset = Dataset.from_fixed_length_records("memory://records/a.bin", 10)
    assert len(dataset.batch(7, drop_remainder=True)) == 10_000 // 7
    assert next(iter(dataset.skip(9_999))) == bytes(range(190, 200))


@pytest.mark.parametrize("packed", [False, True])
def test_other_sizes_are_refused(tmp_path, packed):
    raw = b"h" + b"12345" * 3 + b"f"
    path = tmp_path / ("a.gz" if packed else "a.bin")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    with pytest.raises(SourceCorruptError, match=re.escape(f"{path} has 17 bytes, which are not whole records of 4")):
        list(Dataset.from_fixed_length_records(str(path), 4, header_bytes=1, footer_bytes=2))
