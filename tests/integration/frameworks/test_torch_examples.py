"""A training script on objects of a bucket, and the same with a cache and prefetching, two lines away."""

import difflib
import functools
import subprocess
import sys
import threading
from collections import Counter
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
PLAIN, CACHED = EXAMPLES / "bucket_samples.py", EXAMPLES / "bucket_samples_cached.py"
COUNT, EPOCHS = 80, 2
READ: Counter[str] = Counter()
"""How often each object was read."""


class Bucket(SimpleHTTPRequestHandler):
    """Objects in a folder."""

    def log_request(self, code="-", size="-"):
        READ[self.path] += 1


@pytest.fixture
def bucket(tmp_path):
    """URL of a bucket with samples."""
    features = np.random.default_rng(0).normal(size=(COUNT, 9)).astype(np.float32)
    features[:, 8] = features[:, :8].sum(axis=1)
    for number, sample in enumerate(features):
        (tmp_path / f"{number}.f32").write_bytes(sample.tobytes())
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Bucket, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def trained(script, bucket):
    """What a script prints, and how often each of the samples was read."""
    READ.clear()
    command = [sys.executable, "-W", "error", script, bucket, str(COUNT), "--epochs", str(EPOCHS)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=100).stdout
    return printed.splitlines(), [READ[f"/{number}.f32"] for number in range(COUNT)]


def test_a_cache_changes_two_lines_and_reads_each_object_once(bucket):
    compared = difflib.ndiff(PLAIN.read_text().splitlines(), CACHED.read_text().splitlines())
    assert [line for line in compared if line[0] in "+-" and line[2:]] == [
        "+ from millrace.frameworks.torch import CachedDataset, PrefetchSampler",
        "-     dataset = Objects(options.url, options.count)",
        "+     dataset = CachedDataset(Objects(options.url, options.count), 2 << 30)",
        "-     sampler = RandomSampler(dataset)",
        "+     sampler = PrefetchSampler(RandomSampler(dataset), dataset)",
    ]
    said, read = trained(PLAIN, bucket)
    assert (len(said), read) == (EPOCHS, [EPOCHS] * COUNT)
    assert trained(CACHED, bucket) == (said, [1] * COUNT)
