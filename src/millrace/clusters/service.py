"""Service whose dispatcher is a child of this process, and the options that users give it."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, Self

from millrace.blocks.disk_capacity import check_capacity
from millrace.clusters.child_process import describe_exit, hang_up, kill, reap, spawn
from millrace.errors import AddressInUseError, PipelineError, ServiceError, ShippingError
from millrace.policies.prices import PROVIDERS
from millrace.policies.scaling.scaling_policies import SERVICES
from millrace.sources.storage import absolute

START_S = 60.0
"""Seconds that a dispatcher may take to say where it listens; on a busy machine imports alone take some."""
LAST_LINES = 20
LAST_WORDS_S = 1.0
"""Seconds to read what an ended dispatcher has said; what user code has started may hold its stderr for longer."""
WRONG_USAGE = 2
"""Exit status of a command with wrong options; its last line says what is wrong with them."""


def worker_range(min_workers: int, max_workers: int | None, room: int) -> tuple[int, int]:
    """Check how many workers a service has at least and at most.

    Args:
        min_workers: from 0 on.
        max_workers: None: as many as there is ``room`` for, and not fewer than ``min_workers``.
        room: number of workers.
    """
    given: tuple[Any, Any] = (min_workers, room if max_workers is None else max_workers)  # whatever was given
    if not all(isinstance(each, int) for each in given):
        raise PipelineError(f"min_workers and max_workers are whole numbers, not {min_workers!r} and {max_workers!r}")
    least, most = given[0], max(given) if max_workers is None else given[1]
    if least < 0 or most < max(least, 1):
        raise PipelineError(f"a service of at least {least} and at most {most} workers cannot be")
    return least, most


def storage_options(
    cache_dir: str | None,
    cache_bytes: int | None,
    cache_compression: Literal["lz4", "zstd"] | None,
    work_dir: str | None,
) -> list[str]:
    """Make the options of ``millrace dispatcher`` for cache and journal from the arguments of the same names."""
    if cache_dir is None and cache_bytes is not None:
        raise PipelineError("cache_bytes says how much a cache may take: say where it is, too, with cache_dir=")
    size: Any = cache_bytes  # whatever was given
    if size is not None and not (isinstance(size, int) and size >= 1):
        raise PipelineError(f"cache_bytes must be a whole number of at least 1, not {size!r}")
    if cache_compression not in (None, "lz4", "zstd"):
        raise PipelineError(f"cache_compression is None, 'lz4' or 'zstd', not {cache_compression!r}")
    for name, folder in (("cache_dir", cache_dir), ("work_dir", work_dir)):
        if folder is not None and not isinstance(folder, str | os.PathLike):
            raise PipelineError(f"{name} is the path of a folder or None, not {folder!r}")
    if cache_dir is not None and cache_bytes is None:
        check_capacity(cache_dir)  # where it would be refused, it is refused here
    return [
        *(() if cache_dir is None else ("--cache-dir", absolute(cache_dir))),
        *(() if cache_bytes is None else ("--cache-bytes", str(cache_bytes))),
        *(() if cache_compression is None else ("--cache-compression", cache_compression)),
        *(() if work_dir is None else ("--work-dir", os.path.abspath(work_dir))),
    ]


def source_cache_options(source_cache: str | None, source_cache_bytes: int | None) -> list[str]:
    """Make the options of ``millrace dispatcher`` for a cache of stored bytes from the arguments of the same names."""
    if source_cache is None and source_cache_bytes is not None:
        raise PipelineError("source_cache_bytes says how much a cache may take: say where it is, with source_cache=")
    if source_cache is not None and not isinstance(source_cache, str | os.PathLike):
        raise PipelineError(f"source_cache is the path of a folder or None, not {source_cache!r}")
    size: Any = source_cache_bytes  # whatever was given
    if size is not None and not (isinstance(size, int) and size >= 1):
        raise PipelineError(f"source_cache_bytes must be a whole number of at least 1, not {size!r}")
    return [
        *(() if source_cache is None else ("--source-cache", os.path.abspath(source_cache))),
        *(() if source_cache_bytes is None else ("--source-cache-bytes", str(source_cache_bytes))),
    ]


def scaling_options(scaling_policy: str, prices: str | None) -> list[str]:
    """Make the options of ``millrace dispatcher`` for scaling from the arguments of the same names."""
    if scaling_policy not in SERVICES:
        raise PipelineError(f"scaling_policy is one of {', '.join(SERVICES)}, not {scaling_policy!r}")
    return [
        *("--scaling-policy", scaling_policy),
        *(() if prices is None else ("--prices", prices if prices in PROVIDERS else os.path.abspath(prices))),
    ]


def quota_options(
    quotas: Mapping[str, int] | None,
    job_quotas: Mapping[str, int] | None = None,
    byte_quotas: Mapping[str, int] | None = None,
) -> list[str]:
    """Make the options of ``millrace dispatcher`` for workers, jobs and cached bytes by tenant, from 1 on."""
    return [
        *_by_tenant("quotas", "workers", "--quota", quotas),
        *_by_tenant("job_quotas", "jobs", "--quota-jobs", job_quotas),
        *_by_tenant("byte_quotas", "bytes", "--quota-bytes", byte_quotas),
    ]


def _by_tenant(name: str, what: str, option: str, quotas: Mapping[str, int] | None) -> list[str]:
    if quotas is not None and not isinstance(quotas, Mapping):
        raise PipelineError(
            f"{name} are numbers of {what} by the names of tenants, as in {{'vision': 8}}, not {quotas!r}"
        )
    for tenant, number in (quotas or {}).items():
        given: Any = tenant  # whatever was given
        if not (isinstance(given, str) and given and type(number) is int and number >= 1):
            raise PipelineError(
                f"{name} are whole numbers of {what} from 1 on, by the names of tenants, not {tenant!r}: {number!r}"
            )
    return [word for tenant, number in (quotas or {}).items() for word in (option, f"{tenant}={number}")]


class Service:
    """Dispatcher and its workers, as long as this object lives.

    The dispatcher ends with :meth:`close`, with a ``with`` block, or with this process, however it ends; what it has
    started ends with it.

    Args:
        options: of ``millrace dispatcher``.
        token: that clients must present; None or empty: on loopback this user's own.
        tls: folder of certificates; None or empty: none, and what is said can be heard.

    Attributes:
        address: to give to ``distribute``, e.g. ``grpc://127.0.0.1:40123``.
        token: the one given; ``distribute`` in this process knows it, others need it.
        tls: the folder given, likewise; empty: none.

    Raises:
        AddressInUseError: the port is taken.
        ServiceError: the dispatcher did not start; the message has its last words.
    """

    def __init__(self, options: Sequence[str], token: str | None, tls: str | None = None) -> None:
        if token is not None and not isinstance(token, str):
            raise PipelineError(f"token is a str or None, not of type {type(token).__name__}")
        if tls is not None and not isinstance(tls, str | os.PathLike):
            raise PipelineError(f"tls is the path of a folder with certificates, or None, not {tls!r}")
        self.token = token or None
        self.tls = os.path.abspath(tls) if tls else ""
        self._process = spawn(
            ["dispatcher", *options, "--owner", f"process {os.getpid()} on {platform.node()}"],
            worker=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            token=token,
            tls=self.tls,
        )
        self._stderr = _StderrReader(self._process)
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._owner, self._process, self._stderr)
        try:
            # What reads from a service takes a while to load, as its processes do.
            importlib.import_module("millrace.client.epoch_reader")
            self.address: str = _read_address(self._process, self._stderr)
        except BaseException:
            self.close()
            raise
        _services[self.address] = self

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return not self._finalizer.alive

    def status(self) -> dict[str, Any]:
        """Fetch what the service is doing, as ``millrace status --json`` does.

        Raises:
            ServiceError: if it can't be asked.
        """
        from millrace.client.status_query import fetch_status

        return fetch_status(self.address, self.token, tls=self.tls)

    def close(self) -> None:
        """End all processes of the service. May be called any number of times."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ShippingError(f"a {type(self).__name__} cannot be pickled: pass its .address on")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'closed' if self.closed else self.address})"


_services: weakref.WeakValueDictionary[str, Service] = weakref.WeakValueDictionary()


def access_to(service: str | None, token: str | None, tls: str | None) -> tuple[str | None, str]:
    """Resolve token and folder of certificates for a service; one that is embedded (None) has no certificates.

    They are those given, else those of a service that this process holds, else those of the environment.
    """
    if tls is not None and not isinstance(tls, str | os.PathLike):
        raise PipelineError(f"tls is the path of a folder with certificates, or None, not {tls!r}")
    if tls and service is None:
        raise PipelineError("tls= goes with the address of a service: the one that is embedded here is on loopback")
    held = _services.get(service or "")
    token = token or (held.token if held is not None else None) or os.environ.get("MILLRACE_TOKEN")
    if not tls and service is not None:
        tls = os.environ.get("MILLRACE_TLS") if held is None else held.tls
    return token, os.path.abspath(tls) if tls else ""


def watch(address: str) -> Callable[[], str] | None:
    """Return a function that says why the service at this address has ended, "" while it runs; None: it isn't ours.

    Whoever keeps the function does not keep the service.
    """
    service = _services.get(address)
    if service is None or service._owner != os.getpid():  # noqa: SLF001 (of this module; a forked child cannot tell)
        return None
    process = service._process  # noqa: SLF001 (of this module)

    def gone() -> str:
        status = process.poll()
        return "" if status is None else f"the service at {address} is gone: its dispatcher {describe_exit(status)}"

    return gone


class _StderrReader:
    """Reader of a process's stderr, which passes it on to ours and keeps the last lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._process = process
        self._thread = threading.Thread(target=self._read, name="millrace-service-stderr", daemon=True)
        self.started = False
        self._thread.start()

    def join(self) -> None:
        self._thread.join(LAST_WORDS_S)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace")
            self.last.append(text.rstrip())
            if self.started and sys.stderr is not None:
                # Ours may be closed, or read by nobody; the dispatcher would stand still if nobody read its own.
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(text)
        self._process.stderr.close()


def _read_address(process: subprocess.Popen[bytes], stderr: _StderrReader) -> str:
    assert process.stdout is not None
    hurry = threading.Timer(START_S, kill, (process,))
    hurry.daemon = True
    hurry.start()
    try:
        line = process.stdout.readline()
    finally:
        hurry.cancel()
        hurry.join()
    try:
        address: str = json.loads(line)["address"]
    except (ValueError, KeyError, TypeError):
        status = reap(process)
        stderr.join()
        last = list(stderr.last)
        if status == WRONG_USAGE:
            raise PipelineError(f"the service cannot be as it was asked for: {last[-1]}") from None
        kind = AddressInUseError if any("another process" in each for each in last) else ServiceError
        said = "\n  ".join(last) or f"nothing; exit status {status}"
        raise kind(f"the service did not start. Its dispatcher said:\n  {said}") from None
    stderr.started = True
    return address


def _end(owner: int, process: subprocess.Popen[bytes], stderr: _StderrReader) -> None:
    if os.getpid() != owner:
        return  # forked: the service is the parent's
    hang_up(process)
    reap(process)
    if process.stdout is not None:
        process.stdout.close()
    stderr.join()
