"""Whether the benchmark of digests says what it has missed."""

import copy
from typing import Any

import pytest
from benchmarks.digest import ANSWER_BYTES, MOST_BYTES, OBJECT_BYTES, missed


def figures(count, read):
    sent = 10_000 + read * (OBJECT_BYTES + ANSWER_BYTES // 2)
    return {"files": count, "items": count, "read_files": read, "requests": read, "sent_bytes": sent, "peak_bytes": 9}


FOUND: dict[str, Any] = {
    "large": {"of_link": 0.95},
    "disk": {"first": figures(500, 500), "unchanged": figures(500, 0)},
    "many": {
        "objects": 300,
        **{name: figures(300, read) for name, read in zip(("first", "unchanged", "changed"), (300, 0, 3), strict=True)},
    },
}


def test_nothing_is_missed_where_all_is_well():
    assert missed(FOUND, timed=True) == []


@pytest.mark.parametrize(
    ("place", "name", "value", "said"),
    [
        (("disk", "first"), "peak_bytes", MOST_BYTES, "first: 500 files took 300 MB"),
        (("disk", "unchanged"), "read_files", 1, "of the disk 500 files were read, and then 1"),
        (("many", "changed"), "read_files", 4, "changed: 4 files were read by 3 requests, of 3"),
        (("many", "changed"), "requests", 5, "changed: 3 files were read by 5 requests, of 3"),
        (("many", "first"), "requests", 299, "first: 300 files were read by 299 requests, of 300"),
        (("many", "changed"), "sent_bytes", 99_999, "changed: the store sent 0.1 MB"),
        (("large",), "of_link", 0.89, "0.89 of the link was used"),
    ],
)
def test_what_is_missed_is_said(place, name, value, said):
    found = copy.deepcopy(FOUND)
    where = found
    for step in place:
        where = where[step]
    where[name] = value
    assert missed(found, timed=True) == [said]
