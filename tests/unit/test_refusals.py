"""Refusals that docs/guarantees.md lists, each with the sentence: the page and the errors say the same."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_coordinated_arguments import coordinated, state_of

import millrace as mr

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"
RUNNING = {"a rank that does not come", "a name twice at a time"}
"""What only a service that runs can refuse: test_group_ranks.py and test_service_sharing.py have these."""


def decode(element: Any) -> Any:
    return element


def shared(sharing: mr.Sharing | None = mr.Sharing.LOCKSTEP, service: str | None = "grpc://h:1", **chosen: Any) -> Any:
    return mr.Dataset.range(9).distribute(service, job_name="job", sharing=sharing, **chosen)


WINDOW, LOCKSTEP = mr.Sharing.WINDOW, mr.Sharing.LOCKSTEP
REFUSED: dict[str, list[Callable[[], Any]]] = {
    "no `num_consumers`": [lambda: coordinated(num_consumers=None)],
    "a `sharding` other than DYNAMIC": [lambda: coordinated(sharding=mr.ShardingPolicy.STATIC)],
    "`AT_MOST_ONCE`, `ZERO_ONCE_OR_MORE`, without WINDOW": [lambda: coordinated(visitation=mr.Visitation.AT_MOST_ONCE)],
    "`equal_steps=True`": [lambda: coordinated(equal_steps=True)],
    "a pipeline without batches": [lambda: coordinated(mr.Dataset.range(9))],
    "an operator behind the batches that does not give one output for each": [
        lambda: coordinated(mr.Dataset.range(9).batch(3).shuffle(10))
    ],
    '`on_error="skip"` with a `map` behind the batches': [
        lambda: coordinated(mr.Dataset.range(9).batch(3).map(decode).with_options(on_error="skip"))
    ],
    '`incomplete="mix"` with `no_padding=True`': [
        lambda: coordinated(
            mr.Dataset.range(9).bucket_by_sequence_length(len, [10], [4, 4], no_padding=True), incomplete="mix"
        )
    ],
    '`incomplete="mix"` without `coordinated=True`': [lambda: coordinated(coordinated=False, incomplete="mix")],
    "`cycle_length` without `coordinated=True`": [lambda: coordinated(coordinated=False, cycle_length=16)],
    "operators behind `distribute()` that may give a rank more": [lambda: coordinated().unbatch()],
    "several processes of a DataLoader": [lambda: coordinated().__pipeline__().read_epoch(share=(0, 2))],
    "a state from other `coordinated=` or `incomplete=`": [
        lambda: coordinated().load_state_dict(state_of(coordinated(incomplete="mix"), ranks=2))
    ],
    "the states of another number of ranks": [
        lambda: coordinated().load_state_dict(state_of(coordinated(num_consumers=4), ranks=4))
    ],
    "a state from another `cycle_length`": [
        lambda: coordinated().load_state_dict(state_of(coordinated(cycle_length=16), ranks=2))
    ],
    "WINDOW with `EXACTLY_ONCE`": [lambda: shared(WINDOW)],
    "no address": [lambda: shared(service=None)],
    "`num_consumers`, `consumer_index`, `equal_steps`, without `coordinated=True`": [
        lambda: shared(num_consumers=2),
        lambda: shared(consumer_index=1),
        lambda: shared(num_consumers=2, equal_steps=True),
    ],
    "`ShardingPolicy.OFF`": [
        lambda: shared(sharding=mr.ShardingPolicy.OFF, visitation=mr.Visitation.ZERO_ONCE_OR_MORE)
    ],
    "local workers": [lambda: shared(local_workers=1), lambda: shared(target_workers="local")],
    "WINDOW with `coordinated=True` and `ZERO_ONCE_OR_MORE`": [
        lambda: coordinated(sharing=WINDOW, visitation=mr.Visitation.ZERO_ONCE_OR_MORE)
    ],
    "`window_bytes` with `coordinated=True`": [
        lambda: coordinated(sharing=WINDOW, visitation=mr.Visitation.AT_MOST_ONCE, window_bytes=9)
    ],
    "`window_bytes` without WINDOW": [lambda: shared(LOCKSTEP, window_bytes=9)],
    "a DataLoader's processes": [lambda: shared().__pipeline__().read_epoch(share=(0, 1))],
}


def sentences() -> dict[str, str]:
    """Find the sentence for each thing that a table of the page says is refused."""
    rows: dict[str, str] = {}
    for table in PAGE.read_text().split("| refused | the sentence |\n| --- | --- |\n")[1:]:
        for line in table.split("\n\n")[0].splitlines():
            what, sentence = (each.strip() for each in line.strip("|").split(" | "))
            rows[what] = sentence.rstrip()
    return rows


def test_the_page_lists_these():
    assert sentences().keys() == REFUSED.keys() | RUNNING


@pytest.mark.parametrize(("what", "refused"), [(what, each) for what, several in REFUSED.items() for each in several])
def test_what_is_refused_is_said_as_on_the_page(what, refused):
    words = re.escape(sentences()[what]).replace(re.escape("..."), ".*")
    with pytest.raises((mr.PipelineError, mr.StateError), match=f"^{words}$"):
        refused()
