"""The simulated disk of a cache server beside the real one: whatever is done with both, they keep the same."""

import random

import pytest

from millrace.cache_server import item_store
from millrace.cache_server.item_exchange import content_of
from millrace.cache_server.item_store import ItemStore
from millrace.policies.caching.source_eviction import IDLE_S
from millrace.protocol.source_cache_messages import chunk_label, name_of_data
from millrace.simulation import simulated_items
from millrace.simulation.simulated_items import ItemDisk, SimulatedItems

DATA = [name_of_data("one"), name_of_data("other")]
LABELS = [b"", b"", *DATA, *(chunk_label(data, 10, chunk) for data in DATA for chunk in range(5))]


class Both:
    """The two of them."""

    def __init__(self, folder, most_bytes):
        self.now, self.disk = 0.0, ItemDisk()
        self.folder, self.most_bytes = folder, most_bytes
        self.begin()

    def begin(self):
        self.real = ItemStore(self.folder, self.most_bytes, lambda: self.now)
        self.simulated = SimulatedItems(self.disk, self.most_bytes, self.now)

    def pass_time(self, seconds):
        self.now += seconds
        self.simulated.at(self.now)

    def add(self, data, name, label):
        given = memoryview(data), content_of(data), name, label
        one, other = self.real.add(*given), self.simulated.add(*given)
        assert (one is None) == (other is None)
        return one is not None

    def keep_labels(self, sets):
        self.real.keep_labels(sets)
        self.simulated.keep_labels(sets)

    def found(self, contents, names):
        return [
            [None if item is None else store.read(item) for items in store.find(contents, names) for item in items]
            for store in (self.real, self.simulated)
        ]

    def check(self, contents, names):
        one, other = self.found(contents, names)
        assert one == other
        assert self.real.totals == (len(self.disk.items), self.simulated.held)
        assert self.simulated.held <= self.most_bytes


@pytest.mark.parametrize("seed", range(16))
def test_both_keep_the_same(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(item_store, "_SEGMENT_BYTES", (1, 1 << 30))
    for ours, theirs in (("_SEGMENTS", "SEGMENTS"), ("_LABELS_AT_ONCE", "LABELS_AT_ONCE")):
        monkeypatch.setattr(item_store, ours, getattr(simulated_items, theirs))
    assert item_store._LEAST_COUNTED == simulated_items.LEAST_COUNTED
    rng = random.Random(seed)
    both = Both(str(tmp_path / "items"), rng.choice((300, 1000, 2000, 5000)))
    kinds = [rng.randbytes(rng.choice((20, 60, 90, 150, 210))) for _ in range(40)]
    contents, names = [content_of(data) for data in kinds], [rng.randbytes(32) for _ in range(20)]
    stored = 0
    for step in range(150):
        what = rng.random()
        if what < 0.7:
            name = rng.choice(names) if rng.random() < 0.6 else None
            stored += both.add(rng.choice(kinds), name, rng.choice(LABELS))
        elif what < 0.8:
            some = {data: rng.sample([label for label in LABELS if label.startswith(data)], 2) for data in DATA}
            some = {data: rng.choice((labels, [], [data])) for data, labels in some.items()}
            both.keep_labels(dict(rng.sample(sorted(some.items()), rng.randrange(3))))
        elif what < 0.85:
            both.real.close()
            both.begin()
        else:
            both.pass_time(rng.choice((0.1, 5.0, IDLE_S)))
        if step % 5 == 4:
            both.check(contents, names)
    both.real.close()
    assert stored > 5
