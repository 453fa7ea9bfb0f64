"""What ``millrace cache`` prints, and which points it takes names for."""

import io
import re
from typing import Any

import pytest

import millrace as mr
from millrace.display import cache

ONE, TWO = "ab12" * 8, "abcd" * 8


def point(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "point": name,
        "writer": "vision",
        "label": "map(decode)",
        "bytes": 3 << 20,
        "blocks": 2,
        "items": 100,
        "whole": 6 << 20,
        "saves_per_gib": 0.5,
        "jobs": [],
        **fields,
    }


def status(*points: dict[str, Any], **fields: Any) -> dict[str, Any]:
    found = {
        "location": "/cache",
        "bytes": sum(point["bytes"] for point in points),
        "taken": sum(point["bytes"] for point in points) + 1024,
        "limit": 1 << 30,
        "points": list(points),
        "tenants": [{"tenant": "vision", "taken": 2 << 20, "quota": 4 << 20}],
        **fields,
    }
    job = {
        "name": "resnet",
        "mode": "put",
        "cache": {
            "why": "it saves 4 ms",
            "unused": [{"point": "batch(8)", "why": "its mode is 'compute'"}],
            "trusts": ["speech", "ads"],
            "hits": 30,
            "misses": 2,
            "lost": 1,
            "trouble": "/cache: Read-only file system",
        },
    }
    return {"cache": found, "jobs": [job]}


def test_points_are_listed_with_what_is_worth_most_first():
    out = io.StringIO()
    least = point(ONE, writer=None, saves_per_gib=0.1, label="", whole=None)
    most = point(TWO, saves_per_gib=66.3, jobs=["a", "b"], bytes=7 << 20)
    cache.show_points(status(least, most, point("ef" * 16, blocks=0)), out)
    assert [re.split("  +", line) for line in out.getvalue().splitlines()] == [
        list(cache.POINTS),
        [TWO, "vision", "map(decode)", "7 MiB", "7 MiB", "2", "100", "6,630 %", "a, b"],
        [ONE, "-", "?", "3 MiB", "?", "2", "100", "10 %", "-"],
    ]


def test_statistics_say_how_full_it_is_and_what_each_job_does():
    out = io.StringIO()
    cache.show_stats(status(point(ONE), point(TWO), point(f"{ONE}@/mine"), bytes=6 << 20, taken=6145 << 10), out)
    assert out.getvalue().splitlines() == [
        "/cache: 6 MiB of 1 GiB in 4 blocks",
        "promised to tasks that run: 1 KiB",
        "tenant vision: 2 MiB of 4 MiB",
        "job resnet: put: it saves 4 ms",
        "  it reads what speech and ads kept, too",
        "  in this epoch 30 items were read and 2 made",
        "  blocks that could not be read, so that what they held was made: 1",
        "  nothing more is kept: /cache: Read-only file system",
        "  the cache after batch(8) is not used: its mode is 'compute'",
    ]


def test_a_service_without_a_cache_says_how_to_get_one():
    with pytest.raises(mr.PipelineError, match="start its dispatcher with --cache-dir and --cache-bytes"):
        cache.of({"cache": None})


def test_points_are_named_by_how_they_begin():
    found = status(point(ONE), point(TWO), point(f"{ONE}@/mine"))
    assert cache.chosen(found, ["abc"], everything=False) == [TWO]
    assert cache.chosen(found, [ONE], everything=False) == [ONE]
    assert cache.chosen(found, [TWO, ONE], everything=False) == [TWO, ONE]
    assert cache.chosen(found, [], everything=True) == [ONE, TWO]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "name the points to remove, as `millrace cache ls` shows them, or give --all"),
        (["ab"], "3 points begin with 'ab': see `millrace cache ls`"),
        (["zz"], "no points begin with 'zz': see `millrace cache ls`"),
        ([f"{ONE}@"], "is in a folder of a pipeline's own: clear /mine yourself"),
    ],
)
def test_a_name_that_does_not_say_which_is_refused(names, message):
    found = status(point(ONE), point(TWO), point(f"{ONE}@/mine"))
    with pytest.raises(mr.PipelineError, match=message):
        cache.chosen(found, names, everything=False)
