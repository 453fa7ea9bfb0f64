import pickle

import numpy as np
import pytest
import torch

from millrace.frameworks.torch import sample_pickle

DTYPES = [torch.uint8, torch.int64, torch.float32, torch.bfloat16, torch.bool, torch.complex64]


def again(sample):
    return pickle.loads(sample_pickle.dumps(sample))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_a_tensor_comes_back_as_it_was(dtype, shape):
    tensor = torch.arange(24).reshape(-1)[: int(np.prod(shape, dtype=int))].reshape(shape).to(dtype)
    found = again({"a": tensor, "b": [tensor, 3]})
    assert found["b"][0] is found["a"]
    assert found["b"][1] == 3
    assert type(found["a"]) is torch.Tensor
    assert (found["a"].dtype, found["a"].shape) == (dtype, tensor.shape)
    assert torch.equal(found["a"], tensor)
    found["a"].zero_()  # it is the user's own


def test_of_a_view_its_own_elements_are_kept():
    whole = torch.zeros(1 << 20)
    assert len(sample_pickle.dumps(whole[5:7])) < 1000
    assert torch.equal(again(whole[5:7]), whole[5:7])


def test_a_picture_comes_back_as_it_was():
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    found = again({"picture": picture, "label": 3})["picture"]
    assert (type(found), found.mode, found.tobytes()) == (type(picture), "RGB", picture.tobytes())


class Own(torch.Tensor):
    pass


def test_other_tensors_are_pickled_as_torch_does():
    transposed = torch.arange(6).reshape(2, 3).T
    assert again(transposed).stride() == transposed.stride()
    learned = again(torch.nn.Parameter(torch.ones(2)))
    assert learned.requires_grad
    assert isinstance(learned, torch.nn.Parameter)
    assert again(torch.ones(2, requires_grad=True)).requires_grad
    named = torch.ones(2)
    named.label = "a"  # type: ignore[attr-defined]
    assert again(named).label == "a"
    assert type(again(torch.ones(2).as_subclass(Own))) is Own
    assert again(torch.ones(2, 2).to_sparse()).is_sparse
    assert again(torch.ones(2, dtype=torch.complex64).conj()).is_conj()
