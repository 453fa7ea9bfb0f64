import importlib
import json
from pathlib import Path

import pytest
from benchmarks import plot
from benchmarks.targets import TARGETS, Target, judge

REPORT = {
    "benchmark": "decode",
    "question": "How fast?",
    "command": "python -m benchmarks.decode",
    "machine": {
        "cpu": "a processor",
        "cores": 2,
        "memory_gib": 24.0,
        "python": "CPython 3.11",
        "libraries": {"numpy": "2"},
        "load_before": 0.1,
        "commit": "abc",
    },
    "figures": {"images": {"unit": "images/s", "digits": 0, "more_is_better": True}},
    "reference": "bare loop",
    "notes": {"bare loop": "no library"},
    "skipped": {"Grain, threads": ["grain"]},
    "failed": {},
    "rounds": [
        {"bare loop": {"images": 100.0}, "millrace, in process": {"images": 90.0}},
        {"bare loop": {"images": 200.0}, "millrace, in process": {"images": 194.0}},
        {"bare loop": {"images": 100.0}, "millrace, in process": {"images": 98.0}},
    ],
    "results": {
        "bare loop": {"images": {"median": 100.0, "min": 100.0, "max": 200.0, "ratio": 1.0}},
        "millrace, in process": {"images": {"median": 98.0, "min": 90.0, "max": 194.0, "ratio": 0.97}},
    },
}

PLACES = "<!-- targets -->\n<!-- end targets -->\n<!-- aims -->\n<!-- end aims -->\n"
"""Places of a page that are filled whatever was measured."""


def test_a_target_is_the_median_of_ratios_within_rounds():
    target = Target("?", "decode", "images", "millrace, in process", "bare loop", least=0.95)
    value = target.value(REPORT)
    assert value == pytest.approx(0.97)
    assert target.met(0.97)
    assert not target.met(0.94)


def test_a_target_without_its_contestant_has_no_value():
    assert Target("?", "decode", "images", "nobody", "bare loop", least=0.95).value(REPORT) is None


def test_a_benchmark_judges_the_targets_that_it_has_measured():
    report = {**REPORT, "rounds": [{"bare loop": {"images": 100.0}, "millrace, in process": {"images": 50.0}}]}
    (only,) = [each for each in judge(report) if each["aim"] == "decoding in process, of the bare loop"]
    assert only == {"aim": only["aim"], "value": 0.5, "asked": "≥ 0.95", "met": False}
    assert judge({**report, "benchmark": "overhead"}) == []


def test_what_is_missed_is_said():
    report = {**REPORT, "rounds": [{"bare loop": {"images": 100.0}, "millrace, in process": {"images": 50.0}}]}
    lines = plot.targets_table({"decode": report}).splitlines()
    assert "| 0.5 | **missed** |" in lines[2]
    assert "not measured" in lines[3]


def test_aims_of_an_experiment_are_counted_and_what_is_missed_is_said():
    one = "python -m benchmarks.papers.one --few"
    aims = [
        {"aim": "rate, of the best", "value": 0.9271, "asked": 0.95, "met": False},
        {"aim": "wrong bytes", "value": 0, "asked": 0, "met": True},
    ]
    found = plot.aims_table(
        {"papers.one": {"aims": aims, "command": f"{one} --json x"}, "papers.two": {"aims": []}, "decode": REPORT}
    ).splitlines()
    assert found[2:] == [f"| `{one}` | 2 | 1 | rate, of the best: 0.927, asked 0.95 |"]


def test_a_table_has_spreads_ratios_notes_and_who_is_missing():
    text = plot.table(REPORT)
    assert "| bare loop (no library) | 100 (100 to 200) | 1 |" in text
    assert "| millrace, in process | 98 (90 to 194) | 0.97 |" in text
    assert "Not installed: Grain, threads." in text
    assert "3 rounds" in text


def test_the_page_keeps_what_is_outside_the_marks(tmp_path, monkeypatch):
    page = tmp_path / "performance.md"
    page.write_text("before\n<!-- decode -->\nwhat was there\n<!-- end decode -->\nafter\n" + PLACES)
    result = tmp_path / "decode.json"
    result.write_text(json.dumps({**REPORT, "results": {}}))
    monkeypatch.setattr(plot, "PAGE", str(page))
    monkeypatch.setattr(plot, "PLOTS", str(tmp_path / "plots"))
    for _ in range(2):
        assert plot.main([str(result)]) == 0
        text = page.read_text()
        assert text.startswith("before\n<!-- decode -->\n")
        assert "what was there" not in text
        assert "after" in text
        assert text.count("images/s") == 1


def test_the_page_has_a_place_for_whatever_make_bench_measures():
    page = Path(plot.PAGE).read_text()
    sources = Path(plot.RESULTS).parent.glob("*.py")
    names = [path.stem for path in sources if "\nBENCHMARK = " in path.read_text()]
    assert names
    for name in [*names, "memory", "targets"]:
        assert f"<!-- {name} -->" in page


def test_every_target_names_what_there_is():
    for target in TARGETS:
        module = importlib.import_module(f"benchmarks.{target.benchmark}")
        if not hasattr(module, "BENCHMARK"):
            continue  # an experiment, which has no contestants
        benchmark = module.BENCHMARK
        assert target.figure in benchmark.figures
        assert {target.of, target.over or target.of} <= {each.name for each in benchmark.contestants}


def test_a_page_without_a_place_is_an_error(tmp_path, monkeypatch):
    page = tmp_path / "performance.md"
    page.write_text("nothing\n")
    monkeypatch.setattr(plot, "PAGE", str(page))
    monkeypatch.setattr(plot, "PLOTS", str(tmp_path / "plots"))
    result = tmp_path / "decode.json"
    result.write_text(json.dumps({**REPORT, "results": {}}))
    with pytest.raises(SystemExit, match="has no place for decode"):
        plot.main([str(result)])


def test_an_experiment_s_table_is_shown_as_it_is(tmp_path, monkeypatch):
    page = tmp_path / "performance.md"
    page.write_text("<!-- papers.quarter -->\n<!-- end papers.quarter -->\n" + PLACES)
    result = tmp_path / "quarter.json"
    table, rounds = [["", "saved"], ["service", "0.96"]], [{"service": {"saved": 0.96}}]
    kept = {name: REPORT[name] for name in ("command", "machine")}
    result.write_text(json.dumps({**kept, "benchmark": "papers.quarter", "table": table, "rounds": rounds}))
    monkeypatch.setattr(plot, "PAGE", str(page))
    monkeypatch.setattr(plot, "PLOTS", str(tmp_path / "plots"))
    assert plot.main([str(result)]) == 0
    assert "| service | 0.96 |" in page.read_text()
    assert "| what a cache of a quarter saves, of the ideal | ≥ 0.95 | 0.96 | met |" in page.read_text()


def test_a_result_without_table_and_figures_is_left_out(tmp_path, monkeypatch):
    page = tmp_path / "performance.md"
    page.write_text(PLACES)
    result = tmp_path / "listing.json"
    result.write_text(json.dumps({"benchmark": "listing", "rounds": []}))
    monkeypatch.setattr(plot, "PAGE", str(page))
    monkeypatch.setattr(plot, "PLOTS", str(tmp_path / "plots"))
    assert plot.main([str(result)]) == 0
