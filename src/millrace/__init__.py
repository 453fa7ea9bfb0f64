"""Input data processing for machine-learning training, as a service."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from millrace.dataset import Dataset
from millrace.distributed import DistributedDataset, ShardingPolicy, Sharing, Visitation
from millrace.errors import (
    AddressInUseError,
    AuthenticationError,
    CodecError,
    ConsumerConflictError,
    ElementError,
    ElementTooLargeError,
    JobConflictError,
    JobFailedError,
    MillraceError,
    MillraceWarning,
    PipelineError,
    ProtocolError,
    ServiceError,
    ServiceUnreachableError,
    ShippingError,
    SourceCorruptError,
    SourceError,
    SourceNotFoundError,
    UnknownLengthError,
    VersionMismatchError,
)
from millrace.graph.nodes import AUTOTUNE
from millrace.version import __version__

if TYPE_CHECKING:
    from millrace.clusters.local import LocalService

__all__ = [
    "AUTOTUNE",
    "AddressInUseError",
    "AuthenticationError",
    "CodecError",
    "ConsumerConflictError",
    "Dataset",
    "DistributedDataset",
    "ElementError",
    "ElementTooLargeError",
    "JobConflictError",
    "JobFailedError",
    "LocalService",
    "MillraceError",
    "MillraceWarning",
    "PipelineError",
    "ProtocolError",
    "ServiceError",
    "ServiceUnreachableError",
    "ShardingPolicy",
    "Sharing",
    "ShippingError",
    "SourceCorruptError",
    "SourceError",
    "SourceNotFoundError",
    "UnknownLengthError",
    "VersionMismatchError",
    "Visitation",
    "__version__",
]

_LATE = {"LocalService": "millrace.clusters.local"}


def __getattr__(name: str) -> Any:
    """Services are imported when they are used: most programs never start one."""
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module 'millrace' has no attribute {name!r}")
