"""Keys by which cache servers are asked: of the hash of what is read, else of where it lies and its version."""

import pytest

from millrace.planning.split_table import Split, stamp_of
from millrace.protocol.source_cache_messages import CONTENT, MOST_ITEM_BYTES, NAME
from millrace.sources.splitting import entry_of
from millrace.sources.store_requests import Entry
from millrace.worker.source_cache import key_of

PIECE = Split("s3://bucket/a.tar", 1000, 5000, 3, 7, 4000, "v1")


def test_a_piece_of_a_shard_has_a_key_though_nobody_listed_the_shards_size():
    entry = entry_of(PIECE)
    assert entry.size < 0
    key = key_of(entry)
    assert key is not None
    assert key.startswith(NAME)
    assert key_of(entry._replace(item=5)) == key, "however its source numbers it"
    others = [
        entry._replace(version="v2"),
        entry._replace(location="s3://bucket/b.tar"),
        entry.part(1000, 4999),
        entry.part(1001, 5000),
        entry._replace(size=10_000),
    ]
    assert len({key, *map(key_of, others)}) == 6


def test_a_stamp_stands_for_its_version():
    entry = Entry("s3://bucket/a", 0, 9, "v1", 9)
    assert key_of(entry) == key_of(entry._replace(version=stamp_of("v1")))


def test_a_hash_that_is_known_is_the_key():
    assert key_of(Entry("s3://bucket/a", 0, 9, "", 9, b"h" * 32)) == CONTENT + b"h" * 32


@pytest.mark.parametrize(
    "entry",
    [
        entry_of(PIECE)._replace(version=""),
        entry_of(PIECE)._replace(version=0),
        Entry("s3://bucket/a", 0, -1, "v1"),
        Entry("s3://bucket/a", 4, 4, "v1", 9),
        Entry("s3://bucket/a", 0, MOST_ITEM_BYTES + 1, "v1", MOST_ITEM_BYTES + 1),
    ],
)
def test_what_could_change_unseen_or_has_no_known_bytes_or_too_many_has_none(entry):
    assert key_of(entry) is None
