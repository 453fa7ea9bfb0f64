import pytest

from millrace.graph.nodes import Batch
from millrace.ops.bucketing import last_batches


@pytest.mark.parametrize(
    ("counts", "sizes", "together", "found", "whole"),
    [
        ([3, 0, 2], [4, 3, 2], 0, [3, 2], []),
        ([7], [4], 3, [2, 2, 2], []),
        ([2], [4], 3, [], []),
        ([0, 0], [4, 2], 2, [], []),
        # Short sequences come in large batches as long as there are enough of them, long ones in small batches.
        ([5, 3], [4, 2], 2, [2, 2, 2, 2], [2, 2, 2, 2]),
        ([7, 7], [4, 4], 2, [4, 4, 3, 3], [4, 4]),
        ([9, 1], [5, 1], 2, [4, 4, 1, 1], [1] * 10),
        ([6, 5], [4, 3], 2, [3, 3, 2, 2], [3, 3]),
        ([1, 6], [9, 4], 1, [4, 3], [4]),
    ],
)
def test_sizes_of_the_last_batches(counts, sizes, together, found, whole):
    node = Batch(batch_size=1, together=together, incomplete="mix" if together else "")
    assert last_batches(counts, sizes, node) == found
    node = Batch(batch_size=1, together=together, incomplete="mix" if together else "", drop_remainder=True)
    assert last_batches(counts, sizes, node) == whole
    if together:
        assert last_batches(counts, sizes, Batch(batch_size=1, together=together, incomplete="drop")) == []
