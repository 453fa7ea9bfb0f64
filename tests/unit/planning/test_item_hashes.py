import hashlib

import msgspec
import numpy as np
import pytest

from millrace.errors import ProtocolError
from millrace.planning.columns import integers
from millrace.planning.item_hashes import HASH_BYTES, ItemHashes
from millrace.planning.split_table import (
    Split,
    files_table,
    pack_tables,
    splits_table,
    unpack_tables,
    without_hashes,
)


def hashes(count):
    return b"".join(hashlib.sha256(bytes([number])).digest() for number in range(count))


FILES = files_table([("a", 1, ""), ("b", 2, "")])
PIECES = splits_table([Split("a", 0, 10), Split("a", 10, 30), Split("b", 0, 5)])
WHOLE = ItemHashes(hashes(2))
PLACED = ItemHashes(hashes(4), *map(integers, ([0, 1, 0], [1, 3, 0], [2, 12, 15, 20], [3, 1, 2, 9])))


@pytest.mark.parametrize(("table", "items"), [(FILES, WHOLE), (PIECES, PLACED)], ids=["files", "pieces"])
def test_hashes_travel_with_their_table(table, items):
    hashed = msgspec.structs.replace(table, items=items)
    assert unpack_tables(pack_tables({0: hashed}))[0].items == items
    assert pack_tables(without_hashes({0: hashed})) == pack_tables({0: table})


def test_the_hash_of_a_file_stands_at_its_position():
    assert (
        WHOLE.array[np.array([1, 0, 1])].tobytes()
        == hashes(2)[HASH_BYTES:] + hashes(2)[:HASH_BYTES] + hashes(2)[HASH_BYTES:]
    )
    assert WHOLE.rows(1) == slice(1, 2)


def test_an_entry_has_the_items_that_its_columns_say():
    assert [PLACED.rows(entry) for entry in range(3)] == [slice(0, 1), slice(1, 4), slice(0, 0)]
    assert PLACED.starts[PLACED.rows(1)].tolist() == [12, 15, 20]
    assert PLACED.array[PLACED.rows(1)].tobytes() == hashes(4)[HASH_BYTES:]


@pytest.mark.parametrize(
    "damaged",
    [
        lambda: ItemHashes(hashes(2)[:-1]),
        lambda: ItemHashes(hashes(2), integers([0]), integers([2, 0]), integers([0, 1]), integers([1, 1])),
        lambda: ItemHashes(hashes(2), integers([0]), integers([3]), integers([0, 1]), integers([1, 1])),
        lambda: ItemHashes(hashes(2), integers([-1]), integers([2]), integers([0, 1]), integers([1, 1])),
        lambda: ItemHashes(hashes(2), integers([0]), integers([2]), integers([0]), integers([1, 1])),
        lambda: ItemHashes(hashes(2), offsets=integers([0, 1])),
        lambda: msgspec.structs.replace(FILES, items=ItemHashes(hashes(3))),
        lambda: msgspec.structs.replace(PIECES, items=WHOLE),
    ],
)
def test_hashes_that_are_not_those_of_their_entries_are_refused(damaged):
    with pytest.raises(ValueError, match="damaged"):
        damaged()


def test_damaged_hashes_are_no_table():
    packed = pack_tables({0: msgspec.structs.replace(FILES, items=WHOLE)})
    with pytest.raises(ProtocolError):
        unpack_tables(packed.replace(b"\xc4\x40" + hashes(2), b"\xc4\x41" + hashes(2) + b"\0"))
