"""The command that runs all experiments: which there are, and what it makes of their figures."""

import json

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


def test_what_needs_the_pictures_is_left_out_without_them():
    assert command.arguments_of("chunk_accuracy", "") is None
    assert command.arguments_of("chunk_accuracy", "here") == ["--cifar", "here"]
    assert command.arguments_of("deli", "") == []


def test_what_needs_a_gpu_is_left_out_where_there_is_none(monkeypatch):
    for found, arguments in (([], None), (["a GPU"], ["--cifar", "here"])):
        monkeypatch.setattr(command, "gpus", lambda found=found: found)
        assert command.arguments_of("accelerator_trainings", "here") == arguments
        assert command.lacking("accelerator_trainings", "here") == ("" if found else "a GPU")
    assert "accelerator_rank" not in command.experiments()


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
