"""Slow listings: one that takes long in this process says, once, how far it is."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from millrace.policies.figures import duration
from millrace.sources.source import ListingProgress

FIRST_S = 10.0
"""Seconds after which it is said; the same for the first element on a service."""

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def announced(reader: object) -> Iterator[ListingProgress]:
    """Count the files that are looked at, by what it gives to the listing.

    Args:
        reader: whoever waits for the listing; its text is made if it is needed.
    """
    counting, files = threading.Lock(), 0

    def seen(more: int) -> None:
        nonlocal files
        with counting:
            files += more

    def tell() -> None:
        so_far = f": {files:,} files so far" if files else ""
        _logger.warning("%s has waited %s for its sources to be listed%s", reader, duration(FIRST_S), so_far)

    timer = threading.Timer(FIRST_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield seen
    finally:
        timer.cancel()
        timer.join()
