"""Unit tests are unable to sleep, to use sockets and to start processes.

Whoever tries gets a failure that says so, even if the code under test catches every ``Exception``. Sockets and
processes are watched where the interpreter itself announces them (audit events), so no name imported early slips
through. Clocks stay readable, because Hypothesis and pytest read them; code that decides by time takes it as an
argument.
"""

import platform
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import pytest
import urllib3.util.connection  # noqa: F401  # binds a socket when first imported, as importing TensorFlow does

platform.processor()  # runs uname when first asked, as importing TensorFlow does

_FORBIDDEN = {
    "os.exec": "replace the process",
    "os.fork": "fork",
    "os.forkpty": "fork",
    "os.posix_spawn": "start a process",
    "os.system": "start a process",
    "socket.bind": "bind a socket",
    "socket.connect": "connect a socket",
    "socket.getaddrinfo": "look up a host name",
    "subprocess.Popen": "start a process",
    "time.sleep": "sleep",  # announced from Python 3.13 on
}
_watch = {"on": False}


def _refuse(what: str, subject: object) -> NoReturn:
    pytest.fail(
        f"a unit test tried to {what} ({subject!r}): give the code a fake of what it talks to, "
        "or move the test to tests/integration; if an import did it, import at the top of the test file"
    )


def _announced(watch: dict[str, bool], forbidden: dict[str, str]) -> Callable[[str, tuple[Any, ...]], None]:
    # A closure: the interpreter goes on announcing when this module's globals are gone.
    def hook(event: str, args: tuple[Any, ...]) -> None:
        if watch["on"] and event in forbidden:
            _refuse(forbidden[event], args[-1] if event.startswith("socket.") else args[0] if args else event)

    return hook


sys.addaudithook(_announced(_watch, _FORBIDDEN))


@pytest.fixture(autouse=True)
def _confined(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def sleep(seconds: float, /) -> None:
        _refuse("sleep", seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    _watch["on"] = True
    yield
    _watch["on"] = False


@pytest.fixture
def calls() -> Callable[..., int]:
    """Counts the calls that a function makes, those into C among them: work, rather than time."""

    def count(function: Callable[[], object]) -> int:
        found = 0

        def note(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal found
            found += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            function()
        finally:
            sys.setprofile(before)
        return found

    return count
