"""The command that runs all experiments: which there are, and what it makes of their figures."""

import json
import shlex

import pytest
from benchmarks.papers import __main__ as command
from benchmarks.papers.report import write
from benchmarks.targets import TARGETS


def test_experiments_are_the_modules_that_answer_a_question():
    found = command.experiments()
    assert {"figure6", "stragglers", "live_scaling", "who_gets_room"} <= set(found)
    assert not {"report", "drawings", "throttled", "counting_store", "deli_rank", "__main__"} & set(found)


def test_an_aim_in_the_figures_is_judged_and_one_of_the_page_too():
    assert command.judged("a", {"aims": [{"aim": "fast", "met": True}, {"aim": "small", "met": False}]}) == (
        ["small"],
        2,
    )
    target = next(each for each in TARGETS if each.benchmark == "papers.scale_out" and each.least)
    name = target.benchmark.removeprefix("papers.")
    for value, met in ((2.0, True), (0.1, False)):
        missed, aims = command.judged(name, {"rounds": [{target.of: {target.figure: value}}]})
        assert (bool(missed), aims >= 1) == (not met, True)


def test_data_that_are_there_are_named_to_what_can_use_them():
    data = {"cifar": "pictures", "recordings": "digits"}
    assert command.arguments_of("trainings", data) == ["--cifar", "pictures", "--recordings", "digits"]
    assert command.arguments_of("trainings", {"recordings": "digits"}) == ["--recordings", "digits"]
    assert command.arguments_of("coordinated_kills", data) == ["--data", "digits", "--kill"]
    assert command.arguments_of("deli", {"cifar": ""}) == []


def test_what_needs_a_gpu_or_data_is_left_out_where_there_are_none(monkeypatch):
    assert "accelerator_rank" not in command.experiments()
    monkeypatch.setattr(command, "gpus", list)
    assert command.lacking("accelerator_trainings", {}) == "a GPU"
    assert command.lacking("deli", {}) == ""
    monkeypatch.setattr(command, "gpus", lambda: ["a GPU"])
    assert command.lacking("accelerator_trainings", {}) == ""
    assert command.lacking("chunk_accuracy", {"recordings": "here"}) == "--cifar"
    assert command.lacking("chunk_accuracy", {"cifar": "here"}) == ""


def test_the_page_shows_what_this_command_runs():
    data = {"cifar": "DIR", "recordings": "DIR"}
    options = {option for each in command.DATA.values() for option in each.values()}
    shown = {}
    for path in command.RESULTS.glob("*.json"):
        report = json.loads(path.read_text())
        if report["benchmark"].startswith("papers.") and path.stem in command.experiments():
            words = shlex.split(report["command"])[3:]
            shown[path.stem] = sorted(
                "DIR" if before in options else word for before, word in zip(["", *words], words, strict=False)
            )
    assert len(shown) > 40
    for name, words in shown.items():
        assert words == sorted([*command.arguments_of(name, data), "--json", f"benchmarks/results/{name}.json"]), name


@pytest.mark.parametrize(
    ("outcome", "right", "words"),
    [
        (command.Outcome("a", 3.0, 0, [], 2), True, "met 2 aims"),
        (command.Outcome("a", 3.0, 0, [], 0), True, "has no aims"),
        (command.Outcome("a", 3.0, 0, ["fast"], 2), False, "MISSED fast"),
        (command.Outcome("a", 3.0, 3, [], 0), False, "exit status 3"),
    ],
)
def test_only_what_ran_and_met_its_aims_is_right(outcome, right, words):
    assert outcome.right is right
    assert words in command.said(outcome)


def test_only_those_that_are_short_are_for_each_night(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    for name, seconds in (("figure6", 300), ("eviction", 4)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"took_s": seconds}))
    assert command.main(["--list", "--within", "2"]) == 0
    told = capsys.readouterr().out
    assert "eviction" in told
    assert "figure6" not in told
    assert "1 experiments" in told


def test_figures_say_how_long_they_took(tmp_path):
    write(str(tmp_path / "figures.json"), "benchmarks.papers.eviction", "Which?", [], {}, {"table": []})
    assert json.loads((tmp_path / "figures.json").read_text())["took_s"] > 0
