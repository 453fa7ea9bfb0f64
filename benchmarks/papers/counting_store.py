"""An object store that counts what it is asked: moto's S3 in a process of its own, for :mod:`benchmarks.papers.costs`.

``python -m benchmarks.papers.counting_store`` is the server. ``GET /counts`` answers with what was counted so far.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs

import msgspec
from obstore.store import S3Store

BUCKET = "counted"
_COUNTS = "/counts"


class Counts(msgspec.Struct, frozen=True):
    """What was asked.

    Attributes:
        lists: requests that list.
        reads: requests that read an object, or ask for its size.
        writes: all others.
        bytes: of the objects that were read.
    """

    lists: int = 0
    reads: int = 0
    writes: int = 0
    bytes: int = 0

    def __sub__(self, other: Counts) -> Counts:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Counts(*(mine - others for mine, others in pairs))


class Server:
    """A store that runs.

    Attributes:
        port: at which it listens on this host.
    """

    def __init__(self, port: int) -> None:
        self.port = port

    def counts(self) -> Counts:
        """What was counted so far."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", _COUNTS)
            return msgspec.json.decode(connection.getresponse().read(), type=Counts)

    def environment(self) -> dict[str, str]:
        """Environment in which clients find it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """Starts one with an empty bucket; this process's environment points to it meanwhile."""
    command = [sys.executable, "-m", "benchmarks.papers.counting_store"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    before = os.environ.copy()
    try:
        found = Server(int(process.stdout.readline()))
        os.environ.update(found.environment())
        connection = http.client.HTTPConnection("127.0.0.1", found.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("PUT", f"/{BUCKET}")
            connection.getresponse().read()
        yield found
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
        process.kill()
        process.communicate()


def bucket() -> S3Store:
    """Client of the bucket."""
    return S3Store(BUCKET, client_options={"allow_http": True})


def kind(method: str, path: str, query: str) -> str:
    """Which field of :class:`Counts` a request belongs to."""
    key = path.strip("/").partition("/")[2]
    if method in ("GET", "HEAD"):
        return "reads" if key and "list-type" not in parse_qs(query) else "lists"
    return "writes"


class _Counting:
    """A WSGI application in front of another one."""

    def __init__(self, inner: Callable[..., Iterable[bytes]]) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == _COUNTS:
            start_response("200 OK", [("Content-Type", "application/json")])
            with self._lock:
                return [json.dumps(self._counts).encode()]
        which = kind(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""))
        answer = list(self._inner(environ, start_response))
        with self._lock:
            self._counts[which] += 1
            if which == "reads":
                self._counts["bytes"] += sum(map(len, answer))
        return answer


def _serve() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = _Counting(DomainDispatcherApplication(create_backend_app))
    listening = make_server("127.0.0.1", 0, application, threaded=True)
    print(listening.server_port, flush=True)
    listening.serve_forever()


if __name__ == "__main__":
    _serve()
