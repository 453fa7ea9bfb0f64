"""Process that fetches samples ahead of a training loop.

A :class:`~millrace.frameworks.torch.prefetcher.Prefetcher` starts it as
``python -m millrace.frameworks.torch.prefetch_process THREADS`` (0: as many as pay) and speaks to it through its pipes.
"""

from __future__ import annotations

import os
import sys

import numpy as np

from millrace.frameworks.torch.prefetcher import FetchThreads, receive
from millrace.functions.bundles import unpack


def main() -> None:
    """Fetch what is asked for until the pipe ends."""
    words = sys.stdin.buffer
    ready = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the dataset prints is no word of ours
    bundle = receive(words)
    if bundle is None:
        return
    (dataset,) = unpack(bundle)
    fetching = FetchThreads(dataset, int(sys.argv[1]) or None)
    try:
        os.write(ready, b"!")
    except BrokenPipeError:
        return  # the loop has ended before this process had begun
    while (message := receive(words)) is not None:
        if message:
            unread, *indices = np.frombuffer(message, np.int64).tolist()
            fetching.ask(indices, unread)
        else:
            fetching.forget()
    os._exit(0)  # fetches that are under way are of no use to anybody now


if __name__ == "__main__":
    main()
