"""Input data processing for machine-learning training, as a service."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from millrace.errors import (
    AccessDeniedError,
    AddressInUseError,
    AuthenticationError,
    BlockDamagedError,
    BlockMissingError,
    CacheError,
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
    SourceChangedError,
    SourceCorruptError,
    SourceError,
    SourceNotFoundError,
    StateError,
    StoreFullError,
    UnknownLengthError,
    UnsureError,
    VersionMismatchError,
)
from millrace.version import __version__

if TYPE_CHECKING:
    from millrace.clusters.local import LocalService
    from millrace.clusters.ray_service import RayService
    from millrace.dataset import Dataset
    from millrace.distributed import DistributedDataset
    from millrace.graph.nodes import AUTOTUNE
    from millrace.guarantees import ShardingPolicy, Sharing, Visitation

__all__ = [
    "AUTOTUNE",
    "AccessDeniedError",
    "AddressInUseError",
    "AuthenticationError",
    "BlockDamagedError",
    "BlockMissingError",
    "CacheError",
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
    "RayService",
    "ServiceError",
    "ServiceUnreachableError",
    "ShardingPolicy",
    "Sharing",
    "ShippingError",
    "SourceChangedError",
    "SourceCorruptError",
    "SourceError",
    "SourceNotFoundError",
    "StateError",
    "StoreFullError",
    "UnknownLengthError",
    "UnsureError",
    "VersionMismatchError",
    "Visitation",
    "__version__",
]

# DataLoader forks its workers from processes that may talk to a dispatcher; without gRPC's support of forks any use of
# gRPC in such a child hangs. gRPC reads the variable once, when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")

_LATE = {
    "AUTOTUNE": "millrace.graph.nodes",
    "Dataset": "millrace.dataset",
    "DistributedDataset": "millrace.distributed",
    "LocalService": "millrace.clusters.local",
    "RayService": "millrace.clusters.ray_service",
    "ShardingPolicy": "millrace.guarantees",
    "Sharing": "millrace.guarantees",
    "Visitation": "millrace.guarantees",
}


def __getattr__(name: str) -> object:
    """Import a name when it is used: a service's processes import this package too, and need only parts of it."""
    if name in _LATE:
        found = globals()[name] = getattr(importlib.import_module(_LATE[name]), name)
        return found
    from millrace.equivalents import MODULE, no_attribute

    raise AttributeError(no_attribute("module 'millrace'", name, MODULE))


def __dir__() -> list[str]:
    return __all__
