"""Readers of :mod:`benchmarks.bucket`: each reads the same pictures from a store, as its own guide recommends.

    python bucket_readers.py NAME '{"samples": ..., "batch": ..., "workers": ..., "epochs": ..., "scratch": ...}'

Runs in an environment that has the library; millrace's own ones need millrace. Decodes every picture, shuffles as the
library does by default, and prints seconds and samples of each epoch as JSON. What it takes to import a library and to
make its objects for the first time counts for nobody; what an epoch begins with does. ``prepare NAME`` writes the
library's own shards from a folder of pictures.
"""

from __future__ import annotations

import glob
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

BUCKET = "data"
SHARD_BYTES = 1 << 20
_WINDOW = 1000
"""Samples that a shuffle of a stream mixes."""


def decode(data: bytes) -> Any:
    """The pixels of a picture: uint8 [64, 64, 3]."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _loader(dataset: Any, told: dict[str, Any], **more: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=told["batch"], num_workers=told["workers"], persistent_workers=True, **more)


def _keys(told: dict[str, Any]) -> list[str]:
    return [f"raw/{number:06d}.jpg" for number in range(told["samples"])]


# -- raw objects -------------------------------------------------------------------------------------------------------


class S3fsPictures:
    """A map-style dataset over s3fs."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self.files: Any = None

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Any:
        if self.files is None:
            import s3fs  # type: ignore[import-not-found,unused-ignore]

            self.files = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
        return decode(self.files.cat_file(f"{BUCKET}/{self.keys[index]}"))


class ObstorePictures(S3fsPictures):
    """The same over obstore."""

    def __getitem__(self, index: int) -> Any:
        if self.files is None:
            from obstore.store import S3Store

            self.files = S3Store(BUCKET, client_options={"allow_http": True})
        return decode(bytes(self.files.get(self.keys[index]).bytes()))

    def __getstate__(self) -> dict[str, Any]:
        return {"keys": self.keys, "files": None}


def s3fs_loader(told: dict[str, Any]) -> Callable[[int], Iterable[Any]]:
    """A DataLoader over s3fs."""
    loader = _loader(S3fsPictures(_keys(told)), told, shuffle=True)
    return lambda _epoch: loader


def millrace_cached(told: dict[str, Any]) -> Callable[[int], Iterable[Any]]:
    """The same dataset as a user's over obstore, with millrace's two lines."""
    from torch.utils.data import RandomSampler

    from millrace.frameworks.torch import CachedDataset, PrefetchSampler

    dataset = CachedDataset(ObstorePictures(_keys(told)), 4 << 30)
    sampler = PrefetchSampler(RandomSampler(dataset), dataset)
    loader = _loader(dataset, told, sampler=sampler)
    return lambda _epoch: loader


def millrace_files(told: dict[str, Any]) -> Callable[[int], Iterable[Any]]:
    """A service on this machine reads raw objects, and keeps what it decodes."""
    import millrace as mr

    return _served(mr.Dataset.from_files(f"s3://{BUCKET}/raw/*.jpg").map(_file_pixels), told)


def _file_pixels(file: dict[str, Any]) -> Any:
    return decode(file["bytes"])


def _sample_pixels(sample: dict[str, Any]) -> Any:
    return decode(sample["jpg"])


def _served(dataset: Any, told: dict[str, Any]) -> Callable[[int], Iterable[Any]]:
    import millrace as mr

    workers = told["workers"]
    service = mr.LocalService(workers, workers, cache_dir=os.path.join(told["scratch"], "cache"), cache_bytes=4 << 30)
    pipeline = dataset.cache().shuffle(_WINDOW).batch(told["batch"])
    batches = pipeline.distribute(service.__enter__().address, workers=workers)

    def end() -> None:
        batches.close()
        service.__exit__(None, None, None)

    told["end"] = end
    return lambda _epoch: batches


# -- shards ------------------------------------------------------------------------------------------------------------


def millrace_packed(told: dict[str, Any]) -> Callable[[int], Iterable[Any]]:
    """A service on this machine reads shards of ``millrace pack``, and keeps what it decodes."""
    import millrace as mr

    return _served(mr.Dataset.from_webdataset(f"s3://{BUCKET}/packed/shard-*.tar").map(_sample_pixels), told)


def millrace_packed_here(told: dict[str, Any]) -> Callable[[int], Iterable[Any]]:
    """The same without a service: threads of the training process read and decode."""
    import millrace as mr

    samples = mr.Dataset.from_webdataset(f"s3://{BUCKET}/packed/shard-*.tar").map(_sample_pixels)
    batches = samples.cache(os.path.join(told["scratch"], "cache")).shuffle(_WINDOW).batch(told["batch"])
    return lambda _epoch: batches


def webdataset_loader(told: dict[str, Any]) -> Callable[[int], Iterable[Any]]:
    """WebDataset over the shards of ``millrace pack``, kept on disk once they were read."""
    import webdataset as wds

    names = [os.path.basename(path) for path in sorted(glob.glob(os.path.join(told["folder"], "packed", "*.tar")))]
    signed = '--aws-sigv4 "aws:amz:$AWS_REGION:s3" --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY"'
    urls = [f"pipe:curl -s -f {signed} {os.environ['AWS_ENDPOINT_URL']}/{BUCKET}/packed/{name}" for name in names]
    cache = os.path.join(told["scratch"], "wds")
    os.makedirs(cache)
    dataset = wds.WebDataset(urls, shardshuffle=len(urls), cache_dir=cache).shuffle(_WINDOW).map(_sample_pixels)
    batches = dataset.batched(told["batch"], collation_fn=np.stack)
    loader = wds.WebLoader(batches, batch_size=None, num_workers=told["workers"])
    return lambda _epoch: loader


def mosaic_prepare(folder: str) -> None:
    """Writes MosaicML's shards."""
    from streaming import MDSWriter

    with MDSWriter(out=os.path.join(folder, "mds"), columns={"jpg": "bytes"}, size_limit=SHARD_BYTES) as writer:
        for path in sorted(glob.glob(os.path.join(folder, "raw", "*.jpg"))):
            with open(path, "rb") as file:
                writer.write({"jpg": file.read()})


def mosaic_loader(told: dict[str, Any]) -> Callable[[int], Iterable[Any]]:
    """MosaicML Streaming over its own shards."""
    from streaming import StreamingDataset

    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]

    class Pictures(StreamingDataset):  # type: ignore[misc,unused-ignore]
        def __getitem__(self, index: Any) -> Any:
            return decode(super().__getitem__(index)["jpg"])

    local = os.path.join(told["scratch"], "mds")
    dataset = Pictures(remote=f"s3://{BUCKET}/mds", local=local, shuffle=True, batch_size=told["batch"])
    loader = _loader(dataset, told)
    return lambda _epoch: loader


def lit_prepare(folder: str) -> None:
    """Writes LitData's shards."""
    import litdata

    litdata.optimize(
        fn=_file_bytes,
        inputs=sorted(glob.glob(os.path.join(folder, "raw", "*.jpg"))),
        output_dir=os.path.join(folder, "lit"),
        chunk_bytes=SHARD_BYTES,
        num_workers=1,
    )


def _file_bytes(path: str) -> dict[str, bytes]:
    with open(path, "rb") as file:
        return {"jpg": file.read()}


def lit_loader(told: dict[str, Any]) -> Callable[[int], Iterable[Any]]:
    """LitData over its own shards."""
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001  # the link has no TLS; no option says so

    class Pictures(litdata.StreamingDataset):  # type: ignore[misc,unused-ignore]
        def __getitem__(self, index: Any) -> Any:
            return decode(super().__getitem__(index)["jpg"])

    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    dataset = Pictures(
        f"s3://{BUCKET}/lit", cache_dir=os.path.join(told["scratch"], "lit"), shuffle=True, storage_options=options
    )
    loader = litdata.StreamingDataLoader(dataset, batch_size=told["batch"], num_workers=told["workers"])
    return lambda _epoch: loader


READERS: dict[str, tuple[Callable[[dict[str, Any]], Callable[[int], Iterable[Any]]], tuple[str, ...]]] = {
    "millrace, raw objects, two lines in torch": (millrace_cached, ()),
    "millrace, raw objects, service": (millrace_files, ()),
    "millrace, packed, service": (millrace_packed, ()),
    "millrace, packed, in process": (millrace_packed_here, ()),
    "s3fs and DataLoader, raw objects": (s3fs_loader, ("s3fs==2026.9.0",)),
    "WebDataset, packed": (webdataset_loader, ("webdataset==1.0.2",)),
    "MosaicML Streaming, its shards": (mosaic_loader, ("mosaicml-streaming==0.13.0",)),
    "LitData, its shards": (lit_loader, ("litdata==0.2.76",)),
}
"""By name what reads, and what has to be installed."""
PREPARED: dict[str, Callable[[str], None]] = {
    "MosaicML Streaming, its shards": mosaic_prepare,
    "LitData, its shards": lit_prepare,
}


def main() -> None:
    """Reads, or prepares."""
    if sys.argv[1] == "prepare":
        PREPARED[sys.argv[2]](sys.argv[3])
        return
    told = json.loads(sys.argv[2])
    passes = READERS[sys.argv[1]][0](told)
    epochs = []
    for epoch in range(told["epochs"]):
        began, first, count = time.perf_counter(), 0.0, 0
        for batch in passes(epoch):
            first = first or time.perf_counter() - began
            count += len(batch)
        epochs.append({"seconds": time.perf_counter() - began, "first": first, "samples": count})
    told.get("end", lambda: None)()
    print(json.dumps(epochs), flush=True)


if __name__ == "__main__":
    main()
