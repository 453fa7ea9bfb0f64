"""Trainings on an accelerator that are compared: what is aimed at, what is measured, and the networks."""

import os
from typing import Any

import pytest
from benchmarks import processor_time
from benchmarks.papers import accelerator_trainings as command
from benchmarks.papers import training_data as data


def found(reached: float | None, rate: float = 0.99, busy: float = 3.0, **changes: Any) -> dict[str, Any]:
    each: dict[str, Any] = {
        "reached": reached,
        "seconds": 40.0,
        "waited": 4.0,
        "steps": 900,
        "rate": 22.0,
        "of the ideal": rate,
    }
    each |= {"busy_cores": busy, "data_cpu_s": 71.0, "workers": 13.5, "last": 84.0, "curve": [(40.0, 84.0)], **changes}
    return {**each, "bound by": command.bound_by(each, 16)}


@pytest.mark.parametrize(
    ("each", "bound"),
    [
        (found(1.0, 0.96, 16.0), "device"),
        (found(1.0, 0.9, 14.0), "cores"),
        (found(1.0, 0.9, 13.0), "feed"),
    ],
)
def test_a_training_is_bound_by_its_device_by_the_cores_or_by_its_feed(each, bound):
    assert each["bound by"] == bound


@pytest.mark.parametrize(
    ("ours", "theirs", "met"),
    [
        (found(20.0), found(30.0), [True, True]),
        (found(31.0), found(30.0), [False, True]),
        (found(20.0, 0.5, 15.0), found(30.0), [True, True]),
        (found(20.0, 0.5, 3.0), found(30.0), [True, False]),
    ],
)
def test_ours_is_to_learn_no_later_and_to_keep_the_device_or_the_cores_at_work(ours, theirs, met):
    results = {"pictures": {"DataLoader": theirs, "millrace": ours}}
    assert [row["met"] for row in command.aims(results)] == met
    rows = command.table(results)
    assert [row[1] for row in rows[1:]] == ["DataLoader", "millrace"]
    assert {len(row) for row in rows} == {len(rows[0])}


@pytest.mark.parametrize(
    ("work", "ours", "theirs", "ratio"),
    [
        ("pictures", [(10.0, 50.0), (20.0, 70.0)], [(10.0, 40.0), (20.0, 60.0)], 20.0 / 20.0),
        ("pictures", [(10.0, 65.0), (20.0, 70.0)], [(10.0, 40.0), (20.0, 60.0)], 10.0 / 20.0),
        ("text", [(10.0, 3.0), (20.0, 2.5)], [(10.0, 2.8), (20.0, 2.4)], 20.0 / 20.0),
        ("text", [(10.0, 2.3), (20.0, 2.3)], [(10.0, 2.8), (20.0, 2.4)], 10.0 / 20.0),
    ],
)
def test_where_the_target_is_not_reached_the_time_is_that_to_the_best_score_that_both_have_had(
    work, ours, theirs, ratio
):
    results = {work: {"DataLoader": found(None, curve=theirs), "millrace": found(None, curve=ours)}}
    assert command.aims(results)[0]["value"] == ratio


def test_a_training_that_failed_is_an_aim_that_is_missed():
    rows = command.aims({"text": {"millrace": found(3.0)}}, ["the training of text with DataLoader failed"])
    assert [(row["aim"], row["met"]) for row in rows] == [("the training of text with DataLoader failed", False)]


def test_the_rate_is_that_after_the_first_score_and_processor_time_that_of_all_ranks():
    training = command.TRAININGS["digits"]._replace(every=10)
    first = {"curve": [(5.0, 40.0), (15.0, 96.0)], "steps": 110, "seconds": 15.0, "ideal": 20.0, "began": 7.0}
    said = [{**first, "ended": 8.0, "data_cpu_s": seconds, "own_cpu_s": 1.0} for seconds in (3.0, 4.0)]

    class Looked:
        def mean(self, since, until):
            return until - since

    each = command.together(said, training, Looked())  # type: ignore[arg-type]
    assert (each["rate"], each["of the ideal"]) == (10.0, 0.5)
    assert (each["data_cpu_s"], each["own_cpu_s"], each["workers"]) == (7.0, 2.0, 1.0)


def test_processor_time_is_counted_of_this_process_and_grows():
    used = processor_time.Used(lambda: [os.getpid()])
    while used.since()["data_cpu_s"] < 0.05:
        sum(range(100_000))
    assert used.since()["own_cpu_s"] > 0
    assert processor_time.used_s([-1]) == 0.0
    assert os.getpid() in processor_time.started_by(os.getppid())


def test_large_networks_learn_from_batches_of_the_same_data():
    torch = pytest.importorskip("torch")
    from benchmarks.papers import accelerator_works

    batches = {
        "pictures": {
            "image": torch.zeros(2, data.SIDE, data.SIDE, 3, dtype=torch.uint8),
            "label": torch.tensor([1, 2]),
        },
        "digits": {
            "frames": torch.zeros(2, 9, data.MELS),
            "length": torch.tensor([9, 5]),
            "label": torch.tensor([1, 2]),
        },
        "text": {
            "tokens": torch.arange(16).reshape(2, 8),
            "segment_ids": torch.tensor([[1, 1, 1, 2, 2, 2, 0, 0]] * 2),
            "positions": torch.tensor([[0, 1, 2, 0, 1, 2, 0, 0]] * 2),
        },
    }
    for name, kind in accelerator_works.works("cuda").items():
        work = kind()
        network = (
            accelerator_works.LargeReader(48, 2, 2)  # the full one is half a gigabyte of weights and gradients
            if name == "text"
            else work.network()
        )
        loss = work.loss(network, batches[name])
        torch.autograd.backward(loss)
        assert all(each.grad is not None for each in network.parameters()), name
        assert 0 < float(loss.detach()) < 20
    assert accelerator_works.works("cpu")["text"].batch < accelerator_works.works("cuda")["text"].batch


def test_what_a_reader_says_of_a_document_depends_on_no_other_and_on_nothing_later():
    torch = pytest.importorskip("torch")
    from benchmarks.papers.accelerator_works import LargeReader

    network = LargeReader(32, 2, 2)
    segments, places = torch.tensor([[1, 1, 1, 2, 2, 2]]), torch.tensor([[0, 1, 2, 0, 1, 2]])
    before = network(torch.tensor([[5, 6, 7, 8, 9, 10]]), segments, places)
    after = network(torch.tensor([[1, 6, 7, 8, 9, 11]]), segments, places)
    changed = [not torch.allclose(before[0, place], after[0, place]) for place in range(6)]
    assert changed == [True, True, True, False, False, True]
