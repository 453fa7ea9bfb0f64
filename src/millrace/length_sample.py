"""Sample of the lengths of a dataset's elements: for bucket boundaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from millrace.errors import PipelineError
from millrace.pipeline import Pipeline
from millrace.policies.bucket_boundaries import SuggestedBuckets, suggest_buckets
from millrace.whole_numbers import whole

_LABEL = "suggest_buckets"


def suggested_buckets(
    pipeline: Pipeline,
    element_length_func: Callable[[Any], int] | None,
    buckets: int,
    sample: int,
    batch_tokens: int | None,
) -> SuggestedBuckets:
    """Suggest buckets for a pipeline; see :meth:`millrace.Dataset.suggest_buckets`."""
    if element_length_func is not None and not callable(element_length_func):
        raise PipelineError(f"{_LABEL} takes a function of an element or None, not {element_length_func!r}")
    most = whole(_LABEL, "buckets", buckets, 1, 1024)
    count = whole(_LABEL, "sample", sample, 1)
    tokens = None if batch_tokens is None else whole(_LABEL, "batch_tokens", batch_tokens, 1)
    length_of = element_length_func or longest_array
    lengths = [whole(_LABEL, "a length", length, 0) for length in pipeline.first(count, length_of)]
    if not lengths:
        raise PipelineError(f"{_LABEL} finds no elements in {pipeline} whose lengths there could be")
    longest = max(lengths)
    if tokens is not None and tokens < longest:
        raise PipelineError(
            f"{_LABEL}: batch_tokens={tokens:,} are fewer than the {longest:,} of the longest element, which so fits "
            "into no batch: give more, or leave out or cut long elements before"
        )
    return suggest_buckets(lengths, most, tokens)


def longest_array(element: Any) -> int:
    """Length of the longest array or list in an element, along its first dimension; of a text its own.

    Raises:
        PipelineError: there is none.
    """
    if isinstance(element, (str, bytes)):
        return len(element)
    found = max(_lengths(element), default=None)
    if found is None:
        raise PipelineError(
            f"{_LABEL}: an element has no array whose length could be meant: give a function of an element, as in "
            "suggest_buckets(length)"
        )
    return found


def _lengths(element: Any) -> Iterator[int]:
    if isinstance(element, (Mapping, tuple)):
        for part in element.values() if isinstance(element, Mapping) else element:
            yield from _lengths(part)
    elif isinstance(element, list) or (not isinstance(element, (str, bytes)) and np.ndim(element)):
        yield len(element)
