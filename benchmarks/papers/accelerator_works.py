"""Networks that keep an accelerator at work, for :mod:`benchmarks.papers.accelerator_trainings`; the data stay."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from typing_extensions import override

from benchmarks.papers import training_data as data
from benchmarks.papers.training_works import WORKS as SMALL
from benchmarks.papers.training_works import Digits, Pictures, Recogniser, Text, Work


class LargePictures(Pictures):
    """Classes of CIFAR-10's pictures by a residual network of nine layers."""

    batch, rate, warm_up, half = 512, 1e-3, 100, True

    @override
    def network(self) -> nn.Module:
        layers = [_convolution(3, 64), _convolution(64, 128), nn.MaxPool2d(2), _Residual(128)]
        layers += [_convolution(128, 256), nn.MaxPool2d(2)]
        layers += [_convolution(256, 512), nn.MaxPool2d(2), _Residual(512)]
        return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class LargeDigits(Digits):
    """Spoken digits by two wide recurrent layers."""

    batch, rate, warm_up = 64, 1e-3, 50

    @override
    def network(self) -> nn.Module:
        return Recogniser(512, 2)


class LargeText(Text):
    """Paragraphs by a transformer as large as GPT-2's smallest."""

    batch, rate, warm_up, half = 64, 3e-4, 100, True

    @override
    def network(self) -> nn.Module:
        return LargeReader(768, 12, 12)


def _convolution(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
    )


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(_convolution(width, width), _convolution(width, width))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self.layers(pictures)
        return pictures + changed


class LargeReader(nn.Module):
    """The next byte of text: layers of attention within each document.

    Args:
        width: of a layer.
        heads: of its attention.
        layers: their number.
    """

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(data.ROW, width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 256)
        for embedding in (self.bytes, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Scores of the byte behind each, of shape (batch, length, 256)."""
        size = tokens.shape[1]
        earlier = torch.ones(size, size, dtype=torch.bool, device=tokens.device).tril()
        seen = ((segments[:, :, None] == segments[:, None, :]) & earlier)[:, None]
        hidden = self.bytes(tokens) + self.places(places)
        for layer in self.layers:
            hidden = layer(hidden, seen)
        scores: torch.Tensor = self.last(self.norm(hidden))
        return scores


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        count, size, width = hidden.shape
        parts = self.asked(self.before(hidden)).view(count, size, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, attn_mask=seen)
        hidden = hidden + self.mixed(attended.transpose(1, 2).reshape(count, size, width))
        changed: torch.Tensor = self.narrow(gelu(self.wide(self.between(hidden))))
        return hidden + changed


LARGE: dict[str, type[Work]] = {"pictures": LargePictures, "digits": LargeDigits, "text": LargeText}


def works(device: str) -> dict[str, type[Work]]:
    """Trainings that suit a device of torch."""
    return SMALL if device == "cpu" else LARGE
