"""S3 server of one's own, for tests and benchmarks: moto (``pip install 'moto[server]'``) in a process."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator

_COMMAND = [sys.executable, "-c", "from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"]


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = os.environ.copy()
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


@contextlib.contextmanager
def s3_bucket(name: str = "millrace-test") -> Iterator[str]:
    """Start a server with an empty bucket, and point this process's environment to it meanwhile.

    Yields:
        ``s3://NAME/``. The address of the server is in ``AWS_ENDPOINT_URL``.

    Raises:
        RuntimeError: the server did not start; moto is not installed, for one.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(_COMMAND, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as server:  # noqa: S603  # a constant
        assert server.stderr is not None
        said = []
        drain = threading.Thread(target=server.stderr.read, name="millrace-s3-server")
        try:
            address = b""
            for line in server.stderr:
                said.append(line)
                if found := re.search(rb"(http://[\d.:]+)", line):
                    address = found[1]
                    break
            drain.start()
            if not address:
                raise RuntimeError("no S3 server: " + b"".join(said[-3:]).decode(errors="replace"))
            variables = {
                "AWS_ENDPOINT_URL": address.decode(),
                "AWS_ACCESS_KEY_ID": "testing",
                "AWS_SECRET_ACCESS_KEY": "testing",
                "AWS_REGION": "us-east-1",
            }
            with _environment(variables):
                request = urllib.request.Request(f"{address.decode()}/{name}", method="PUT")  # noqa: S310  # http
                urllib.request.urlopen(request).close()  # noqa: S310  # as above
                yield f"s3://{name}/"
        finally:
            server.terminate()
            server.wait()
            if drain.ident is not None:
                drain.join()
