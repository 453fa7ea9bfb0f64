from typing import Any

import pytest

import millrace as mr
from millrace import cli


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"visitation": "exactly_once"},
            (
                "visitation is Visitation.EXACTLY_ONCE, Visitation.AT_MOST_ONCE, Visitation.ZERO_ONCE_OR_MORE, "
                "not 'exactly_once'"
            ),
        ),
        (
            {"sharding": "dynamic"},
            (
                "sharding is ShardingPolicy.OFF, ShardingPolicy.DYNAMIC, ShardingPolicy.STATIC or a function, "
                "not 'dynamic'"
            ),
        ),
        (
            {"compression": "gzip"},
            "distribute: compression must be one of None, 'lz4', 'zstd', not 'gzip'",
        ),
    ],
)
def test_a_string_where_a_choice_is_meant_names_the_choices(wrong: dict[str, Any], said: str):
    with pytest.raises(mr.PipelineError) as caught:
        mr.Dataset.range(3).distribute(**wrong)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["dispatcher", "--port", "x"], "argument --port: 'x' is not a whole number"),
        (["dispatcher", "--port", "99999"], "argument --port: 99999 is not from 0 to 65535"),
        (["dispatcher", "--local-workers", "-1"], "argument --workers/--local-workers: -1 is less than 0"),
        (["worker", "--dispatcher", "a:1", "--threads", "0"], "argument --threads: 0 is less than 1"),
    ],
)
def test_numbers_on_the_command_line_say_what_they_may_be(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as caught:
        cli.parser().parse_args(options)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
