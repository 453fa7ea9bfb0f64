"""Conformance suite of block stores, which the tests of a store subclass.

    class TestMyStore(BlockStoreSuite):
        @pytest.fixture
        def store(self) -> MyStore:
            return MyStore(...)

Each test wants a store of its own that is empty; ``again`` is one that others opened at the same place, if there can be
such. Needs pytest.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millrace.blocks.block_format import BlockInfo
from millrace.blocks.block_keys import KEY_BYTES
from millrace.blocks.block_reader import BlockReader
from millrace.blocks.block_writer import BlockWriter
from millrace.blocks.stores.block_store import BlockStore
from millrace.errors import BlockMissingError, CacheError

POINT = "0123456789abcdef0123456789abcdef"


def put(store: BlockStore, name: str, data: bytes, point: str = POINT) -> None:
    """Publish ``data`` as a block."""
    with store.draft() as draft:
        draft.write(data)
        draft.publish(point, name)


def get(store: BlockStore, name: str, start: int = 0, stop: int | None = None, point: str = POINT) -> bytes:
    """Read bytes ``start`` to ``stop`` of a block; None: to its end."""
    with contextlib.closing(store.open(point, name)) as block:
        (data,) = block.read([(start, block.nbytes if stop is None else stop)])
        return data.tobytes()


class BlockStoreSuite:
    """Tests of :class:`millrace.blocks.stores.block_store.BlockStore`; a subclass gives the fixture ``store``."""

    reads_after_deletion = False
    """Whether a block that is open can be read after it was deleted."""

    @pytest.fixture
    def store(self) -> BlockStore:
        """Make the store under test, empty."""
        raise NotImplementedError

    @pytest.fixture
    def again(self, store: BlockStore) -> BlockStore:
        """Open the same blocks through another object, as another process sees them."""
        return store

    def test_nothing_is_there_at_first(self, store: BlockStore) -> None:
        assert store.blocks() == {}
        assert store.blocks(POINT) == {}
        with pytest.raises(BlockMissingError, match=f"{POINT}/b1 does not exist"):
            store.open(POINT, "b1")

    def test_what_was_written_can_be_read(self, store: BlockStore, again: BlockStore) -> None:
        data = bytes(range(256)) * 100
        with store.draft() as draft:
            for start in range(0, len(data), 999):
                draft.write(memoryview(data)[start : start + 999])
            draft.publish(POINT, "b1")
        assert get(again, "b1") == data
        with contextlib.closing(again.open(POINT, "b1")) as block:
            assert (block.name, block.nbytes) == ("b1", len(data))
            assert "b1" in block.location
            found = block.read([(9, 3000), (0, 0), (5, 9), (len(data) - 4, len(data))])
            assert [part.tobytes() for part in found] == [data[9:3000], b"", data[5:9], data[-4:]]
            assert block.read([]) == []
            block.drop()
            assert block.read([(7, 8)])[0].tobytes() == data[7:8]

    def test_a_block_that_has_become_another_has_another_version(self, store: BlockStore, again: BlockStore) -> None:
        versions = []
        for data in (b"0123456789", b"0123456780"):
            put(store, "b1", data)
            for each in (store, again):
                with contextlib.closing(each.open(POINT, "b1")) as block:
                    versions.append(block.version())
        assert versions[0] == versions[1] != versions[2] == versions[3]

    def test_what_was_read_belongs_to_the_reader(self, store: BlockStore) -> None:
        put(store, "b1", b"0123456789")
        block = store.open(POINT, "b1")
        one, other = block.read([(0, 10), (0, 10)])
        one[:] = 0
        block.close()
        assert other.tobytes() == get(store, "b1") == b"0123456789"

    def test_much_that_was_read_belongs_to_the_reader_too(self, store: BlockStore) -> None:
        data = bytes(range(256)) * (12 << 10)
        put(store, "b1", data)
        parts = [(64, 1 << 20), (1 << 20, 2 << 20), ((2 << 20) + 64, 3 << 20)]
        block = store.open(POINT, "b1")
        found, others = block.read(parts), block.read(parts)
        assert all(each.ctypes.data % 16 == 0 for each in found)
        found[0][:] = 0
        found[1][-1:] = 0
        block.close()
        store.delete(POINT, "b1")
        expected = [data[start:stop] for start, stop in parts]
        assert [each.tobytes() for each in others] == expected
        assert found[2].tobytes() == expected[2]

    def test_a_block_without_bytes(self, store: BlockStore) -> None:
        put(store, "empty", b"")
        assert store.blocks() == {(POINT, "empty"): 0}
        assert get(store, "empty") == b""

    def test_a_block_of_several_megabytes(self, store: BlockStore) -> None:
        data = bytes(range(251)) * (6 * 4096)  # more than a part of an upload
        put(store, "large", data)
        assert get(store, "large") == data

    def test_listing(self, store: BlockStore, again: BlockStore) -> None:
        put(store, "b1", b"1")
        put(store, "b2", b"22")
        put(store, "b1", b"333", point="other")
        assert again.blocks() == {(POINT, "b1"): 1, (POINT, "b2"): 2, ("other", "b1"): 3}
        assert again.blocks("other") == {("other", "b1"): 3}
        assert again.blocks("none") == {}

    def test_a_draft_is_not_there_before_it_is_published(self, store: BlockStore, again: BlockStore) -> None:
        with store.draft() as draft:
            draft.write(b"x" * 100_000)
            assert again.blocks() == {}
            draft.publish(POINT, "b1")
            assert again.blocks() == {(POINT, "b1"): 100_000}

    def test_a_draft_that_is_given_up_leaves_nothing(self, store: BlockStore, again: BlockStore) -> None:
        with store.draft() as draft:
            draft.write(b"x" * 100_000)
        with contextlib.suppress(ZeroDivisionError), store.draft() as draft:
            draft.write(b"x" * 100_000)
            raise ZeroDivisionError
        assert again.blocks() == {}

    def test_deleting(self, store: BlockStore, again: BlockStore) -> None:
        put(store, "b1", b"1")
        put(store, "b2", b"2")
        again.delete(POINT, "b1")
        again.delete(POINT, "b1")
        again.delete("nothing", "b1")
        assert store.blocks() == {(POINT, "b2"): 1}
        with pytest.raises(BlockMissingError):
            store.open(POINT, "b1")

    def test_deleting_under_a_reader(self, store: BlockStore) -> None:
        put(store, "b1", b"0123456789")
        with contextlib.closing(store.open(POINT, "b1")) as block:
            store.delete(POINT, "b1")
            if self.reads_after_deletion:
                assert block.read([(2, 4)])[0].tobytes() == b"23"
            else:
                with pytest.raises(BlockMissingError):
                    block.read([(2, 4)])

    def test_the_last_to_publish_a_name_wins(self, store: BlockStore) -> None:
        with store.draft() as first, store.draft() as second:
            second.write(b"second")
            first.write(b"first")
            second.publish(POINT, "b1")
            first.publish(POINT, "b1")
        assert get(store, "b1") == b"first"
        assert store.blocks() == {(POINT, "b1"): 5}

    def test_many_write_one_name_at_once(self, store: BlockStore, again: BlockStore) -> None:
        writers = 4
        together = threading.Barrier(writers, timeout=60)
        stores = [store, again] * (writers // 2)

        def work(number: int) -> None:
            data = bytes([number]) * 300_000
            with stores[number].draft() as draft:
                draft.write(data)
                together.wait()
                draft.publish(POINT, "b1")
            assert len(set(get(stores[number], "b1"))) == 1, "of one writer alone"

        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(work, range(writers)))
        assert store.blocks() == {(POINT, "b1"): 300_000}

    @pytest.mark.parametrize("name", ["", "..", "../b1", "a/b", ".drafts", "A", "a" * 65, "a\n"])
    def test_no_name_leads_elsewhere(self, store: BlockStore, name: str) -> None:
        for call in (
            lambda: store.open(POINT, name),
            lambda: store.open(name, "b1"),
            lambda: store.delete(POINT, name),
            lambda: put(store, name, b""),
            lambda: put(store, "b1", b"", point=name),
        ):
            with pytest.raises(CacheError, match="is no name of a point or block"):
                call()
        assert store.blocks() == {}

    def test_blocks_of_items(self, store: BlockStore, again: BlockStore) -> None:
        keys = [bytes([number]) * KEY_BYTES for number in range(50)]
        with store.draft() as draft:
            writer = BlockWriter(draft)
            for number, key in enumerate(keys):
                writer.add(key, [{"number": number, "data": bytes(number * 200)}] * (number % 3))
            info: BlockInfo = writer.finish()
            draft.publish(POINT, info.name)
        assert again.blocks() == {(POINT, info.name): info.nbytes}
        with contextlib.closing(again.open(POINT, info.name)) as block:
            items = BlockReader(block).read(range(len(keys)))
        assert items == [[{"number": n, "data": bytes(n * 200)}] * (n % 3) for n in range(len(keys))]
