"""Items on disk: found by content and by name, bounded, checked, and there again after a restart or a crash."""

import errno
import itertools
import os
import stat

import pytest

from millrace.cache_server.item_exchange import content_of
from millrace.cache_server.item_store import ItemStore
from millrace.errors import CacheError

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_store(tmp_path, clock):
    opened = []

    def open_one(most_bytes: int = 64 * MIB, folder=tmp_path / "cache", **options):
        opened.append(ItemStore(str(folder), most_bytes, clock, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def read(store: ItemStore, *, content: bytes = b"", name: bytes = b"") -> bytes | None:
    contents, names = store.find([content] if content else [], [name] if name else [])
    (item,) = contents + names
    return None if item is None else store.read(item)


def add(store: ItemStore, data: bytes, name: bytes | None = None) -> bool:
    return store.add(data, content_of(data), name) is not None


def test_nobody_who_has_a_part_of_a_hash_knows_where_in_the_index_the_item_is(open_store):
    """Looking there would find warm what was read for the item, which takes less time."""
    store = open_store()
    contents = [content_of(bytes([number])) for number in range(200)]
    for number, content in enumerate(contents):
        assert store.add(bytes([number]), content, content_of(b"name" + content)) is not None
    for table in ("items", "names"):
        places = [place for (place,) in store._base.execute(f"select place from {table}")]
        assert len(places) == len(set(places)) == 200
        assert not {place[:4] for place in places} & {content[:4] for content in contents}
    by_place = [content for (content,) in store._base.execute("select start from items order by place")]
    by_content = [number for number, _ in sorted(enumerate(contents), key=lambda each: each[1])]
    ahead = dict(itertools.pairwise(by_place))
    neighbours = sum(ahead.get(one) == other for one, other in itertools.pairwise(by_content))
    assert neighbours < 10, "of 199, one would be by chance"


def test_an_item_is_found_by_its_content_and_by_its_name(open_store):
    store = open_store()
    assert add(store, b"some bytes", b"here")
    assert add(store, b"others")
    assert read(store, content=content_of(b"some bytes")) == b"some bytes"
    assert read(store, name=b"here") == b"some bytes"
    assert read(store, content=content_of(b"others")) == b"others"
    assert read(store, name=b"there") is None
    assert store.totals == (2, 16)


def test_equal_bytes_under_two_names_are_kept_once(open_store):
    store = open_store()
    assert add(store, b"same", b"one")
    assert add(store, b"same", b"two")
    assert read(store, name=b"one") == read(store, name=b"two") == b"same"
    assert store.totals == (1, 4)


def test_a_name_goes_on_leading_to_what_it_led_to(open_store):
    store = open_store()
    add(store, b"first", b"name")
    assert add(store, b"second", b"name")
    assert read(store, name=b"name") == b"first"


def test_what_was_there_is_there_after_a_restart(open_store):
    store = open_store()
    items = [os.urandom(1000) for _ in range(50)]
    for number, data in enumerate(items):
        add(store, data, b"%d" % number)
    store.close()
    store = open_store()
    assert [read(store, name=b"%d" % number) for number in range(50)] == items
    assert add(store, b"new")
    assert read(store, content=content_of(b"new")) == b"new"


def test_one_process_at_a_time_uses_a_folder(open_store):
    open_store()
    with pytest.raises(CacheError, match="another cache server uses"):
        open_store()


def test_the_folder_is_its_owners_alone(open_store, tmp_path):
    add(open_store(), b"x")
    assert stat.S_IMODE(os.stat(tmp_path / "cache").st_mode) == 0o700
    for name in os.listdir(tmp_path / "cache"):
        assert not stat.S_IMODE(os.stat(tmp_path / "cache" / name).st_mode) & 0o077, name


def test_what_is_in_use_stays_when_the_store_is_full(open_store, clock):
    store = open_store(4 * MIB, idle_s=600.0)
    kept = [add(store, os.urandom(MIB // 4)) for _ in range(32)]
    assert kept == [True] * 16 + [False] * 16
    clock.now += 599.0
    assert not add(store, os.urandom(MIB // 4))


def test_what_nobody_has_read_for_long_goes_first(open_store, clock):
    store = open_store(4 * MIB, idle_s=600.0)
    items = [os.urandom(MIB // 4) for _ in range(16)]
    for number, data in enumerate(items):
        add(store, data, b"%d" % number)
    clock.now += 601.0
    assert read(store, name=b"0") is not None  # keeps the segment that it lies in
    assert add(store, b"new")
    there = [read(store, name=b"%d" % number) is not None for number in range(16)]
    assert there == [True] * 4 + [False] * 4 + [True] * 8


def test_a_smaller_bound_holds_from_the_start(open_store):
    store = open_store(4 * MIB)
    for _ in range(16):
        add(store, os.urandom(MIB // 4))
    store.close()
    assert open_store(2 * MIB).totals == (8, 2 * MIB)


def test_a_store_smaller_than_a_segment_keeps_what_fits(open_store):
    store = open_store(1000)
    assert [add(store, os.urandom(400)) for _ in range(3)] == [True, True, False]
    assert store.totals == (2, 800)


def test_an_item_larger_than_the_store_is_not_kept(open_store):
    assert not add(open_store(MIB), bytes(MIB + 1))


def test_an_item_larger_than_a_segment_has_one_of_its_own(open_store):
    store = open_store()
    data = os.urandom(3 * MIB)
    assert add(store, data)
    assert read(store, content=content_of(data)) == data


def test_damaged_bytes_are_as_if_they_had_never_been_there(open_store, tmp_path):
    store = open_store()
    add(store, b"good bytes", b"one")
    add(store, b"more bytes", b"two")
    (segment,) = (tmp_path / "cache").glob("*.segment")
    with open(segment, "r+b") as file:
        file.write(b"BAD")
    assert read(store, name=b"one") is None
    assert read(store, name=b"two") == b"more bytes"
    assert add(store, b"good bytes", b"one")
    assert read(store, name=b"one") == b"good bytes"


def test_a_segment_that_is_gone_or_cut_takes_its_items_along(open_store, tmp_path):
    store = open_store()
    add(store, bytes(MIB), b"one")
    add(store, bytes(range(256)) * 4096, b"two")
    store.close()
    first, second = sorted((tmp_path / "cache").glob("*.segment"))
    first.unlink()
    os.truncate(second, 10)
    store = open_store()
    assert read(store, name=b"one") is None
    assert read(store, name=b"two") is None
    assert add(store, bytes(MIB), b"one")
    assert read(store, name=b"one") == bytes(MIB)


def test_a_segment_that_vanishes_meanwhile_is_noticed(open_store, tmp_path):
    store = open_store()
    add(store, bytes(MIB), b"one")
    next((tmp_path / "cache").glob("*.segment")).unlink()
    assert read(store, name=b"one") is None
    assert store.totals == (0, 0)


def test_an_index_that_cannot_be_read_is_begun_anew(open_store, tmp_path):
    store = open_store()
    add(store, b"bytes", b"one")
    store.close()
    for name in ("index.db", "index.db-wal"):
        path = tmp_path / "cache" / name
        if path.exists():
            path.write_bytes(b"garbage" * 1000)
    store = open_store()
    assert read(store, name=b"one") is None
    assert add(store, b"bytes", b"one")
    assert read(store, name=b"one") == b"bytes"


def test_an_index_of_which_any_page_is_damaged_is_begun_anew(open_store, tmp_path):
    store = open_store()
    for number in range(300):
        assert add(store, b"%d" % number, b"name %d" % number)
    store.close()
    index = tmp_path / "cache" / "index.db"
    whole, begun_anew = index.read_bytes(), 0
    for page in range(1, len(whole) // 4096):  # the first has the schema
        index.write_bytes(whole[: 4096 * page] + os.urandom(4096) + whole[4096 * (page + 1) :])
        store = open_store()
        for number in range(300):
            assert read(store, name=b"name %d" % number) in (None, b"%d" % number)
            assert read(store, content=content_of(b"%d" % number)) in (None, b"%d" % number)
        begun_anew += store.totals[0] == 0
        new = b"new %d" % page
        assert add(store, new, new) or add(store, new, new), "what is found damaged as it is written is begun anew"
        assert read(store, name=new) == new
        store.close()
    assert begun_anew > 5


def test_items_of_a_segment_that_was_not_noted_can_be_kept_again(open_store):
    store = open_store()
    assert add(store, b"bytes", b"one")
    store._base.execute("delete from segments")  # as a full disk undoes it
    assert add(store, b"more", b"two")
    store.close()
    store = open_store()
    assert store.totals == (0, 0)
    assert read(store, name=b"one") is None
    assert add(store, b"bytes", b"one")
    assert read(store, name=b"one") == b"bytes"


def test_no_descriptor_is_left_to_read_an_item(open_store, monkeypatch):
    store = open_store()
    assert add(store, b"bytes", b"one")

    def none_left(_handle):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", none_left)
        assert read(store, name=b"one") is None
    assert read(store, name=b"one") == b"bytes"


def test_a_folder_that_holds_other_files_keeps_them(open_store, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o755)
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    add(open_store(), b"x")
    assert (tmp_path / "cache" / "notes.txt").read_text() == "mine"


def test_all_can_be_removed(open_store, tmp_path):
    store = open_store()
    add(store, b"x" * 1000, b"one")
    assert store.clear() == 1000
    assert read(store, name=b"one") is None
    assert not list((tmp_path / "cache").glob("*.segment"))
    assert add(store, b"x" * 1000, b"one")


# -- labels ------------------------------------------------------------------------------------------------------------


def labelled(data: str, chunk: int) -> bytes:
    return data.encode().ljust(16, b".") + bytes([chunk])


def put(store: ItemStore, data: bytes, label: bytes) -> bool:
    return store.add(data, content_of(data), None, label) is not None


def has(store: ItemStore, data: bytes) -> bool:
    return read(store, content=content_of(data)) == data


def test_what_is_labelled_goes_together_and_at_once(open_store, tmp_path):
    store = open_store()
    one, two, other = labelled("data", 1), labelled("data", 2), labelled("others", 1)
    for number in range(20):
        for label in (one, two, other, b""):
            assert put(store, b"%d" % number + label, label)
    store.keep_labels({one[:16]: [two]})
    assert not any(has(store, b"%d" % number + one) for number in range(20))
    for label in (two, other, b""):
        assert all(has(store, b"%d" % number + label) for number in range(20))
    files = [each for each in (tmp_path / "cache").iterdir() if each.suffix == ".segment"]
    assert len(files) == 3, "its files have gone"
    assert not put(store, b"late", one), "what comes later is not kept"
    assert put(store, b"more", two)


def test_room_of_labels_that_are_over_is_there_for_others(open_store):
    store = open_store(4 * MIB)
    one, two = labelled("data", 1), labelled("data", 2)
    item = os.urandom(MIB // 2)
    for number in range(8):
        assert put(store, bytes([number]) + item[1:], one)
    assert not put(store, bytes([100]) + item[1:], two)
    store.keep_labels({one[:16]: [two]})
    for number in range(100, 108):
        assert put(store, bytes([number]) + item[1:], two)
    assert store.totals[1] <= 4 * MIB


def test_data_that_were_given_room_take_it_from_those_that_were_not(open_store):
    store = open_store(4 * MIB)
    given, other = labelled("given", 1), labelled("others", 1)
    item = os.urandom(MIB // 2)
    for number in range(4):
        assert put(store, bytes([number]) + item[1:], other)
        assert put(store, bytes([number]) + item[1:-1], b"")
    assert not put(store, bytes([50]) + item[1:], given), "what is there is in use"
    store.keep_labels({given[:16]: [given[:16]]})
    for number in range(100, 107):
        assert put(store, bytes([number]) + item[1:], given)
    assert all(has(store, bytes([number]) + item[1:]) for number in range(100, 107))
    assert store.totals[1] <= 4 * MIB
    assert not put(store, bytes([60]) + item[1:], other), "and keep it"


def test_all_of_a_data_set_is_kept_where_its_name_is(open_store):
    store = open_store()
    chunk, whole = labelled("data", 1), labelled("data", 1)[:16]
    assert put(store, b"before", chunk)
    store.keep_labels({whole: [whole]})
    assert has(store, b"before")
    assert put(store, b"of a chunk", chunk)
    assert put(store, b"of the whole", whole)
    store.keep_labels({whole: [chunk]})
    assert has(store, b"of a chunk")
    assert not has(store, b"of the whole")


def test_labels_are_known_after_a_restart(open_store):
    store = open_store()
    one, two = labelled("data", 1), labelled("data", 2)
    assert put(store, b"first", one)
    assert put(store, b"second", two)
    store.close()
    store = open_store()
    assert has(store, b"first")
    store.keep_labels({one[:16]: [two]})
    assert not has(store, b"first")
    assert has(store, b"second")


def test_more_labels_than_are_written_at_a_time(open_store):
    store = open_store()
    labels = [labelled("data", number) for number in range(100)]
    for turn in range(2):
        for label in labels:
            assert put(store, label + bytes([turn]), label)
    assert all(has(store, label + bytes([turn])) for turn in range(2) for label in labels)
    store.keep_labels({labels[0][:16]: labels[:1]})
    assert store.totals[0] == 2


def test_a_label_that_is_kept_again_is_kept(open_store):
    store = open_store()
    one = labelled("data", 1)
    store.keep_labels({one[:16]: []})
    assert not put(store, b"no", one)
    store.keep_labels({one[:16]: [one]})
    assert put(store, b"yes", one)
    store.keep_labels({})
    assert put(store, b"and what nobody speaks of", labelled("data", 2))


def test_segments_that_are_written_to_side_by_side_stay_within_the_bound(open_store, tmp_path):
    store = open_store(4 * MIB)
    for _ in range(200):
        for chunk in range(15):
            put(store, os.urandom(4000), labelled("data", chunk))
    held = sum(each.stat().st_size for each in (tmp_path / "cache").iterdir() if each.suffix == ".segment")
    assert store.totals[1] == held <= 4 * MIB


def test_labels_in_turns_make_no_file_for_each_item(open_store, tmp_path):
    store = open_store()
    for number in range(60):
        for chunk in range(20):
            assert put(store, b"%d of %d" % (number, chunk), labelled("data", chunk))
    assert len([each for each in (tmp_path / "cache").iterdir() if each.suffix == ".segment"]) == 20


def test_many_labels_take_no_more_files_than_a_bound(open_store, tmp_path):
    store = open_store(64 * MIB)
    kept = [put(store, b"%d" % number, number.to_bytes(24, "big")) for number in range(2000)]
    assert kept[0]
    assert not kept[-1], "what is in use stays, and these count as more than they are"
    assert len(list((tmp_path / "cache").iterdir())) < 64 * 16 + 8


def test_a_disk_that_fails_as_labels_change_is_no_end(open_store, monkeypatch, caplog):
    store = open_store()
    assert put(store, b"item", labelled("data", 1))

    def full(_number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_remove", full)
    store.keep_labels({labelled("data", 1)[:16]: []})
    assert "No space left" in caplog.text


def test_a_segment_that_was_left_grows_only_where_there_is_room_for_it(open_store):
    store = open_store(4 * MIB)
    for chunk in (1, 2):
        assert put(store, os.urandom(MIB // 2), labelled("data", chunk))
    store.close()
    store = open_store(4 * MIB)
    assert sum(put(store, os.urandom(MIB // 2), labelled("data", chunk)) for chunk in (3, 3, 4, 4, 5, 5)) == 6
    put(store, os.urandom(MIB // 2), labelled("data", 1))
    assert store.totals[1] <= 4 * MIB
