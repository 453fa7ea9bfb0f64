"""JPEG files like ImageNet's, made from noise; the same bytes on every machine with the same Pillow.

What a decoder's time depends on is alike: sizes of pictures (most are 500 x 375), bytes of a file (110 KB on average,
widely spread, which the amount of fine detail decides), quality and chroma subsampling.
"""

from __future__ import annotations

import os
import shutil
import tempfile

import numpy as np

_SHAPES = ((375, 500), (333, 500), (500, 375), (375, 500), (480, 640), (375, 500), (400, 400), (375, 500))
"""Height and width of pictures in turn."""
_QUALITY = 92


def folder_of(count: int) -> str:
    """A folder with so many files, below the user's cache folder; written there if it isn't yet."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(cache, "millrace-benchmarks", f"pictures-{count}")
    if not os.path.isdir(folder):
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        unfinished = tempfile.mkdtemp(prefix="unfinished-", dir=os.path.dirname(folder))
        try:
            for number in range(count):
                _write(os.path.join(unfinished, f"{number:06}.jpg"), number)
            os.rename(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _write(path: str, number: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(number)
    height, width = _SHAPES[number % len(_SHAPES)]
    picture = np.full((height, width, 3), 128.0, np.float32)
    detail = rng.lognormal(0.3, 0.45)
    # Coarse forms are strong and fine ones weak, as in photographs.
    for cells, strength in ((4, 50.0), (16, 25.0), (64, 14.0 * detail), (160, 9.0 * detail), (500, 5.0 * detail)):
        noise = rng.standard_normal((max(cells * height // width, 2), cells, 3), dtype=np.float32)
        noise += noise.mean(axis=2, keepdims=True) * 2  # brightness varies more than colour
        for channel in range(3):
            layer = Image.fromarray(noise[:, :, channel]).resize((width, height), Image.Resampling.BILINEAR)
            picture[:, :, channel] += np.asarray(layer) * strength
    Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(path, quality=_QUALITY)
