"""Trains a linear model on samples that are objects of a bucket each, read by HTTP: number N is URL/N.f32.

It draws them at random by torch's own Dataset, Sampler and DataLoader. bucket_samples.py reads every sample from the
bucket in every epoch; bucket_samples_cached.py, which is two lines and an import away, reads each of them once.
"""

from __future__ import annotations

import argparse
import urllib.request

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from millrace.frameworks.torch import CachedDataset, PrefetchSampler

FEATURES = 8


class Objects(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples of float32: the features, and behind them what is to be predicted."""

    def __init__(self, url: str, count: int) -> None:
        self.url, self.count = url, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with urllib.request.urlopen(f"{self.url}/{index}.f32") as answer:
            values = torch.frombuffer(bytearray(answer.read()), dtype=torch.float32)
        return values[:FEATURES], values[FEATURES]


def main() -> None:
    """Trains, and says the mean loss of each epoch."""
    parser = argparse.ArgumentParser(description="Trains a linear model on objects of a bucket.")
    parser.add_argument("url", help="of the bucket, or of a prefix in it")
    parser.add_argument("count", type=int, help="of samples")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    dataset = CachedDataset(Objects(options.url, options.count), 2 << 30)
    sampler = PrefetchSampler(RandomSampler(dataset), dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2)
    for epoch in range(options.epochs):
        total = 0.0
        for features, targets in loader:
            loss = torch.nn.functional.mse_loss(model(features).squeeze(1), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(targets)
        print(f"epoch {epoch}: mean loss {total / len(dataset):.6f}")


if __name__ == "__main__":
    main()
