"""The service's store as the dispatcher sees it."""

import asyncio
import shutil
from pathlib import Path

import numpy as np

from millrace.blocks.block_writer import BlockWriter
from millrace.blocks.store_benchmark import POINT
from millrace.blocks.stores.file_store import FileStore
from millrace.control import inputs as inp
from millrace.control.actions import DeleteBlocks, ListStore
from millrace.control.state.cache_state import place_of
from millrace.dispatcher.store_janitor import StoreJanitor
from millrace.protocol.cache_messages import KeptBlock

PLACE = "ab" * 16


def put(store: FileStore, point: str, writer: str = "", *, whole: bool = True) -> KeptBlock:
    """A block of three items, or what only looks like one."""
    with store.draft() as draft:
        if not whole:
            draft.write(b"no block")
            draft.publish(point, "cd" * 16)
            return KeptBlock("cd" * 16, 8)
        items = BlockWriter(draft, writer=writer)
        for number in range(3):
            items.add(bytes([number]) * 16, [np.arange(number)])
        info = items.finish()
        draft.publish(point, info.name)
    return KeptBlock(info.name, info.nbytes, info.items)


async def asked(folder: Path, *actions: ListStore | DeleteBlocks) -> list[inp.Input]:
    """What a shelf answers."""
    answers: list[inp.Input] = []
    shelf = StoreJanitor(str(folder), answers.append)
    await shelf.open()
    for action in actions:
        shelf.do(action)
    await shelf.close()
    return answers


def test_blocks_are_listed_with_their_items_and_others_are_removed(tmp_path):
    store = FileStore(str(tmp_path))
    block = put(store, PLACE)
    put(store, PLACE, whole=False)
    (answer,) = asyncio.run(asked(tmp_path, ListStore([7], {})))
    assert answer == inp.StoreListed({PLACE: [block]}, [7], {PLACE: ""})
    assert list(store.blocks()) == [(PLACE, block.name)]


def test_blocks_that_are_known_with_their_size_are_not_looked_into(tmp_path):
    block = put(FileStore(str(tmp_path)), PLACE)
    (answer,) = asyncio.run(asked(tmp_path, ListStore([], {PLACE: {block.name: block.bytes}})))
    assert answer == inp.StoreListed({PLACE: [KeptBlock(block.name, block.bytes)]})
    (answer,) = asyncio.run(asked(tmp_path, ListStore([], {PLACE: {block.name: 7}})))
    assert answer == inp.StoreListed({PLACE: [block]}, writers={PLACE: ""})


def test_blocks_are_listed_with_their_writers_and_those_in_anothers_place_are_removed(tmp_path):
    store = FileStore(str(tmp_path))
    red, blue = (place_of(PLACE, "", tenant) for tenant in ("red", "blue"))
    block = put(store, red, "red")
    for writer in ("red", ""):
        put(store, blue, writer)
        (answer,) = asyncio.run(asked(tmp_path, ListStore([], {})))
        assert answer == inp.StoreListed({red: [block]}, writers={red: "red"})
        assert list(store.blocks()) == [(red, block.name)]
    put(store, PLACE, "red")
    asyncio.run(asked(tmp_path, ListStore([], {})))
    assert list(store.blocks()) == [(red, block.name)]


def test_a_block_that_was_truncated_is_removed(tmp_path):
    block = put(FileStore(str(tmp_path)), PLACE)
    path = tmp_path / PLACE / block.name
    path.write_bytes(path.read_bytes()[:-1])
    (answer,) = asyncio.run(asked(tmp_path, ListStore([], {PLACE: {block.name: block.bytes}})))
    assert answer == inp.StoreListed({})
    assert not path.exists()


def test_a_store_that_is_gone_is_not_one_without_blocks(tmp_path, caplog):
    folder = tmp_path / "cache"

    async def removed_meanwhile() -> list[inp.Input]:
        answers: list[inp.Input] = []
        shelf = StoreJanitor(str(folder), answers.append)
        await shelf.open()
        shutil.rmtree(folder)
        shelf.do(ListStore([7], {}))
        shelf.do(ListStore([7], {}))
        await shelf.close()
        return answers

    assert asyncio.run(removed_meanwhile()) == [inp.StoreListed(None), inp.StoreListed(None)]
    assert caplog.text.count("cannot be listed") == 1


def test_what_a_measurement_left_behind_is_removed_as_the_service_starts_and_let_alone_later(tmp_path):
    store = FileStore(str(tmp_path))
    put(store, POINT, whole=False)
    asyncio.run(asked(tmp_path))
    assert not store.blocks()

    async def measured_meanwhile() -> list[inp.Input]:
        answers: list[inp.Input] = []
        shelf = StoreJanitor(str(tmp_path), answers.append)
        await shelf.open()
        put(store, POINT, whole=False)
        shelf.do(ListStore([], {}))
        await shelf.close()
        return answers

    assert asyncio.run(measured_meanwhile()) == [inp.StoreListed({})]
    assert len(store.blocks()) == 1


def test_blocks_are_deleted_and_it_is_said(tmp_path):
    store = FileStore(str(tmp_path))
    block = put(store, PLACE)
    (answer,) = asyncio.run(asked(tmp_path, DeleteBlocks(PLACE, [block.name, "ef" * 16])))
    assert answer == inp.BlocksGone(PLACE, [block.name, "ef" * 16])
    assert not store.blocks()


def test_a_block_that_cannot_be_deleted_stays_and_is_said_once(tmp_path, caplog):
    block = put(FileStore(str(tmp_path)), PLACE)
    path = tmp_path / PLACE / block.name
    path.unlink()
    path.mkdir()  # what cannot be unlinked, not even by root
    answers = asyncio.run(asked(tmp_path, DeleteBlocks(PLACE, [block.name]), DeleteBlocks(PLACE, [block.name])))
    assert answers == [inp.BlocksGone(PLACE, [], [block.name])] * 2
    assert caplog.text.count("stays") == 1
