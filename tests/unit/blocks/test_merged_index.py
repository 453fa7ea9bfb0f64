"""Several lookups as one: what any of them has, from the first that has it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millrace.blocks.block_index import ItemLocations, MergedIndex


class Items:
    """Items in blocks of three; an element says who gave it. What is ``lost`` is found and cannot be read."""

    def __init__(self, name, numbers, lost=frozenset()):
        self.name, self.numbers, self.lost = name, sorted(numbers), lost

    def find(self, keys):
        places = [self.numbers.index(number) if number in self.numbers else -1 for number in keys[:, 0].tolist()]
        found = np.array(places, np.int64)
        return ItemLocations(np.where(found < 0, -1, found // 3), np.where(found < 0, -1, found % 3))

    def read(self, found):
        numbers = [self.numbers[3 * block + item] for block, item in zip(*map(np.ndarray.tolist, found), strict=True)]
        return [None if number in self.lost else [self.name, number] for number in numbers]

    def learn(self, names):
        self.numbers = sorted({*self.numbers, *map(int, names)})


some = st.frozensets(st.integers(0, 30), max_size=12)


@given(st.lists(st.tuples(some, some), min_size=1, max_size=4), st.lists(st.integers(0, 30), max_size=20))
def test_each_item_is_read_from_the_first_that_has_it(parts, asked):
    union = MergedIndex([Items(name, numbers, lost) for name, (numbers, lost) in enumerate(parts)])
    found = union.find(np.array(asked, np.uint8).reshape(-1, 1).repeat(16, axis=1))
    holders = [next((name for name, (there, _) in enumerate(parts) if number in there), -1) for number in asked]
    assert (found.block >= 0).tolist() == [holder >= 0 for holder in holders]
    hits = found.block >= 0
    expected = [
        None if number in parts[holder][1] else [holder, number]
        for number, holder in zip(asked, holders, strict=True)
        if holder >= 0
    ]
    assert union.read(ItemLocations(found.block[hits], found.item[hits])) == expected


def test_new_blocks_are_of_the_first():
    union = MergedIndex([Items("mine", []), Items("theirs", [1])])
    union.learn(["1", "2"])
    found = union.find(np.array([[1], [2]], np.uint8).repeat(16, axis=1))
    assert union.read(found) == [["mine", 1], ["mine", 2]]
