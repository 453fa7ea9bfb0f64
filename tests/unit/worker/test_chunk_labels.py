"""Labels of items: those of one chunk have one label, which names the data, the number of chunks and the chunk."""

from collections import Counter

import numpy as np

from millrace.planning.chunks import ChunkMembers
from millrace.protocol.source_cache_messages import chunk_label, name_of_data
from millrace.worker.chunk_labels import chunk_labels


def test_an_item_has_the_label_of_its_chunk():
    label, members = chunk_labels("from_files()|1000", 1000, 7), ChunkMembers(1000, 7)
    for chunk in range(7):
        size = int(members.bounds[chunk + 1] - members.bounds[chunk])
        for item in members.units(chunk, np.arange(size)).tolist():
            assert label(item) == chunk_label(name_of_data("from_files()|1000"), 7, chunk)
    assert sorted(Counter(map(label, range(1000))).values()) == sorted(np.diff(members.bounds).tolist())
