"""What epochs have cost, by a table of prices."""

import io
from typing import Any

import pytest

from millrace.display.cost import costs, read_prices, show
from millrace.display.cost import dispatcher as dispatcher_cost
from millrace.errors import PipelineError

STATUS: dict[str, Any] = {
    "jobs": [
        {
            "name": "ours",
            "accelerators": 4,
            "spent": [
                {
                    "epoch": epoch,
                    "worker_hours": workers,
                    "core_hours": 0.0,
                    "gib_hours": 0.0,
                    "training_hours": training,
                    "service": None,
                    "training": None,
                }
                for epoch, workers, training in ((0, 8.0, 0.5), (1, 2.0, 0.25))
            ],
        }
    ],
}
TABLE = """
currency = "USD"
[prices]
core = 0.03
gib = 0.005
accelerator = 2.0
[worker]
cores = 1
gib = 4
[host]
hour = 1.0
"""


def table(folder, text=TABLE):
    path = folder / "prices.toml"
    path.write_text(text)
    return str(path)


def test_each_epoch_costs_its_workers_and_its_training(tmp_path):
    rows = costs(STATUS, read_prices(table(tmp_path)))
    assert [(row["epoch"], row["service"], row["training"]) for row in rows] == [
        (0, pytest.approx(8 * 0.05), pytest.approx(0.5 * 9)),
        (1, pytest.approx(2 * 0.05), pytest.approx(0.25 * 9)),
    ]
    out = io.StringIO()
    show(rows, "USD", out)
    first, second, _ = out.getvalue().splitlines()
    head = "job epoch worker hours core hours training hours service training together"
    assert first.split() == head.split()
    assert second.split() == ["ours", "0", "8.000", "0.000", "0.500", "0.4", "USD", "4.5", "USD", "4.9", "USD"]


def test_workers_cost_what_they_were_measured_to_use_and_the_dispatcher_is_one_more(tmp_path):
    (job,) = STATUS["jobs"]
    used = {**job["spent"][0], "core_hours": 2.0, "gib_hours": 16.0}
    dispatcher = {"hours": 0.5, "core_hours": 0.1, "gib_hours": 0.04, "service": None}
    status = {"jobs": [{**job, "spent": [used]}], "dispatcher": dispatcher}
    prices = read_prices(table(tmp_path))
    (row,) = rows = costs(status, prices)
    assert row["service"] == pytest.approx(2.0 * 0.03 + 16.0 * 0.005)
    shared = dispatcher_cost(status, prices)
    assert shared is not None
    assert shared["service"] == pytest.approx(0.1 * 0.03 + 0.04 * 0.005)
    out = io.StringIO()
    show(rows, "USD", out, shared)
    last = out.getvalue().splitlines()[-1]
    assert last.split() == ["(dispatcher)", "-", "0.500", "0.100", "-", "0.0032", "USD", "-", "0.0032", "USD"]
    assert dispatcher_cost(STATUS, prices) is None


def test_a_service_with_prices_says_what_epochs_have_cost():
    (job,) = STATUS["jobs"]
    (row,) = costs({"jobs": [{**job, "spent": [{**job["spent"][0], "service": 1.0, "training": 2.0}]}]})
    assert (row["service"], row["training"]) == (1.0, 2.0)


def test_without_prices_there_are_hours():
    rows = costs(STATUS)
    assert [(row["worker_hours"], row["service"]) for row in rows] == [(8.0, None), (2.0, None)]
    out = io.StringIO()
    show(rows, out=out)
    assert out.getvalue().splitlines()[1].split() == ["ours", "0", "8.000", "0.000", "0.500", "-", "-", "-"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[prices]\ncore = 'much'", "no table of prices: Expected `float`, got `str` - at `$.prices.core`"),
        ("[pries]\ncore = 1", "unknown field `pries`"),
        ("[prices", "no table of prices"),
    ],
)
def test_what_is_no_table_of_prices_is_said(tmp_path, text, words):
    with pytest.raises(PipelineError, match=words.replace("$", "\\$").replace("[", "\\[")):
        read_prices(table(tmp_path, text))


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(PipelineError, match="No such file"):
        read_prices(str(tmp_path / "none.toml"))
