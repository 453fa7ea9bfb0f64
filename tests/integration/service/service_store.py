"""A web server of files that counts what it is asked for."""

import contextlib
import http.server
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping

FILES, BYTES = 120, 3000


class Store:
    """Files by path, their versions, and how often each was looked at and read; looks wait for ``gate``, if it is set.

    Reads of others than indexes wait for ``held``, if that is set. ``sent`` has the bytes that were sent of each.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.looked_at, self.read, self.sent = Counter[str](), Counter[str](), Counter[str]()
        self.files = dict(files)
        self.versions = dict.fromkeys(self.files, "1")
        self.lock = threading.Lock()
        self.gate: threading.Event | None = None
        self.held: threading.Event | None = None
        self.address = ""

    @property
    def urls(self) -> list[str]:
        return [self.address + name for name in self.files]


def web_store(files: int = FILES, size: int = BYTES, mark: bytes = b"") -> contextlib.AbstractContextManager[Store]:
    """Serve files of one value only, their number, as one byte or, of more than 256 files, as four; then ``mark``."""
    width = 1 if files <= 256 else 4
    contents = (number.to_bytes(width, "big") * (size // width) + mark for number in range(files))
    return web_store_of({f"/{number:03}.bin": content for number, content in enumerate(contents)})


@contextlib.contextmanager
def web_store_of(files: Mapping[str, bytes]) -> Iterator[Store]:
    """Serve files by their paths, or ranges of them."""
    found = Store(files)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            with found.lock:
                found.looked_at[self.path] += 1
            if found.gate is not None:
                found.gate.wait()
            self.answer(body=False)

        def do_GET(self) -> None:
            with found.lock:
                found.read[self.path] += 1
            if found.held is not None and self.path in found.files and not self.path.endswith(".idx"):
                found.held.wait()
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            data = found.files.get(self.path)
            if data is None:
                self.send_error(404)
                return
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = (int(asked[1]), min(int(asked[2]), len(data) - 1)) if asked else (0, len(data) - 1)
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.send_header("Content-Length", str(last + 1 - first))
            self.send_header("ETag", f'"{found.versions[self.path]}"')
            self.end_headers()
            if body:
                with found.lock:
                    found.sent[self.path] += last + 1 - first
                self.wfile.write(data[first : last + 1])

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    with Server(("127.0.0.1", 0), Handler) as server:
        found.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join()
