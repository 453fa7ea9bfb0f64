"""Pickles of samples, which ``pickle.loads`` reads: torch's own way with a tensor takes ten times as long."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch


def dumps(sample: Any) -> bytes:
    """Pickle a sample; plain tensors are their bytes in it."""
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(sample)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Reduce plain tensors to their bytes; torch writes an archive for each, of the whole storage that it views."""
        if type(value) is not torch.Tensor or not _is_plain(value):
            return NotImplemented
        data = value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return tensor_of, (data, value.dtype, tuple(value.shape))


def _is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor is nothing but its elements, one after the other."""
    return (
        value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg())
        and value.is_contiguous()
        and not vars(value)
    )


def tensor_of(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Make a tensor of its bytes, with memory of its own."""
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)
