"""Items of the trainings that :mod:`benchmarks.papers.trainings` compares, and examples of them: no torch is needed."""

from __future__ import annotations

import functools
import io
import random
import wave
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

Item = Any
"""A path and a label, or a text."""
Items = tuple[list[Item], list[Item]]
"""Items to learn from, and to be tested with."""
SIDE = 32
MELS, WINDOW, HOP = 40, 256, 80
_LOUDEST = 32768
_LONGEST = 1 << 15
"""Samples of a recording that are heard."""
ROW = 256
"""Tokens of a row of text, and of the longest document."""


class Setting(msgspec.Struct, frozen=True):
    """What a rank is to do.

    Attributes:
        work: which training.
        feed: who makes its batches.
        address: of the service that does; empty: none.
        data: folder of the training's data.
        meet: where ranks meet; they are ``ranks``, and this one is ``rank``.
        items: most items to learn from.
        steps: most steps of training.
        every: steps from one score to the next.
        target: the score at which it has learnt enough.
        seed: of weights and orders.
    """

    work: str
    feed: str
    address: str
    data: str
    meet: str
    rank: int
    ranks: int
    items: int
    steps: int
    every: int
    target: float
    seed: int = 0


class DeviceSetting(Setting, frozen=True, kw_only=True):
    """What a rank is to do on a device.

    Attributes:
        device: of torch; on ``cpu`` the networks are small.
        loaders: processes that a DataLoader may have.
        service: processes of a service, of which this rank tells what they and their children have used.
        passes: over the data in an epoch.
        limit_s: seconds of training after which it ends at the next score.
        ideal: steps that are taken in the end with batches that lie on the device.
    """

    device: str
    loaders: int
    service: tuple[int, ...]
    passes: int
    limit_s: float
    ideal: int


# -- pictures: (path, class) -------------------------------------------------------------------------------------------


def pictures(folder: str) -> Items:
    """CIFAR-10's, JPEG files in a folder of each class below ``train`` and ``test``."""
    classes = sorted(each.name for each in Path(folder, "train").iterdir())
    labels = {name: number for number, name in enumerate(classes)}

    def found(part: str) -> list[Item]:
        paths = sorted(Path(folder, part).glob("*/*.jpg"))
        random.Random(0).shuffle(paths)
        return [(str(path), labels[path.parent.name]) for path in paths]

    return found("train"), found("test")[:1000]


def load_picture(item: Item, rng: np.random.Generator) -> dict[str, Any]:
    """A random part of a picture, in its full size, with other colours, half of them mirrored."""
    from PIL import Image, ImageEnhance

    path, label = item
    picture = Image.open(path).convert("RGB")
    side = int(SIDE * np.sqrt(rng.uniform(0.5, 1.0)))
    left, top = (int(rng.integers(0, SIDE - side + 1)) for _ in range(2))
    picture = picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC, (left, top, left + side, top + side))
    for kind in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        picture = kind(picture).enhance(float(rng.uniform(0.8, 1.2)))
    image = np.asarray(picture)
    return {"image": image[:, ::-1] if rng.random() < 0.5 else image, "label": label}


def plain_picture(item: Item) -> dict[str, Any]:
    """A picture as it is."""
    from PIL import Image

    return {"image": np.asarray(Image.open(item[0]).convert("RGB")), "label": item[1]}


# -- spoken digits: (path, digit) --------------------------------------------------------------------------------------


def digits(folder: str) -> Items:
    """WAV files whose names begin with the digit, as those of the Free Spoken Digit Dataset."""
    paths = sorted(Path(folder).glob("*.wav"))
    random.Random(0).shuffle(paths)
    items = [(str(path), int(path.name[0])) for path in paths]
    held = len(items) // 10
    return items[held:], items[:held]


def load_digit(item: Item, rng: np.random.Generator) -> dict[str, Any]:
    """A recording's frames, louder or less loud, with noise."""
    return _frames(item, float(rng.uniform(0.5, 2.0)), rng.normal(0, 0.003, _LONGEST).astype(np.float32))


def plain_digit(item: Item) -> dict[str, Any]:
    """A recording's frames as they are."""
    return _frames(item, 1.0, np.zeros(_LONGEST, np.float32))


def length_of(example: dict[str, Any]) -> int:
    """Number of a recording's frames."""
    return int(example["length"])


def _frames(item: Item, gain: float, noise: np.ndarray) -> dict[str, Any]:
    path, label = item
    with wave.open(io.BytesIO(Path(path).read_bytes())) as file:
        rate = file.getframerate()
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16)[:_LONGEST].astype(np.float32) / _LOUDEST
    sound = np.pad(sound, (0, max(0, WINDOW - len(sound))))
    sound = gain * sound + noise[: len(sound)]
    starts = np.arange(0, len(sound) - WINDOW + 1, HOP)
    frames = sound[starts[:, None] + np.arange(WINDOW)] * np.hanning(WINDOW).astype(np.float32)
    power = np.abs(np.fft.rfft(frames, axis=1)).astype(np.float32) ** 2
    return {"frames": np.log(power @ _mel_filters(rate) + 1e-6), "label": label, "length": len(starts)}


@functools.cache
def _mel_filters(rate: int) -> np.ndarray:
    """Triangles that are alike on the mel scale, float32 of shape (bins, mels)."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1) * WINDOW / rate
    bins = np.arange(WINDOW // 2 + 1)[:, None]
    rising, falling = (bins - edges[:-2]) / np.diff(edges[:-1]), (edges[2:] - bins) / np.diff(edges[1:])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


# -- documents: bytes --------------------------------------------------------------------------------------------------


def documents(folder: str) -> Items:
    """Paragraphs of the Markdown files below a folder."""
    texts = [path.read_bytes() for path in sorted(Path(folder).glob("**/*.md"))]
    found = [part.strip() for text in texts for part in text.split(b"\n\n") if len(part.strip()) > 8]
    random.Random(0).shuffle(found)
    held = min(200, len(found) // 10)
    return found[held:], found[:held]


def load_document(item: Item, rng: np.random.Generator) -> dict[str, Any]:
    """A paragraph's bytes as tokens; a long one's from anywhere on."""
    first = int(rng.integers(0, max(1, len(item) - ROW + 1)))
    return {"tokens": np.frombuffer(item, np.uint8)[first : first + ROW].astype(np.int32)}


def plain_document(item: Item) -> dict[str, Any]:
    """A paragraph's first bytes as tokens."""
    return {"tokens": np.frombuffer(item, np.uint8)[:ROW].astype(np.int32)}
