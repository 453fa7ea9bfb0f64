"""Every error a caller may want to handle differently.

MillraceError
├── PipelineError          the graph or its options are wrong; raised where they were written
│   └── UnknownLengthError     len() of a dataset whose length cannot be known
├── ShippingError          a function or object cannot travel to a worker
├── UnsureError            nobody can tell whether a function is the same as in another run
├── SourceError            data could not be read
│   ├── SourceNotFoundError    a file or pattern names nothing
│   ├── SourceChangedError     a file is another one than when it was listed
│   └── SourceCorruptError     a file is truncated or is not what it claims to be
├── ElementError           a user's function failed on one element
├── ElementTooLargeError   one element is larger than the memory it must pass through
├── StateError             a saved state does not fit where it is loaded
├── CacheError             cached data could not be written or read; it can be computed again
│   ├── BlockMissingError      a block is not there, or not any more
│   ├── BlockDamagedError      a block is not what was written
│   └── StoreFullError         there is no room for a block
├── CodecError             bytes are not an element, or an element cannot become bytes
└── ServiceError           something between this process and the service
    ├── ServiceUnreachableError  nobody answers at the address
    │   └── TlsError                 who answers there has no certificate for it, or only one end speaks TLS
    ├── AddressInUseError        the port is taken
    ├── VersionMismatchError     millrace or Python versions differ between the processes
    ├── AuthenticationError      no token, or the wrong one
    ├── AccessDeniedError        somebody who is known may not do this, or read this
    ├── JobConflictError         a job of this name exists and is another pipeline
    ├── ConsumerConflictError    a consumer of this index is reading already
    ├── JobFailedError           the job ended on the service for a reason given
    │   └── DetachedError            it goes on without this process, which goes on alone from its state
    └── ProtocolError            a message that no version of this protocol sends
"""

from __future__ import annotations

import copy
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


class MillraceError(Exception):
    """Root of every error that millrace raises on purpose."""


class MillraceWarning(UserWarning):
    """Something works, but not as well as it could; the message says why."""


class PipelineError(MillraceError, ValueError):
    """A dataset was described wrongly; the message says what to write instead."""


class UnknownLengthError(PipelineError, TypeError):
    """``len()`` of a dataset whose number of elements is not known before reading it."""


class ShippingError(MillraceError, TypeError):
    """A function or an object cannot be sent to a worker; the message names the culprit."""


class UnsureError(MillraceError, TypeError):
    """A function or an object computes what cannot be told by looking at it; the message names the culprit."""


class SourceError(MillraceError, OSError):
    """Data could not be read."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """A path does not exist or a pattern matches nothing."""


class SourceChangedError(SourceError):
    """A file is another one than when it was listed; the message names it, what was listed and what is there."""


class SourceCorruptError(SourceError):
    """A file is truncated or malformed; the message names file and position."""


class ElementError(MillraceError):
    """A user's function failed on one element, whatever it raised.

    Only Ctrl-C on the main thread passes through a function as it is.

    Attributes:
        operator: the operator, as the user wrote it, e.g. ``map(decode)``.
        where: the element's origin, e.g. ``train/0007.jpg`` or ``shard-3.tar, record 17``.
        user_traceback: the traceback of the user's function, as text.
    """

    def __init__(self, message: str, *, operator: str = "", where: str = "", user_traceback: str = "") -> None:
        super().__init__(message)
        self.operator = operator
        self.where = where
        self.user_traceback = user_traceback

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n\n{self.user_traceback}" if self.user_traceback else text


class ElementTooLargeError(MillraceError, MemoryError):
    """One element is larger than the buffer it has to pass through.

    Attributes:
        needs: bytes that the buffer of another worker would have to have; 0: it is not a worker's buffer.
    """

    needs: int = 0


class StateError(MillraceError, ValueError):
    """A saved state is damaged, or of another pipeline, other data or another run; the message says what changed."""


class CacheError(MillraceError, OSError):
    """Cached data could not be written or read. No data is lost: what was cached can be computed again."""


class BlockMissingError(CacheError, FileNotFoundError):
    """A block is not in its store: it was given up, or removed by somebody else."""


class BlockDamagedError(CacheError):
    """A block is truncated or its bytes are not those that were written; the message names the place.

    Attributes:
        found: which block, and what is wrong with it, without what a cache does then.
    """

    found: str = ""


class StoreFullError(CacheError):
    """The store has no room for another block, or a quota or limit was reached."""


class CodecError(MillraceError, ValueError):
    """An element cannot be turned into bytes, or bytes are not an element."""


class ServiceError(MillraceError):
    """Something between this process and the service went wrong."""


class ServiceUnreachableError(ServiceError, ConnectionError):
    """Nobody answered at the service's address within the time allowed, or the service is gone for good."""


class TlsError(ServiceUnreachableError):
    """Failure of TLS: a certificate that the other end does not trust, or an end that does not speak it."""


class AddressInUseError(ServiceError, OSError):
    """The address to listen on is taken."""


class VersionMismatchError(ServiceError):
    """Two processes of one service run different versions of millrace or of Python."""


class AuthenticationError(ServiceError):
    """The service demands a token and got none, or another one."""


class AccessDeniedError(ServiceError, PermissionError):
    """The service knows who asks, and this one may not have what was asked for; the message says who could allow it."""


class JobConflictError(ServiceError):
    """A job of this name exists with another pipeline or other parameters."""


class ConsumerConflictError(ServiceError):
    """Another live process reads this job under the same consumer index."""


class JobFailedError(ServiceError):
    """The job cannot go on; the message is the service's reason."""


class DetachedError(JobFailedError):
    """A group of jobs that share one computation goes on without this one, which can go on alone from its state."""


class ProtocolError(ServiceError):
    """A message that this version of the protocol does not know or that is malformed."""


def anew(error: E) -> E:
    """Copy ``error``, to be raised once more without the traceback of the first time.

    A traceback holds its frames, and these hold whoever read: what keeps an error for later would keep all of it alive.
    """
    twin = copy.copy(error)
    twin.__cause__, twin.__suppress_context__ = error.__cause__, error.__suppress_context__
    return twin
