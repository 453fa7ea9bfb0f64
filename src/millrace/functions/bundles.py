"""Bundles: a pipeline's functions and objects, with the user's own modules, packed for the workers.

A pipeline's functions travel together, as one *bundle*. Functions of the main program or a notebook travel by value,
as cloudpickle has it; those defined in modules travel by name, and the user's modules come along as source. So a
module's code is executed anew on the worker: what the program changed in it after importing it isn't seen there.

Unpickling runs code. Only workers call :func:`unpack`, and they run the user's code by design.
"""

from __future__ import annotations

import io
import linecache
import pickle
import struct
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from millrace.errors import ShippingError, VersionMismatchError
from millrace.functions.module_importer import BundleFinder, current_finder, install, switch_to
from millrace.functions.user_modules import Module, collect_modules, is_installed
from millrace.message_budget import MALFORMED
from millrace.version import __version__

MAX_BYTES = 256 * 1024 * 1024
"""Bound on a bundle, in bytes: every worker that serves the job holds it, and fetches it before the first element."""

_MAX_SOURCE = 1024 * 1024  # characters of one file that go along for the sake of tracebacks
_FORMAT = 1
_MAGIC = b"millrace"
_TRAILER = struct.Struct("<I8s")  # length of the stamp, magic


class _Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Envelope of a bundle that every version of millrace can read. Only ever append fields to it."""

    format: int
    millrace: str
    python: str
    contents: msgspec.Raw


class _Contents(msgspec.Struct, frozen=True, array_like=True):
    names: list[str]
    modules: list[Module]
    sources: dict[str, str]


def pack(values: Sequence[Any], names: Sequence[str], *, max_bytes: int = MAX_BYTES) -> bytes:
    """Pack a pipeline's functions and objects into a bundle.

    Objects that several values share are shared on the worker too.

    Args:
        values: functions and objects.
        names: who uses each of them, for messages, e.g. ``map(decode)``.
        max_bytes: bound on the bundle.

    Returns:
        The pickles one after the other, then the stamp that describes them.

    Raises:
        ShippingError: something cannot be pickled, is too large, or needs a module that cannot travel; the message
            names what and where.
    """
    from millrace.functions.pickling import Pickler, Sink, TooLargeError, main_by_value

    sink = Sink(max_bytes)
    pickler = Pickler(sink)
    users: dict[str, str] = {}
    for value, name in zip(values, names, strict=True):
        try:
            with main_by_value():
                pickler.dump(value)
        except TooLargeError:
            from millrace.functions.pickle_diagnostics import too_large

            raise ShippingError(too_large(values, names, max_bytes)) from None
        except Exception as error:
            from millrace.functions.pickle_diagnostics import unsendable

            with main_by_value():
                message = unsendable(value, name, error)
            raise ShippingError(message) from error
        for module in sorted(pickler.modules):
            users.setdefault(module, name)
    modules = collect_modules(users)
    contents = _Contents(list(names), modules, _sources(pickler.files))
    python = _python_version()
    stamp = msgspec.msgpack.encode(_Stamp(_FORMAT, __version__, python, msgspec.Raw(msgspec.msgpack.encode(contents))))
    try:
        sink.write(stamp)
        sink.write(_TRAILER.pack(len(stamp), _MAGIC))
    except TooLargeError:
        raise ShippingError(_modules_too_large(modules, max_bytes)) from None
    return sink.getvalue()


class Unpacked:
    """Values of a bundle, whose functions may import the user's modules when they run.

    Attributes:
        values: in the order in which they were packed.
    """

    def __init__(self, values: list[Any], finder: BundleFinder, sources: Mapping[str, str]) -> None:
        self.values = values
        self._finder, self._sources = finder, sources

    def put_in_force(self) -> None:
        """Have the user's modules be those of this bundle, if others were unpacked since."""
        switch_to(self._finder, self._sources)


def unpack(bundle: bytes) -> list[Any]:
    """Restore the values of a bundle, of which no other one is unpacked in this process; see :func:`open_bundle`."""
    return open_bundle(bundle).values


def open_bundle(bundle: bytes) -> Unpacked:
    """Restore the values of a bundle; the user's modules replace those of the bundle before.

    This runs the user's code. Call it while no function of another bundle runs.

    Raises:
        ShippingError: a module that the bundle needs isn't installed here, or a value cannot be restored; the message
            names the operator.
        VersionMismatchError: the bundle is from another minor version of Python, or from a millrace that packs
            differently.
    """
    contents = _open(bundle)
    finder = install(contents.modules, contents.sources)
    unpickler = pickle.Unpickler(io.BytesIO(bundle))  # noqa: S301 (workers run the user's code by design)
    values = []
    for name in contents.names:
        try:
            values.append(unpickler.load())
        except (Exception, SystemExit) as error:
            raise ShippingError(_unrestorable(name, error)) from error
    return Unpacked(values, finder, contents.sources)


def _open(bundle: bytes) -> _Contents:
    if len(bundle) < _TRAILER.size or bundle[-len(_MAGIC) :] != _MAGIC:
        raise ShippingError(f"These {len(bundle)} bytes are not a bundle of functions.")
    length, _ = _TRAILER.unpack_from(bundle, len(bundle) - _TRAILER.size)
    end = len(bundle) - _TRAILER.size
    try:
        stamp = msgspec.msgpack.decode(memoryview(bundle)[max(end - length, 0) : end], type=_Stamp)
        if stamp.format != _FORMAT:
            raise VersionMismatchError(
                f"The pipeline's functions were packed by millrace {stamp.millrace}, and this worker runs millrace "
                f"{__version__}, which packs them differently. Install the same version on both sides."
            )
        if stamp.python != _python_version():
            raise VersionMismatchError(
                f"The pipeline's functions were packed by Python {stamp.python}, and this worker runs {_here()}. "
                f"Functions can only be sent between equal minor versions: start workers with Python {stamp.python}."
            )
        return msgspec.msgpack.decode(stamp.contents, type=_Contents)
    except MALFORMED as error:
        raise ShippingError(f"The bundle of functions is damaged: {error}.") from error


def _sources(files: Iterable[str]) -> dict[str, str]:
    """Texts of the user's files and notebook cells whose code goes by value."""
    texts = {file: "".join(linecache.getlines(file)) for file in sorted(files) if not is_installed(file)}
    return {file: text for file, text in texts.items() if 0 < len(text) <= _MAX_SOURCE}


def _modules_too_large(modules: Sequence[Module], max_bytes: int) -> str:
    largest = max(modules, key=lambda module: len(module.source), default=None)
    named = f" (the largest is `{largest.name}`, {largest.path})" if largest is not None else ""
    return (
        f"The pipeline's functions need {len(modules)} modules of yours{named}, and all together take more than "
        f"{max_bytes} bytes. Install what does not change as a package, here and on the workers: it is not sent then."
    )


def _unrestorable(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        finder = current_finder()
        if finder is not None and error.name.partition(".")[0] in finder.modules:
            return (
                f"{name}: your module `{error.name}` did not come along to the worker, as no import statement names "
                f"it. Import it where it is used."
            )
        return (
            f"module `{error.name}` is not installed on the worker ({_here()}), and {name} needs it. Install it there, "
            f"in the version that you have here."
        )
    said = f"{type(error).__name__}: {error}"
    told = f"{name} cannot be restored on the worker ({_here()}): {said}."
    # Without the frame of unpack itself; what is left is the user's, or nothing.
    below = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return told if below is None else f"{told}\n\n{''.join(traceback.format_exception(type(error), error, below))}"


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _here() -> str:
    return f"Python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro} at {sys.executable}"
