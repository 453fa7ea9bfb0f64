"""JPEG files to batches for training: read, decode, random crop, resize to 224 x 224, flip; batches of 64, uint8.

Everybody who can runs the same Python function, which decodes with Pillow (libjpeg-turbo); it lets go of the
interpreter lock while it decodes and resizes, so threads and processes both make sense. What is random depends on the
file alone, so that all pictures of a pass have the same sum whoever made them, which the first pass checks. ``own
operations`` are TensorFlow's: ``fused`` ones decode only what the crop keeps, and both resize without antialiasing,
which is less work; of those only the count, the shape and, roughly, the mean are checked.

A pass goes over the files three times, so that what a pass costs to begin weighs as little as with more data. The files
are in the page cache: the first pass reads them.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from benchmarks import peers, pictures, tf_service
from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main, rate
from benchmarks.machine import cores
from millrace import Dataset

BATCH = 64
SIDE = 224
_ROUGHLY = 0.03
"""By what share the mean of pictures from another decoder may differ."""


# -- the work ----------------------------------------------------------------------------------------------------------


def decode(contents: bytes, path: str) -> Any:
    """The picture that training sees: uint8 of shape (224, 224, 3).

    Args:
        contents: of a JPEG file.
        path: of the file; its name is the seed of what is random.
    """
    from PIL import Image

    rng = random.Random(zlib.crc32(os.path.basename(path).encode()))
    picture = Image.open(io.BytesIO(contents))
    box = _crop(rng, *picture.size)
    resized = picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
    array = np.asarray(resized)
    return np.ascontiguousarray(array[:, ::-1]) if rng.random() < 0.5 else array


def _crop(rng: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a piece with 8 to 100 % of the area and sides as 3:4 to 4:3."""
    area, shape = rng.uniform(0.08, 1.0) * width * height, rng.uniform(3 / 4, 4 / 3)
    wide = min(int((area * shape) ** 0.5), width)
    high = min(int((area / shape) ** 0.5), height)
    left, top = rng.randint(0, width - wide), rng.randint(0, height - high)
    return left, top, left + wide, top + high


def load(path: str) -> Any:
    """:func:`decode` of a file that is yet to be read."""
    with open(path, "rb") as file:
        return decode(file.read(), path)


def decode_element(element: Mapping[str, Any]) -> Any:
    """:func:`decode` of what ``from_files`` reads."""
    return decode(element["bytes"], element["path"])


def paths_of(files: int, repeats: int) -> list[str]:
    """The files of one pass; written first if need be."""
    folder = pictures.folder_of(files)
    return sorted(os.path.join(folder, name) for name in os.listdir(folder)) * repeats


def _prepare(options: Options) -> Options:
    """The sum over all the pictures that come out of a pass."""
    return {"total": sum(_sum(load(path)) for path in paths_of(options["files"], 1)) * options["repeats"]}


def _sum(pixels: Any) -> int:
    return int(np.sum(pixels, dtype=np.int64))


# -- the measurement ---------------------------------------------------------------------------------------------------


def _run(
    options: Options,
    pipeline: Callable[[Sequence[str]], contextlib.AbstractContextManager[peers.Pass]],
    tolerance: float = 0.0,
) -> Mapping[str, float]:
    """Images per second of a pipeline over paths."""
    paths, total = paths_of(options["files"], options["repeats"]), options["total"]
    with pipeline(paths) as read:
        check = functools.partial(_check, total=total, count=len(paths), tolerance=tolerance)
        return {"images": rate(read, len(paths), options["passes"], peers.length, check)}


def _check(batches: Iterable[Any], total: int, count: int, tolerance: float) -> None:
    """Raises RuntimeError if these aren't the pictures; looks at every pixel."""
    found = images = 0
    for batch in batches:
        pixels = np.asarray(batch["data"] if isinstance(batch, dict) else batch)
        if pixels.shape[1:] != (SIDE, SIDE, 3) or pixels.dtype != np.uint8 or len(pixels) > BATCH:
            raise RuntimeError(f"a batch is {pixels.dtype} of shape {pixels.shape}")
        found += _sum(pixels)
        images += len(pixels)
    if images != count or abs(found - total) > tolerance * total:
        raise RuntimeError(f"{images} images with the sum {found} came out, and not {count} with {total}")


def _bare(options: Options) -> Mapping[str, float]:
    """Images per second of a loop in one process per core, each of which makes the batches of its share."""
    paths, total, processes = paths_of(options["files"], options["repeats"]), options["total"], cores()
    shares = [paths[number::processes] for number in range(processes)]
    with ProcessPoolExecutor(processes) as pool:

        def check(_: Iterable[Any]) -> None:
            found = sum(pool.map(functools.partial(_share, look=_sum), shares))
            if found != total:
                raise RuntimeError(f"pictures with the sum {found} came out, and not {total}")

        return {"images": rate(lambda: pool.map(_share, shares), len(paths), options["passes"], int, check)}


def _share(paths: Sequence[str], look: Callable[[Any], int] = len) -> int:
    """Makes the batches of these files; returns the sum of what ``look`` says of each."""
    with peers.bare_loop(paths, load, BATCH) as read:
        return sum(map(look, read()))


# -- millrace and TensorFlow -------------------------------------------------------------------------------------------


def dataset(paths: Sequence[str]) -> Dataset:
    """The pipeline as a user of this project writes it."""
    return Dataset.from_files(list(paths)).map(decode_element).batch(BATCH)


def _in_process(paths: Sequence[str]) -> contextlib.AbstractContextManager[peers.Pass]:
    return peers.in_process(dataset(paths))


def _embedded(paths: Sequence[str]) -> contextlib.AbstractContextManager[peers.Pass]:
    return peers.embedded(dataset(paths))


def _tf_dataset(paths: Sequence[str], fused: bool) -> Any:
    """The pipeline in TensorFlow's own operations; ``fused`` ones decode no more than the crop."""
    import tensorflow as tf

    def load_one(path: Any) -> Any:
        contents = tf.io.read_file(path)
        shape = tf.cast(tf.io.extract_jpeg_shape(contents), tf.float32)
        area = tf.random.uniform((), 0.08, 1.0) * shape[0] * shape[1]
        ratio = tf.random.uniform((), 3 / 4, 4 / 3)
        high = tf.minimum(tf.floor(tf.sqrt(area / ratio)), shape[0])
        wide = tf.minimum(tf.floor(tf.sqrt(area * ratio)), shape[1])
        top = tf.floor(tf.random.uniform(()) * (shape[0] - high))
        left = tf.floor(tf.random.uniform(()) * (shape[1] - wide))
        window = tf.cast(tf.stack([top, left, high, wide]), tf.int32)
        if fused:
            picture = tf.io.decode_and_crop_jpeg(contents, window, channels=3)
        else:
            whole = tf.io.decode_jpeg(contents, channels=3)
            picture = tf.image.crop_to_bounding_box(whole, window[0], window[1], window[2], window[3])
        picture = tf.image.random_flip_left_right(tf.image.resize(picture, (SIDE, SIDE)))
        return tf.cast(tf.round(picture), tf.uint8)

    files = tf.data.Dataset.from_tensor_slices(list(paths))
    return files.map(load_one, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)


@contextlib.contextmanager
def _tf_data(paths: Sequence[str], fused: bool) -> Iterator[peers.Pass]:
    import tensorflow as tf

    pipeline = _tf_dataset(paths, fused).prefetch(tf.data.AUTOTUNE)
    yield lambda: pipeline


@contextlib.contextmanager
def _tf_service(paths: Sequence[str], workers: int) -> Iterator[peers.Pass]:
    import tensorflow as tf

    service = tf.data.experimental.service
    with tf_service.service(workers) as address:
        mode = service.ShardingPolicy.DYNAMIC  # each file once, as everywhere else
        served = _tf_dataset(paths, fused=True).apply(
            service.distribute(processing_mode=mode, service=f"grpc://{address}", compression=None)
        )
        pipeline = served.prefetch(tf.data.AUTOTUNE)
        yield lambda: pipeline


# -- who takes part ----------------------------------------------------------------------------------------------------


def _same(name: str, pipeline: Any, *needs: str) -> Contestant:
    """A contestant with the Python function."""
    return Contestant(name, functools.partial(_run, pipeline=pipeline), ("PIL", *needs))


def _peer(name: str, pipeline: Any, *needs: str, **arguments: Any) -> Contestant:
    """A contestant of :mod:`benchmarks.peers` with the Python function."""
    return _same(name, functools.partial(pipeline, function=load, batch=BATCH, **arguments), *needs)


def _own(name: str, pipeline: Any) -> Contestant:
    """A contestant with TensorFlow's operations."""
    run = functools.partial(_run, pipeline=pipeline, tolerance=_ROUGHLY)
    return Contestant(name, run, ("PIL", "tensorflow"), note="own operations")


BENCHMARK = Benchmark(
    question="How fast do JPEG files become batches for training?",
    figures={"images": Figure("images/s")},
    contestants=(
        Contestant("bare loop", _bare, ("PIL",), note="one process per core, nothing handed over"),
        _same("millrace, in process", _in_process),
        _same("millrace, embedded, 2 workers", _embedded),
        _peer("torch DataLoader, 1 worker", peers.torch_loader, "torch", workers=1),
        _peer("torch DataLoader, 2 workers", peers.torch_loader, "torch", workers=2),
        _own("tf.data", functools.partial(_tf_data, fused=False)),
        _own("tf.data, fused", functools.partial(_tf_data, fused=True)),
        _own("tf.data service, 2 workers, fused", functools.partial(_tf_service, workers=2)),
        _peer("Grain, threads", peers.grain_threads, "grain"),
        _peer("Grain, 2 processes", peers.grain_processes, "grain", workers=2),
        _peer("Ray Data", peers.ray_data, "ray"),
        _peer("SPDL, threads", peers.spdl_threads, "spdl"),
    ),
    reference="bare loop",
    prepare=_prepare,
    sizes={
        "files": Size(1024, 64, "different JPEG files"),
        "repeats": Size(3, 2, "times that a pass goes over the files"),
        "passes": Size(2, 1, "measured passes in a round"),
    },
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.decode"))
