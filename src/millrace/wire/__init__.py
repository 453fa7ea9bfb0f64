"""Wire: control messages over gRPC, bulk data over TCP. Only this room knows gRPC and sockets.

* :mod:`~millrace.wire.control.control_server`: the dispatcher's end of the control protocol (asyncio).
* :mod:`~millrace.wire.control.control_client`: the end of workers and consumers (threads).
* :mod:`~millrace.wire.data.data_connection`: bytes from workers to consumers, on :mod:`~millrace.wire.data.frames`.
"""

import os
import sys

_GRPC_CAME_FIRST = "grpc" in sys.modules

# DataLoader forks its workers from processes that may hold a channel; without gRPC's fork support any use of gRPC in
# such a child hangs. gRPC reads the variable once, when it is imported, so it must be set before that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")

FORK_SUPPORT = not _GRPC_CAME_FIRST and os.environ["GRPC_ENABLE_FORK_SUPPORT"].lower() in {"1", "true", "yes"}
"""Whether gRPC works in a process forked from one that uses it (False if somebody imported gRPC before this module)."""
