"""Elements as tensors: over the memory that arrived, whatever is in them."""

import gc

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import millrace as mr
from millrace.frameworks.torch import to_tensor


def test_shares_memory_in_process():
    arrays = [np.arange(6.0).reshape(2, 3) + i for i in range(3)]
    tensors = list(mr.Dataset.from_list(arrays).torch())
    assert [tensor.data_ptr() for tensor in tensors] == [array.ctypes.data for array in arrays]
    tensors[0][0, 0] = 7
    assert arrays[0][0, 0] == 7


def test_shares_memory_of_what_arrived_and_keeps_it():
    with mr.LocalService(max_workers=1) as service:
        dataset = mr.Dataset.range(64).map(lambda i: np.full((32, 32), i, np.float32)).batch(8)
        distributed = dataset.distribute(service.address, deterministic=True)
        arrived = []
        read_epoch = distributed.__pipeline__().read_epoch

        def watched(number=None, share=None):
            class Watched:
                def __init__(self):
                    self.epoch = read_epoch(number, share)

                def __iter__(self):
                    return self

                def __next__(self):
                    array = next(self.epoch)
                    arrived.append(array.ctypes.data)
                    return array

                def close(self):
                    self.epoch.close()

            return Watched()

        distributed.__pipeline__().read_epoch = watched  # type: ignore[method-assign]
        tensors = list(distributed.torch())
        assert [tensor.data_ptr() for tensor in tensors] == arrived
        for tensor in tensors:
            tensor.add_(1)
        distributed.close()
    del distributed, dataset, service
    gc.collect()
    rows = torch.cat(tensors)
    assert torch.equal(rows, (torch.arange(64.0) + 1)[:, None, None].expand(64, 32, 32))


class TestLeaves:
    @pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
    def test_small_floats_are_those_of_torch_over_the_same_memory(self, name):
        array = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name))
        (tensor,) = mr.Dataset.from_list([array]).torch()
        assert tensor.dtype is getattr(torch, name)
        assert tensor.data_ptr() == array.ctypes.data
        assert tensor.to(torch.float32).tolist() == [[0, 1, 2], [3, 4, 5]]
        turned = to_tensor(array[:, ::-1])
        assert turned.to(torch.float32).tolist() == [[2, 1, 0], [5, 4, 3]]

    def test_everything_but_numeric_arrays_stays(self):
        element = {"s": "text", "b": b"bytes", "n": None, "i": 3, "f": 0.5, "t": (True, [np.float32(2)])}
        (found,) = mr.Dataset.from_list([element]).torch()
        assert found == element
        assert type(found["t"][1][0]) is np.float32

    def test_nested(self):
        element = {"a": (np.zeros(2), [np.ones((1, 2), np.uint8), "x"]), "b": {"c": np.array(5)}}
        (found,) = mr.Dataset.from_list([element]).torch()
        assert found["a"][0].dtype is torch.float64
        assert found["a"][1][0].tolist() == [[1, 1]]
        assert found["a"][1][1] == "x"
        assert found["b"]["c"].shape == ()

    @pytest.mark.parametrize(
        "dtype", ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", ">i4", ">f8"]
    )
    def test_dtypes(self, dtype):
        array = np.arange(4).astype(dtype)
        tensor = to_tensor(array)
        assert tensor.tolist() == array.tolist()
        assert tensor.numpy().dtype == array.dtype.newbyteorder("=")

    def test_read_only_memory_is_copied(self):
        array = np.arange(4)
        array.flags.writeable = False
        tensor = to_tensor(array)  # torch would warn
        tensor[0] = 9
        assert array[0] == 0

    def test_strides(self):
        array = np.arange(12).reshape(3, 4)
        assert to_tensor(array[::-1]).tolist() == array[::-1].tolist()
        assert to_tensor(array[:, ::2]).data_ptr() == array.ctypes.data
        assert to_tensor(np.broadcast_to(np.arange(2), (3, 2))).tolist() == [[0, 1]] * 3
        records = np.zeros(3, dtype=[("a", "u1"), ("b", "f4")])
        records["b"] = [1, 2, 3]
        assert to_tensor(records["b"]).tolist() == [1, 2, 3]

    def test_arrays_of_strings_become_lists(self):
        assert to_tensor(np.array([["a", "b"]])) == [["a", "b"]]
        assert to_tensor(np.array([b"a", b"b"])) == [b"a", b"b"]
        assert to_tensor(np.array(["a", "bc"], dtype=object)) == ["a", "bc"]

    @pytest.mark.parametrize("dtype", ["M8[s]", "V3", "g", [("a", "i4")]])
    def test_what_torch_has_no_type_for_stays(self, dtype):
        array = np.zeros(2, dtype)
        assert to_tensor(array) is array

    def test_empty_and_scalar(self):
        assert to_tensor(np.zeros((0, 3))).shape == (0, 3)
        assert to_tensor(np.array(2.5)).item() == 2.5


def test_a_kept_batch_survives_the_loader():
    loader = DataLoader(mr.Dataset.range(100).map(np.array).batch(10).torch(), batch_size=None, num_workers=1)
    kept = list(loader)
    del loader
    gc.collect()
    assert torch.cat(kept).tolist() == list(range(100))


def test_ragged_arrays_are_jagged_tensors_over_the_same_memory():
    def example(i):
        return {"x": np.full((i, 2), i, np.float32), "pairs": [(np.arange(i), str(i))]}

    batches = mr.Dataset.range(1, 6).map(example).ragged_batch(3)
    for workers in (0, 1):
        found = list(DataLoader(batches.torch(), batch_size=None, num_workers=workers))
        assert all(batch["x"].layout is torch.jagged for batch in found)
        rows = [row.tolist() for batch in found for row in batch["x"].unbind()]
        assert rows == [[[i, i]] * i for i in range(1, 6)]
        assert found[1]["pairs"][0][0].offsets().tolist() == [0, 4, 9]
    (batch,) = batches.take(1)
    tensor = next(iter(mr.Dataset.from_list([batch]).torch()))["x"]
    assert tensor.values().data_ptr() == batch["x"].values.ctypes.data
