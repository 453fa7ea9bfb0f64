"""Sealed shared memory: one process fills it once, and other processes of its user on the host read it in place.

It is an anonymous file (memfd) with a random name, sealed so that nobody can change it any more. Processes are told
where its descriptor is, and open it through ``/proc``. That works for processes of one user on one host, and for nobody
else: so trying it is how they find out whether they are. Nothing has to be removed; it is gone when nobody has it open
or mapped, however they ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from millrace.elements.file_mapping import OpenFile
from millrace.elements.recycled_arrays import Bytes
from millrace.errors import ShippingError

AVAILABLE = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")
"""Whether this platform has such memory: Linux."""

_SEALS = 0 if not AVAILABLE else fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class MemoryLoan(msgspec.Struct, frozen=True, array_like=True):
    """Address of sealed memory, for other processes.

    Attributes:
        digest: hash of the contents, as a blob's (BLAKE2b, 128 bits, hexadecimal).
        size: bytes.
        name: name of the memory, which no other has.
        pid: id of a process that has it open.
        fd: its descriptor there.
    """

    digest: str
    size: int
    name: str
    pid: int
    fd: int


class SealedMemory:
    """Sealed memory, alive as long as this object or a view of it. Copies in other processes open it for themselves.

    Args:
        file: the memory's file.
        digest: hash of the contents.
        size: bytes, at least 1.
        name: see :class:`MemoryLoan`.
    """

    def __init__(self, file: OpenFile, digest: str, size: int, name: str) -> None:
        self._file, self.digest, self.size, self._name = file, digest, size, name

    @property
    def loan(self) -> MemoryLoan:
        """Address by which others find the memory, as long as this object lives."""
        return MemoryLoan(self.digest, self.size, self._name, os.getpid(), self._file.fd)

    def view(self) -> Bytes:
        """Map the whole memory as a read-only array of uint8."""
        return np.frombuffer(mmap.mmap(self._file.fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ), np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.loan,)


def fill(pieces: Iterable[Bytes], size: int) -> SealedMemory:
    """Make memory that holds these pieces one after the other, ``size`` bytes in all; they are hashed on the way.

    Raises:
        OSError: there is no room.
    """
    name = f"millrace-{uuid.uuid4().hex}"
    hashed = hashlib.blake2b(digest_size=16)
    made = OpenFile(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    os.posix_fallocate(made.fd, 0, size)  # where there is no room, this says so
    at = 0
    for piece in pieces:
        hashed.update(piece.data)
        done = 0
        while done < len(piece):
            done += os.pwrite(made.fd, piece[done:].data, at + done)
        at += done
    assert at == size, "the pieces are other ones than was said"
    fcntl.fcntl(made.fd, fcntl.F_ADD_SEALS, _SEALS)
    # Sealed memory can be mapped, on every kernel, through a descriptor that is for reading alone.
    file = OpenFile(os.open(f"/proc/self/fd/{made.fd}", os.O_RDONLY | os.O_CLOEXEC))
    return SealedMemory(file, hashed.hexdigest(), size, name)


def open_loan(loan: MemoryLoan) -> SealedMemory | None:
    """Open the memory, if possible here: in a process of the same user on the same host, as long as it is there.

    What a process of another user says of it is not believed, even if this one may look into all of them.
    """
    if not AVAILABLE:
        return None
    path, link = f"/proc/{loan.pid}/fd/{loan.fd}", f"/memfd:{loan.name} (deleted)"
    try:
        # Looked at before it is opened: opening something else might wait for ever.
        if os.stat(f"/proc/{loan.pid}").st_uid != os.geteuid() or os.readlink(path) != link:
            return None
        file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        known = os.readlink(f"/proc/self/fd/{file.fd}") == link and os.fstat(file.fd).st_size == loan.size
        if not known or fcntl.fcntl(file.fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            return None
    except OSError:
        return None
    return SealedMemory(file, loan.digest, loan.size, loan.name)


def _reopen(loan: MemoryLoan) -> SealedMemory:
    memory = open_loan(loan)
    if memory is None:
        raise ShippingError(
            f"arrays that process {loan.pid} shares can't be reached from this one: that takes the same user on the "
            "same host, and that the other process has not closed the dataset"
        )
    return memory
