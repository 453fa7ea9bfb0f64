"""A web server of files that counts what it is asked for."""

import contextlib
import http.server
import threading
from collections import Counter
from collections.abc import Iterator

FILES, BYTES = 120, 3000


class Store:
    """Files by path, their versions, and how often each was looked at and read; looks wait for ``gate``, if it is set.

    Each file has one value only, its number, as one byte or, of more than 256 files, as four; then comes ``mark``.
    """

    def __init__(self, files: int = FILES, size: int = BYTES, mark: bytes = b"") -> None:
        width = 1 if files <= 256 else 4
        self.looked_at, self.read = Counter[str](), Counter[str]()
        contents = (number.to_bytes(width, "big") * (size // width) + mark for number in range(files))
        self.files = {f"/{number:03}.bin": content for number, content in enumerate(contents)}
        self.versions = dict.fromkeys(self.files, "1")
        self.lock = threading.Lock()
        self.gate: threading.Event | None = None
        self.address = ""

    @property
    def urls(self) -> list[str]:
        return [self.address + name for name in self.files]


@contextlib.contextmanager
def web_store(files: int = FILES, size: int = BYTES, mark: bytes = b"") -> Iterator[Store]:
    found = Store(files, size, mark)

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
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            data = found.files[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{found.versions[self.path]}"')
            self.end_headers()
            if body:
                self.wfile.write(data)

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
