from __future__ import annotations

import copy

import pytest
import torch

from millrace.errors import UnsureError
from millrace.functions.fingerprint import fingerprint


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x - self.mean)  # type: ignore[no-any-return, operator]  # a buffer may be a Module, to torch


def test_modules_go_by_their_tensors() -> None:
    module = Scaled()
    before = fingerprint(module)
    twin = copy.deepcopy(module)
    assert fingerprint(twin) == before
    with torch.no_grad():
        twin.linear.bias[1] += 1
    assert fingerprint(twin) != before
    assert fingerprint(module.eval()) != before, "dropout and the like depend on the mode"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(3), torch.zeros(4)),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(3), torch.ones(3)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int32)),
        (torch.zeros(3), torch.nn.Parameter(torch.zeros(3))),
        (torch.float32, torch.float64),
        (torch.device("cpu"), torch.device("meta")),
        (torch.relu, torch.sigmoid),
        (torch.nn.functional.relu, torch.nn.functional.gelu),
    ],
)
def test_other_tensors_have_other_fingerprints(one: object, other: object) -> None:
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint([one]) == fingerprint([copy.deepcopy(one)])


def test_how_a_tensor_lies_in_memory_does_not_matter() -> None:
    assert fingerprint(torch.arange(6).reshape(2, 3).t()) == fingerprint(torch.tensor([[0, 3], [1, 4], [2, 5]]))


def test_a_tensor_without_bytes_is_refused() -> None:
    with pytest.raises(UnsureError, match="whose bytes cannot be read"):
        fingerprint(torch.zeros(3, device="meta"))
