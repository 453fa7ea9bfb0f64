"""The cache points of a pipeline as a worker finds them."""

import threading

import numpy as np
import pytest

from millrace import Dataset
from millrace.engine.cache.find_cache_points import find_points
from millrace.planning.cache_point import CachePoint


def doubled(number: int) -> int:
    return 2 * number


def noisy(number: int, rng: np.random.Generator) -> float:
    return number + rng.random()


def several(number: int) -> list[int]:
    return [number] * 3


class Unsure:
    """Nobody can tell what it does from what it is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, number: int) -> int:
        return number


def points(dataset: Dataset) -> list[CachePoint]:
    return find_points(dataset.__pipeline__().graph, dataset.__pipeline__().tables(), 7)


def point(dataset: Dataset) -> CachePoint:
    (found,) = points(dataset)
    return found


def test_a_pipeline_without_points_has_none():
    assert points(Dataset.range(3).map(doubled)) == []


def test_each_point_is_found_with_what_is_kept_there():
    first, second = points(Dataset.range(100).map(doubled).autocache().prefetch(2).map(doubled).cache().batch(4))
    assert (first.label, first.mode, first.items, first.always) == ("map(doubled)", "auto", 100, False)
    assert (second.label, second.mode, second.path, second.always) == ("map(doubled)", "cache", "", True)
    assert first.node < second.node
    assert first.fingerprint != second.fingerprint
    assert not first.why


def test_the_label_is_of_what_makes_the_elements():
    assert point(Dataset.range(9).map(doubled).prefetch(2).cache()).label == "map(doubled)"


def test_a_mode_is_passed_on_and_compute_needs_no_fingerprint():
    assert point(Dataset.range(9).autocache(mode="cache")).always
    found = point(Dataset.range(9).map(Unsure()).autocache(mode="compute"))
    assert (found.fingerprint, found.why) == ("", "its mode is 'compute'")


def test_the_way_of_asking_for_it_does_not_tell_what_is_kept():
    dataset = Dataset.range(9).map(doubled)
    same = [point(each).fingerprint for each in (dataset.cache(), dataset.autocache(), dataset.cache("/there"))]
    assert len(set(same)) == 1
    assert point(dataset.cache("/there")).path == "/there"


@pytest.mark.parametrize(
    ("dataset", "items"),
    [
        (Dataset.range(1000).shuffle(1000), 1000),
        (Dataset.range(1000).take(7), 7),
        (Dataset.range(1000).flat_map(several), -1),
        (Dataset.range(1000).repeat(), -1),
    ],
)
def test_how_many_items_an_epoch_takes(dataset, items):
    assert point(dataset.cache()).items == items


def test_what_is_random_below_is_named():
    found = point(Dataset.range(9).map(noisy).cache())
    assert found.random
    assert found.fixed == ["map(noisy)"]
    above = point(Dataset.range(9).map(doubled).cache().map(noisy).shuffle(9))
    assert not above.random
    assert above.fixed == []


def test_a_shuffle_below_alone_fixes_nothing_and_with_a_batch_it_does():
    assert point(Dataset.range(9).shuffle(9).cache()).fixed == []
    found = point(Dataset.range(9).shuffle(9).batch(3).cache())
    assert found.fixed
    assert not found.random


def test_a_function_that_nobody_can_tell_from_others_is_named():
    found = point(Dataset.range(9).map(Unsure()).cache())
    assert found.fingerprint == ""
    assert "Unsure" in found.why
    assert point(Dataset.range(9).map(Unsure(), key="v1").cache()).fingerprint
