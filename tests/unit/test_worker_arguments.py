"""What is said of workers: how many a service is to have, and how long they may take. Nonsense starts nothing."""

import pytest

import millrace as mr
from millrace.cli import main
from millrace.clusters.service import worker_range


@pytest.mark.parametrize("kind", [mr.LocalService, mr.RayService])
@pytest.mark.parametrize(("least", "most"), [(-1, 4), (0, 0), (4, 3), (0, -1)])
def test_numbers_that_make_no_sense_are_refused(kind, least, most):
    with pytest.raises(mr.PipelineError, match=f"at least {least} and at most {most} workers cannot be"):
        kind(least, most)


def test_others_are_not():
    assert (worker_range(0, 1, 8), worker_range(4, 4, 8), worker_range(2, None, 8), worker_range(9, None, 8)) == (
        (0, 1),
        (4, 4),
        (2, 8),
        (9, 9),
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dispatcher", "--heartbeat", "0"], "argument --heartbeat: 0 is not more than 0"),
        (["dispatcher", "--heartbeat", "-1"], "argument --heartbeat: '-1' is not a number from 0 on"),
        (
            ["worker", "--dispatcher", "grpc://d:1", "--drain-timeout", "nan"],
            "argument --drain-timeout: 'nan' is not a",
        ),
        (["bench", "link", "a:1", "--seconds", "0"], "argument --seconds: 0 is not more than 0"),
    ],
)
def test_times_that_make_no_sense_are_refused(arguments, said, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert said in capsys.readouterr().err
