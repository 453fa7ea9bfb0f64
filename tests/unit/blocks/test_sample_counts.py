"""Counts of a sample cache: rates, and the text in which Prometheus reads them."""

import msgspec

from millrace.blocks.samples.counters import SampleCounts


def test_rates():
    assert SampleCounts().miss_rate == 0
    assert SampleCounts(hits=3, misses=1).miss_rate == 0.25
    assert SampleCounts(hits=3, misses=1).reads == 4


def test_every_count_is_a_metric_of_prometheus():
    lines = SampleCounts(hits=3, waited_s=0.25, stored_bytes=1 << 40).prometheus(dataset="train", rank="0").splitlines()
    assert len(lines) == 2 * len(msgspec.structs.fields(SampleCounts))
    for metric, value in (("hits", 3), ("waited_seconds", 0.25), ("stored_bytes", 1 << 40), ("misses", 0)):
        name = f"millrace_samples_{metric}_total"
        at = lines.index(f"# TYPE {name} counter")
        assert lines[at + 1] == f'{name}{{dataset="train",rank="0"}} {value}'


def test_labels_may_hold_anything():
    assert 'hits_total{dataset="a\\"b\\\\c\\nd"} 0\n' in SampleCounts().prometheus(dataset='a"b\\c\nd')
    assert "hits_total{} 0\n" in SampleCounts().prometheus()
