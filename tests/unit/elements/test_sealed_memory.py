from __future__ import annotations

import os
import pickle

import msgspec
import numpy as np
import pytest

from millrace.elements import sealed_memory
from millrace.elements.sealed_memory import MemoryLoan, fill, open_loan
from millrace.errors import ShippingError

PIECES = [np.arange(100, dtype=np.uint8), np.zeros(28, np.uint8)]
WHOLE = np.concatenate(PIECES)


def test_whoever_is_told_of_it_reads_it_where_it_is() -> None:
    memory = fill(PIECES, 128)
    found = open_loan(memory.loan)
    assert found is not None
    np.testing.assert_array_equal(found.view(), WHOLE)
    assert os.path.samestat(os.stat(_path(found.loan)), os.stat(_path(memory.loan)))
    copied = pickle.loads(pickle.dumps(memory))
    np.testing.assert_array_equal(copied.view(), WHOLE)


def test_a_view_keeps_it_and_nothing_else_does() -> None:
    memory = fill(PIECES, 128)
    view, path, loan = memory.view(), _path(memory.loan), memory.loan
    del memory
    assert not os.path.exists(path)
    np.testing.assert_array_equal(view, WHOLE)
    assert open_loan(loan) is None
    with pytest.raises(ShippingError, match=f"arrays that process {os.getpid()} shares can't be reached"):
        sealed_memory._reopen(loan)


def test_it_can_be_written_by_nobody() -> None:
    memory = fill(PIECES, 128)
    with pytest.raises(ValueError, match="read-only"):
        memory.view()[0] = 1
    with open(_path(memory.loan), "r+b") as file, pytest.raises(PermissionError):
        file.raw.write(b"x")
    with open(_path(memory.loan), "r+b") as file, pytest.raises(PermissionError):
        file.truncate(1)


def test_what_is_something_else_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fill(PIECES, 128)
    read, written = os.pipe()  # opening it again would wait
    unsealed = os.memfd_create(memory.loan.name)
    os.ftruncate(unsealed, 128)
    try:
        for other in (
            msgspec.structs.replace(memory.loan, name="millrace-0"),
            msgspec.structs.replace(memory.loan, size=64),
            msgspec.structs.replace(memory.loan, fd=read),
            msgspec.structs.replace(memory.loan, fd=unsealed),
            msgspec.structs.replace(memory.loan, pid=1 << 40),
            MemoryLoan("", 0, "", -1, -1),
        ):
            assert open_loan(other) is None
    finally:
        for fd in (read, written, unsealed):
            os.close(fd)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert open_loan(memory.loan) is None, "a process of another user is not believed"


def _path(loan: MemoryLoan) -> str:
    return f"/proc/{loan.pid}/fd/{loan.fd}"
