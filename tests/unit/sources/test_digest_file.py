import hashlib
import io
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.sources.digests.digest_file import (
    DigestAbout,
    DigestReader,
    DigestRows,
    ItemKind,
    joined_rows,
    schema,
    write_digest,
)

NAMES = st.binary(max_size=20)
ITEMS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1 << 40), st.binary(max_size=3)), max_size=5)


def rows_of(files):
    """Rows of (location, kind, stamp, items); an item is (bytes before it, its bytes, content)."""
    numbers, offsets, lengths, hashes = [], [], [], b""
    for _, kind, stamp, items in files:
        at = 0
        chosen = [(0, 7, b"all of it")] if kind == ItemKind.FILE else items
        for gap, length, content in chosen:
            offsets.append(at + gap)
            lengths.append(length)
            at += gap + length
            hashes += hashlib.sha256(content).digest()
        numbers.append((kind, at, stamp, len(chosen)))
    kinds, sizes, stamps, counts = zip(*numbers, strict=True)
    return DigestRows(
        [location for location, *_ in files],
        np.array(kinds, np.uint8),
        np.array(sizes, np.int64),
        np.array(stamps, np.uint64),
        np.concatenate([[0], np.cumsum(counts)]),
        np.array(offsets, np.int64),
        np.array(lengths, np.int64),
        np.frombuffer(hashes, np.uint8).reshape(-1, 32),
    )


ROWS = st.lists(
    st.tuples(NAMES, st.sampled_from(ItemKind), st.integers(0, (1 << 64) - 1), ITEMS), min_size=1, max_size=6
).map(rows_of)


def written(parts, columns=None):
    file = io.BytesIO()
    about = DigestAbout(columns, sum(len(each.locations) for each in parts), sum(len(each.offsets) for each in parts))
    write_digest(file, about, parts)
    return file.getvalue()


def read(data):
    reader = DigestReader(io.BytesIO(data), len(data))
    return reader.about, list(reader)


def plain(rows):
    return [rows.locations, *(column.tolist() for column in rows[1:])]


@given(st.lists(ROWS, max_size=4), st.none() | st.lists(st.text(max_size=5)).map(tuple))
def test_what_is_written_is_read(parts, columns):
    about, found = read(written(parts, columns))
    assert about.columns == columns
    assert list(map(plain, found)) == list(map(plain, parts))


@given(ROWS, st.data())
def test_rows_are_chosen_with_their_items(rows, data):
    places = data.draw(st.lists(st.integers(0, len(rows.locations) - 1), min_size=1))
    one_by_one = [rows.chosen(np.array([place])) for place in places]
    assert plain(rows.chosen(np.array(places))) == plain(joined_rows(one_by_one))


SAMPLE = written(
    [rows_of([(b"a", ItemKind.FILE, 1, []), (b"b.tar", ItemKind.MEMBER, 2, [(512, 3, b"x"), (509, 4, b"y")])])] * 2
)


def test_other_programs_can_read_it():
    table = pa.ipc.open_stream(SAMPLE).read_all()
    assert table.schema.equals(schema())
    item = {"offset": 512, "bytes": 3, "sha256": hashlib.sha256(b"x").digest()}
    assert table.to_pylist()[1]["items"][0] == item


def test_a_part_of_a_digest_is_none():
    for size in range(len(SAMPLE)):
        with pytest.raises(ValueError, match="is"):
            read(SAMPLE[:size])


def stream(table, **options):
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return file.getvalue()


def changed(name, column):
    """A digest with another column."""
    table = pa.ipc.open_stream(SAMPLE).read_all()
    at = table.schema.get_field_index(name)
    return stream(table.set_column(at, table.schema.field(name), column))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b"PAR1" * 100, "no Arrow stream"),
        (stream(pa.table({"a": [1]})), "columns are others"),
        (stream(pa.ipc.open_stream(SAMPLE).read_all().replace_schema_metadata({})), "no digest"),
        (stream(pa.ipc.open_stream(SAMPLE).read_all(), compression="zstd"), "compressed"),
        (SAMPLE.replace(b'"version":1', b'"version":2'), "version 2"),
        (SAMPLE.replace(b'"sha256"', b'"blake3"'), "blake3"),
        (SAMPLE.replace(b'"files":4', b'"files":5'), "says that it has others"),
        (SAMPLE.replace(b'"version":1', b'"version":"'), "damaged"),
        (changed("bytes", pa.array([7, 1, 7, 1])), "items lie outside"),
        (changed("bytes", pa.array([7, -1, 7, 1028])), "files are damaged"),
        (changed("kind", pa.array([0, 9, 0, 1], pa.uint8())), "files are damaged"),
        (changed("kind", pa.array([0, 0, 0, 1], pa.uint8())), "items lie outside"),
    ],
)
def test_what_is_no_digest_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        read(data)


def test_a_message_takes_no_more_memory_than_the_file_has():
    """The length of a record batch's body is that of its metadata, which anybody can write."""
    body = SAMPLE.index(b"a" + b"b.tar") - 8
    tracemalloc.start()
    try:
        for at in range(body):
            for claim in (1 << 30, (1 << 62) + 8):
                damaged = SAMPLE[:at] + claim.to_bytes(8, "little") + SAMPLE[at + 8 :]
                try:
                    read(damaged)
                except ValueError:
                    continue
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20
