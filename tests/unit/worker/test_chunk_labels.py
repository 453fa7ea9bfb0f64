"""Labels: what is of one chunk has one label, which names the data, the number of chunks and the chunk."""

from collections import Counter

import numpy as np
import pytest

from millrace.planning.byte_ranges import aligned_blocks
from millrace.planning.chunks import ChunkMembers
from millrace.planning.columns import integers
from millrace.planning.shard_chunks import ShardChunks
from millrace.planning.split_table import Pieces, Split, SplitTable, positions_table, splits_table
from millrace.protocol.source_cache_messages import chunk_label, name_of_data
from millrace.sources.splitting import entry_of
from millrace.sources.store_requests import Entry
from millrace.worker.chunk_labels import chunk_labels

SOURCE = "from_files()|1000"
DATA = name_of_data(SOURCE)


def item(number):
    return Entry("s3://bucket/file", item=number)


def test_an_item_has_the_label_of_its_chunk():
    label, members = chunk_labels(SOURCE, positions_table(1000), 7), ChunkMembers(1000, 7)
    for chunk in range(7):
        size = int(members.bounds[chunk + 1] - members.bounds[chunk])
        for number in members.units(chunk, np.arange(size)).tolist():
            assert label(item(number)) == chunk_label(DATA, 7, chunk)
    labels = Counter(label(item(number)) for number in range(1000))
    assert sorted(labels.values()) == sorted(np.diff(members.bounds).tolist())
    assert label(item(-1)) == DATA


def test_data_that_are_read_as_a_whole_have_their_name_as_their_label():
    for table in (positions_table(1000), splits_table([Split("s3://bucket/a", 0, 9, 0, 1, 9)] * 40)):
        label = chunk_labels(SOURCE, table, 0)
        assert {label(item(3)), label(Entry("s3://bucket/a", 2, 5))} == {DATA}


def pieces_of(shards, to_a_shard):
    """Splits of shards of 2.5 MiB pieces, which begin anywhere in a block of one MiB."""
    size = 5 << 19
    return [
        Split(f"s3://bucket/{shard:03}", piece * size, piece * size + size, 3 * piece, 3, size, "v")
        for shard in range(shards)
        for piece in range(to_a_shard)
    ]


@pytest.mark.parametrize("splits", [pieces_of(30, 4), pieces_of(1, 60), pieces_of(700, 2)])
def test_each_range_of_a_piece_has_the_label_of_its_chunk(splits):
    table = splits_table(splits)
    label, groups = chunk_labels(SOURCE, table, 7), table.summary().groups
    assert groups is not None
    of_splits = ShardChunks(groups, 7).of_splits(len(splits))
    for number, split in enumerate(splits):
        entry = entry_of(split)
        for start, stop in aligned_blocks(entry.start, entry.stop):
            assert label(entry.part(start, stop)) == chunk_label(DATA, 7, int(of_splits[number]))
    assert label(Entry("s3://bucket/index", 0, 9)) == DATA, "it is of no split"


def test_each_range_of_a_whole_shard_has_the_label_of_its_chunk():
    splits = [Split(f"s3://bucket/{shard}", first_record=0, bytes=3 << 20, version="v") for shard in range(50)]
    table = splits_table(splits)
    label, groups = chunk_labels(SOURCE, table, 10), table.summary().groups
    assert groups is not None
    of_splits = ShardChunks(groups, 10).of_splits(50)
    for number, split in enumerate(splits):
        entry = entry_of(split)
        for start, stop in aligned_blocks(0, entry.size):
            assert label(entry.part(start, stop)) == chunk_label(DATA, 10, int(of_splits[number]))


def test_samples_that_are_read_each_for_itself_are_dealt_to_chunks_as_files_are():
    names = splits_table([Split("s3://bucket/a")] * 100).names
    starts, stops = integers(range(0, 1000, 10)), integers(range(10, 1010, 10))
    ones = integers([1] * 100)
    table = SplitTable(True, 100, names, ones, pieces=Pieces(starts, stops, integers(range(100)), ones))
    label, members = chunk_labels(SOURCE, table, 5), ChunkMembers(100, 5)
    for number in range(100):
        entry = entry_of(table.splits[number])._replace(item=number)
        assert label(entry) == chunk_label(DATA, 5, int(members.chunk_of(np.array([number]))[0]))
