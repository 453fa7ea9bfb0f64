from typing import Any, cast

import msgspec
import numpy as np
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
                "sharding is ShardingPolicy.OFF, ShardingPolicy.DYNAMIC, ShardingPolicy.STATIC, "
                "ShardingPolicy.STATIC_CONTIGUOUS or a function, not 'dynamic'"
            ),
        ),
        (
            {"compression": "gzip"},
            "distribute: compression must be one of None, 'lz4', 'zstd', not 'gzip'",
        ),
        (
            {"deterministic": "yes"},
            "distribute: deterministic must be one of False, True, not 'yes'",
        ),
    ],
)
def test_a_string_where_a_choice_is_meant_names_the_choices(wrong: dict[str, Any], said: str):
    with pytest.raises(mr.PipelineError) as caught:
        mr.Dataset.range(3).distribute(**wrong)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"num_consumers": "2"}, "distribute: num_consumers must be a whole number of at least 1, not '2'"),
        ({"num_consumers": 16_385}, "distribute: num_consumers must be a whole number of at most 16,384, not 16385"),
        ({"tasks": 100_000_000}, "distribute: tasks must be a whole number of at most 1,000,000, not 100000000"),
        ({"accelerators": 1e9}, "distribute: accelerators must be a whole number of at least 1, not 1000000000.0"),
        ({"accelerators": 10**9}, "distribute: accelerators must be a whole number of at most 1,024, not 1000000000"),
        ({"workers": 10**9}, "workers: a job has at most 100,000, not 1,000,000,000"),
        ({"num_consumers": 0}, "distribute: num_consumers must be a whole number of at least 1, not 0"),
        ({"consumer_index": "0"}, "distribute: consumer_index must be a whole number of at least 0, not '0'"),
        (
            {"job_name": "a", "num_consumers": 2, "consumer_index": 2},
            "distribute: consumer_index must be a whole number from 0 to 1, not 2",
        ),
        ({"accelerators": "8"}, "distribute: accelerators must be a whole number of at least 1, not '8'"),
        ({"tasks": 0}, "distribute: tasks must be a whole number of at least 1, not 0"),
        ({"seed": "x"}, "distribute: seed must be a whole number, not 'x'"),
        ({"seed": 1 << 64}, f"distribute: seed must fit into 64 bits, and {1 << 64} does not"),
        ({"token": 5}, "token is a str or None, not of type int"),
        ({"job_name": ""}, "job_name is what all processes of a training call it, or None, not ''"),
        ({"job_name": 5}, "job_name is what all processes of a training call it, or None, not 5"),
    ],
)
def test_what_is_no_number_and_no_name_is_said_where_it_was_written(wrong: dict[str, Any], said: str):
    with pytest.raises(mr.PipelineError) as caught:
        mr.Dataset.range(3).distribute("grpc://127.0.0.1:1", **wrong)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "several", [{"num_consumers": 2}, {"num_consumers": 2, "consumer_index": 0}, {"consumer_index": 1}]
)
def test_consumers_that_could_not_find_one_another_are_told_how(several: dict[str, Any]):
    with pytest.raises(mr.PipelineError, match=r"give all of them the same job_name="):
        mr.Dataset.range(3).distribute("grpc://127.0.0.1:1", **several)
    mr.Dataset.range(3).distribute("grpc://127.0.0.1:1", num_consumers=1, consumer_index=0)


def test_consumers_without_a_common_service_are_told_to_hold_one():
    with pytest.raises(mr.PipelineError, match=r"hold one, a LocalService for instance, and give all of them its"):
        mr.Dataset.range(3).distribute(job_name="a", num_consumers=2, consumer_index=0)


def test_numbers_may_be_numpys():
    numbers: dict[str, Any] = {"workers": np.int64(2), "num_consumers": np.int64(3), "consumer_index": np.int8(1)}
    made = mr.Dataset.range(3).distribute("grpc://127.0.0.1:1", job_name="a", **numbers)
    pipeline: Any = made.__pipeline__()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(pipeline._parameters))["num_consumers"] == 3


@pytest.mark.parametrize("address", [5, b"grpc://127.0.0.1:1", "127.0.0.1", "http://127.0.0.1:1"])
def test_what_is_no_address_is_said_where_it_was_written(address: Any):
    with pytest.raises(mr.ServiceError, match=r"is not an address.*an address is HOST:PORT or grpc://HOST:PORT"):
        mr.Dataset.range(3).distribute(address)


def test_a_service_is_told_apart_from_its_address():
    class Held:
        address = "grpc://127.0.0.1:1"

    said = r"^distribute takes the address of a service, 'grpc://127\.0\.0\.1:1', not "
    with pytest.raises(mr.PipelineError, match=said):
        mr.Dataset.range(3).distribute(cast("str", Held()))


@pytest.mark.parametrize("count", [-1, "2"])
def test_a_number_of_epochs_is_a_number(count: Any):
    with pytest.raises(mr.PipelineError, match=r"^epochs: count must be a whole number of at least 0, not "):
        next(mr.Dataset.range(3).distribute("grpc://127.0.0.1:1").epochs(count))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"min_workers": "2"}, "min_workers and max_workers are whole numbers, not '2' and None"),
        ({"max_workers": 2.5}, "min_workers and max_workers are whole numbers, not 1 and 2.5"),
        ({"min_workers": 3, "max_workers": 2}, "a service of at least 3 and at most 2 workers cannot be"),
        ({"max_workers": 0}, "a service of at least 1 and at most 0 workers cannot be"),
        ({"token": 5}, "token is a str or None, not of type int"),
        ({"work_dir": 5}, "work_dir is the path of a folder or None, not 5"),
        ({"cache_dir": 5, "cache_bytes": 1}, "cache_dir is the path of a folder or None, not 5"),
        ({"quotas": ["a"]}, "quotas are numbers of workers by the names of tenants, as in {'vision': 8}, not ['a']"),
    ],
)
def test_a_service_that_cannot_be_is_not_started(wrong: dict[str, Any], said: str):
    with pytest.raises(mr.PipelineError) as caught:
        mr.LocalService(**wrong)
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
