from collections.abc import Iterator

import pytest
from benchmarks.harness import Benchmark, Contestant, Figure, Samples, rate, summary

BENCHMARK = Benchmark(
    question="How fast?",
    figures={"speed": Figure("m/s"), "weight": Figure("kg", more_is_better=False)},
    contestants=(Contestant("one", lambda _: {}), Contestant("other", lambda _: {}), Contestant("none", lambda _: {})),
    reference="one",
    sizes={},
)


def test_ratios_are_made_within_rounds():
    samples: Samples = [
        {"one": {"speed": 1.0}, "other": {"speed": 3.0}},
        {"one": {"speed": 10.0}, "other": {"speed": 20.0}},
        {"one": {"speed": 100.0}, "other": {"speed": 100.0}},
    ]
    assert summary(BENCHMARK, samples) == {
        "one": {"speed": {"median": 10.0, "min": 1.0, "max": 100.0, "ratio": 1.0}},
        "other": {"speed": {"median": 20.0, "min": 3.0, "max": 100.0, "ratio": 2.0}},
    }


def test_a_round_without_the_reference_gives_no_ratio():
    samples: Samples = [{"other": {"speed": 3.0, "weight": 2.0}}, {"one": {"speed": 2.0}, "other": {"speed": 5.0}}]
    assert summary(BENCHMARK, samples)["other"] == {
        "speed": {"median": 4.0, "min": 3.0, "max": 5.0, "ratio": 2.5},
        "weight": {"median": 2.0, "min": 2.0, "max": 2.0},
    }


def test_a_rate_counts_what_came_out_of_every_pass():
    passes = iter([[[1, 2], [3]], [[1, 2], [3]], [[1, 2]]])

    def read() -> Iterator[list[int]]:
        yield from next(passes)

    with pytest.raises(RuntimeError, match="2 elements came out of 3"):
        rate(read, count=3, passes=2)
