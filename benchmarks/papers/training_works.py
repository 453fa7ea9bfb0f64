"""Trainings that :mod:`benchmarks.papers.trainings` compares: pictures, spoken digits, text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

import millrace as mr
from benchmarks.papers import training_data as data

BUCKETS = 6
DOCUMENTS = 16
"""Of a padded batch; a batch of packed rows has half as many."""


class Work(ABC):
    """A training.

    Attributes:
        batch: items of a batch.
        less: a lower score is better.
        rate: that it learns at.
        warm_up: steps until it does.
        half: an accelerator may compute in bfloat16.
    """

    batch: int
    less = False
    rate = 2e-3
    warm_up = 1
    half = False

    @abstractmethod
    def items(self, folder: str) -> data.Items:
        """Items to learn from, and to be tested with."""

    @staticmethod
    @abstractmethod
    def load(item: data.Item, rng: np.random.Generator) -> dict[str, Any]:
        """The example of an item, augmented at random."""

    @staticmethod
    @abstractmethod
    def plain(item: data.Item) -> dict[str, Any]:
        """The example of an item as it is, for tests."""

    @abstractmethod
    def collate(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A batch of arrays, as a DataLoader makes it."""

    @abstractmethod
    def served(self, examples: mr.Dataset) -> mr.Dataset:
        """Batches of examples, as a service makes them."""

    def options(self, rank: int, ranks: int) -> dict[str, Any]:
        """Options of ``distribute`` for a rank."""
        return {}

    @abstractmethod
    def network(self) -> nn.Module:
        """The model."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        """Loss of a batch of tensors."""

    @abstractmethod
    def score(self, model: nn.Module, tests: Sequence[dict[str, Any]]) -> float:
        """Score of the model on test batches."""


class Classification(Work):
    """A training that learns classes; the score is accuracy in percent."""

    @abstractmethod
    def scores(self, model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        """Scores of the classes for each example of a batch."""

    @override
    def loss(self, model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        return cross_entropy(self.scores(model, batch), batch["label"].long())

    @override
    def score(self, model: nn.Module, tests: Sequence[dict[str, Any]]) -> float:
        right = sum(int((self.scores(model, batch).argmax(1) == batch["label"]).sum()) for batch in tests)
        return 100 * right / sum(len(batch["label"]) for batch in tests)


class Pictures(Classification):
    """Classes of CIFAR-10's pictures."""

    batch = 128
    load, plain = staticmethod(data.load_picture), staticmethod(data.plain_picture)

    @override
    def items(self, folder: str) -> data.Items:
        return data.pictures(folder)

    @override
    def collate(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        images = np.stack([each["image"] for each in examples])
        return {"image": images, "label": np.array([each["label"] for each in examples])}

    @override
    def served(self, examples: mr.Dataset) -> mr.Dataset:
        return examples.batch(self.batch, drop_remainder=True)

    @override
    def network(self) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))

    @override
    def scores(self, model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        scores: torch.Tensor = model(batch["image"].permute(0, 3, 1, 2).float() / 128 - 1)
        return scores


class Digits(Classification):
    """Spoken digits; ranks are in step."""

    batch = 16
    load, plain = staticmethod(data.load_digit), staticmethod(data.plain_digit)

    @override
    def items(self, folder: str) -> data.Items:
        return data.digits(folder)

    @override
    def collate(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        numbers = {key: np.array([each[key] for each in examples]) for key in ("label", "length")}
        return {"frames": _padded([each["frames"] for each in examples]), **numbers}

    @override
    def served(self, examples: mr.Dataset) -> mr.Dataset:
        found = examples.suggest_buckets(data.length_of, buckets=BUCKETS, sample=500)
        sizes = [self.batch] * (len(found.boundaries) + 1)
        return examples.bucket_by_sequence_length(data.length_of, found.boundaries, sizes)

    @override
    def options(self, rank: int, ranks: int) -> dict[str, Any]:
        return {"num_consumers": ranks, "consumer_index": rank, "coordinated": True}

    @override
    def network(self) -> nn.Module:
        return Recogniser(64, 1)

    @override
    def scores(self, model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        scores: torch.Tensor = model(batch["frames"].float() / 4, batch["length"])
        return scores


class Text(Work):
    """A small language model on paragraphs, bytes as tokens; the score is the loss of a byte in nats."""

    batch, less = DOCUMENTS, True
    load, plain = staticmethod(data.load_document), staticmethod(data.plain_document)

    @override
    def items(self, folder: str) -> data.Items:
        return data.documents(folder)

    @override
    def collate(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        rows = [each["tokens"] for each in examples]
        tokens = _padded(rows)
        places = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        real = places < np.array([len(row) for row in rows])[:, None]
        return {"tokens": tokens, "segment_ids": real.astype(np.int32), "positions": places * real}

    @override
    def served(self, examples: mr.Dataset) -> mr.Dataset:
        return examples.pack(data.ROW, keys="tokens").batch(self.batch // 2, drop_remainder=True)

    @override
    def network(self) -> nn.Module:
        return _Reader()

    @override
    def loss(self, model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        losses, count = self._losses(model, batch)
        return losses.sum() / count

    @override
    def score(self, model: nn.Module, tests: Sequence[dict[str, Any]]) -> float:
        found = [self._losses(model, batch) for batch in tests]
        return sum(float(losses.sum()) for losses, _ in found) / sum(int(count) for _, count in found)

    def _losses(self, model: nn.Module, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses of all tokens, zero where none follows in its document; and how many follow."""
        tokens, segments, places = (batch[key].long() for key in ("tokens", "segment_ids", "positions"))
        scores = model(tokens, segments, places)[:, :-1]
        follows = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        losses = cross_entropy(scores.reshape(-1, 256), tokens[:, 1:].reshape(-1), reduction="none")
        return losses * follows.reshape(-1), follows.sum()


class Recogniser(nn.Module):
    """Digits from frames: recurrent layers, whose time goes with the padded length, and the mean of their outputs.

    Args:
        width: of a layer.
        layers: their number.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.recurrent = nn.GRU(data.MELS, width, layers, batch_first=True)
        self.last = nn.Linear(width, 10)

    def forward(self, frames: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Scores of the digits, of shape (batch, 10)."""
        outputs, _ = self.recurrent(frames)
        real = (torch.arange(outputs.shape[1], device=frames.device)[None] < lengths[:, None]).unsqueeze(2)
        scores: torch.Tensor = self.last((outputs * real).sum(1) / lengths[:, None])
        return scores


class _Reader(nn.Module):
    """The next byte of text: one layer of attention within each document."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, 64), nn.Embedding(data.ROW, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        self.last = nn.Linear(64, 256)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Scores of the byte behind each, of shape (batch, length, 256)."""
        size = tokens.shape[1]
        apart = segments[:, :, None] != segments[:, None, :]
        later = torch.ones(size, size, dtype=torch.bool).triu(1)
        hidden = self.bytes(tokens) + self.places(places)
        outputs = self.layer(hidden, src_mask=(apart | later).repeat_interleave(4, 0))
        scores: torch.Tensor = self.last(outputs)
        return scores


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    found = np.zeros((len(rows), max(map(len, rows)), *rows[0].shape[1:]), rows[0].dtype)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found


WORKS: dict[str, type[Work]] = {"pictures": Pictures, "digits": Digits, "text": Text}
