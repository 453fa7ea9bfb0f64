"""What goes wrong with a store in the middle of an epoch: what passes is survived, the rest ends it with a sentence."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import re
import socket
import struct
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

import millrace as mr
from millrace.errors import SourceChangedError, SourceError, SourceNotFoundError
from millrace.policies import read_hedging, read_retries

FILES = 60
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
MALFORMED = (
    b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>The authorization header is malformed; the region "
    b"'us-east-1' is wrong; expecting 'eu-west-1'</Message></Error>"
)


class Store(http.server.ThreadingHTTPServer):
    """Server that speaks as much of S3 as reading takes, and does what ``trouble`` says about a GET of an object.

    Attributes:
        objects: by key.
        trouble: gets the handler, the key and how often it was asked for before; returns whether it has answered.
        asked: GETs of objects, by key.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.trouble: Callable[[Handler, str, int], bool] = lambda handler, key, before: False
        self.asked: Counter[str] = Counter()
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Those who ask may leave."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.serve(body=False)

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        if where.query:
            self.list(parse_qs(where.query).get("prefix", [""])[0])
            return
        key = self.key()
        with self.server.lock:
            before = self.server.asked[key]
            self.server.asked[key] += 1
        if not self.server.trouble(self, key, before):
            self.serve(body=True)

    def key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/bucket/")

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def head(self, data: bytes) -> tuple[int, int]:
        """Sends the head of an answer; returns the range that is asked for."""
        start, stop = 0, len(data)
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, stop = int(asked[1]), min(len(data), int(asked[2] or len(data)) + 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", etag(data))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        return start, stop

    def serve(self, *, body: bool) -> None:
        data = self.server.objects.get(self.key())
        if data is None:
            self.answer(404)
            return
        start, stop = self.head(data)
        if body:
            self.wfile.write(data[start:stop])

    def cut(self, *, reset: bool) -> None:
        """Answers with a part of the body, and hangs up."""
        data = self.server.objects[self.key()]
        start, stop = self.head(data)
        self.wfile.write(data[start : (start + stop) // 2])
        self.wfile.flush()
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def list(self, prefix: str) -> None:
        found = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{etag(data)}</ETag><Size>{len(data)}</Size></Contents>"
            for key, data in sorted(self.server.objects.items())
            if key.startswith(prefix)
        )
        self.answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode())


def etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with Store() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        server.objects |= {f"f/{number:03d}": b"%d" % number for number in range(FILES)}
        server.objects["t/a.tar"] = tar(range(FILES))
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def tar(numbers: range) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number in numbers:
            info = tarfile.TarInfo(f"{number:04d}.n")
            info.size = 20_000
            archive.addfile(info, io.BytesIO(b"%-20000d" % number))
    return file.getvalue()


def files() -> mr.Dataset:
    return mr.Dataset.from_files("s3://bucket/f/*").map(lambda element: int(element["bytes"]))


def samples() -> mr.Dataset:
    return mr.Dataset.from_webdataset("s3://bucket/t/*").map(lambda sample: int(sample["n"]))


DATASETS = pytest.mark.parametrize("dataset", [files, samples])


def every_third(trouble: Callable[[Handler], object], times: int = 1) -> Callable[[Handler, str, int], bool]:
    """Meets every third file, and the archive, so many times each."""

    def meet(handler: Handler, key: str, before: int) -> bool:
        if before >= times or (key.startswith("f/") and int(key[2:]) % 3):
            return False
        trouble(handler)
        return True

    return meet


PASSING: dict[str, Callable[[Handler], object]] = {
    "internal error": lambda handler: handler.answer(500),
    "slow down": lambda handler: handler.answer(503, SLOW_DOWN),
    "too many requests": lambda handler: handler.answer(429),
    "truncated": lambda handler: handler.cut(reset=False),
    "reset": lambda handler: handler.cut(reset=True),
}


@DATASETS
@pytest.mark.parametrize("trouble", PASSING.values(), ids=PASSING)
def test_what_passes_is_survived_and_each_element_comes_once(
    store: Store, dataset: Callable[[], mr.Dataset], trouble: Callable[[Handler], object]
) -> None:
    store.trouble = every_third(trouble)
    with iter(dataset()) as elements:
        found = list(elements)
        source = elements.measures()[0]
    assert found == list(range(FILES))
    assert source.retried >= 1
    assert source.requests > source.retried


def test_a_service_survives_it_too_and_says_how_often_it_asked_again(store: Store) -> None:
    store.trouble = every_third(PASSING["slow down"])
    with (
        mr.LocalService(max_workers=1) as service,
        files().distribute(service.address, job_name="faults") as served,
    ):
        found = list(served)
        while not (source := first_operator(service)) or not source["retried"]:
            pass  # its worker has not reported yet
    assert sorted(found) == list(range(FILES))
    assert source["requests"] > source["retried"]
    assert source["stored_bytes"] >= 1


def first_operator(service: mr.LocalService) -> dict[str, Any]:
    (job,) = service.status()["jobs"]
    return dict(job["operators"][0]) if job["operators"] else {}


def test_a_file_that_becomes_visible_late_is_read(store: Store) -> None:
    store.trouble = every_third(lambda handler: handler.answer(404))
    assert list(files()) == list(range(FILES))


# -- what does not pass ------------------------------------------------------------------------------------------------


def in_mid_epoch(store: Store, dataset: mr.Dataset, change: Callable[[], object]) -> tuple[list[int], SourceError]:
    """Elements that come although something changed after the listing, and the error behind them."""
    dataset.__pipeline__().tables()
    change()
    found: list[int] = []
    with pytest.raises(SourceError) as caught:
        found.extend(dataset)
    return found, caught.value


def test_a_deleted_file_is_named_and_not_skipped(store: Store) -> None:
    found, error = in_mid_epoch(store, files(), lambda: store.objects.pop("f/030"))
    assert found == list(range(30))
    assert isinstance(error, SourceNotFoundError)
    assert re.match(
        r"s3://bucket/f/030 does not exist \(asked .*\), though it was listed with 2 bytes: it was deleted, or never "
        r"became visible\. Data must stay as they are",
        str(error),
    )


@pytest.mark.parametrize("data", [b"31", b"123456"], ids=["of the same size", "larger"])
def test_a_changed_file_is_named_and_not_read(store: Store, data: bytes) -> None:
    found, error = in_mid_epoch(store, files(), lambda: store.objects.update({"f/030": data}))
    assert found == list(range(30))
    assert isinstance(error, SourceChangedError)
    assert str(error).startswith(
        f"s3://bucket/f/030 has changed since it was listed: it had 2 bytes, and has {len(data)} bytes, version "
        f"{etag(data)}. Data must stay as they are"
    )
    assert "list it anew" in str(error)


def test_a_changed_archive_is_named_with_both_its_versions(store: Store) -> None:
    before = store.objects["t/a.tar"]
    found, error = in_mid_epoch(store, samples(), lambda: store.objects.update({"t/a.tar": tar(range(5, FILES + 5))}))
    assert found == []
    assert isinstance(error, SourceChangedError)
    assert f"it had {len(before)} bytes, version {etag(before)}, and has {len(before)} bytes, version" in str(error)


@DATASETS
def test_a_file_that_changes_while_it_is_asked_for_again_is_not_mixed(
    store: Store, dataset: Callable[[], mr.Dataset]
) -> None:
    def meet(handler: Handler, key: str, before: int) -> bool:
        if key in ("f/030", "t/a.tar") and not before:
            handler.cut(reset=True)
            store.objects[key] = tar(range(1, FILES + 1)) if key == "t/a.tar" else b"31"
            return True
        return False

    store.trouble = meet
    with pytest.raises(SourceChangedError, match="has changed since it was listed"):
        list(dataset())


REFUSED: dict[str, tuple[Callable[[Handler], object], str]] = {
    "expired": (
        lambda handler: handler.answer(400, EXPIRED),
        r"have expired \(asked AWS_ENDPOINT_URL=.*\); renew them where .* was started \(they come from AWS_ACC",
    ),
    "expired, refused": (lambda handler: handler.answer(403, EXPIRED), r"the credentials have expired"),
    "denied": (lambda handler: handler.answer(403), r"access denied \(asked .*\)\. Credentials come from"),
    "no bucket": (
        lambda handler: handler.answer(404, b"<Error><Code>NoSuchBucket</Code><Message>No</Message></Error>"),
        r"there is no bucket 'bucket' \(asked AWS_ENDPOINT_URL=.*\): check its name",
    ),
    "redirected": (
        lambda handler: handler.answer(301, x_amz_bucket_region="eu-west-1"),
        r"the bucket is in another region \(asked .*region us-east-1\); set AWS_REGION to the bucket's region",
    ),
    "other region": (
        lambda handler: handler.answer(400, MALFORMED),
        r"the bucket is in another region \(asked .*region us-east-1\); set AWS_REGION=eu-west-1",
    ),
}


@pytest.mark.parametrize(("trouble", "said"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_pass_is_asked_once_and_says_what_to_do(
    store: Store, monkeypatch: pytest.MonkeyPatch, trouble: Callable[[Handler], object], said: str
) -> None:
    monkeypatch.setattr(read_hedging, "_SHARE", 0.0)  # nor a second time because the first takes long

    def meet(handler: Handler, key: str, before: int) -> bool:
        if key != "f/030":
            return False
        trouble(handler)
        return True

    store.trouble = meet
    found: list[int] = []
    with pytest.raises(SourceError, match=said):
        found.extend(files())
    assert found == list(range(30))
    assert store.asked["f/030"] == 1


def from_on(first: str, until: str = "g") -> Callable[[Handler, str, int], bool]:
    """Meets these files whenever they are asked for."""

    def meet(handler: Handler, key: str, before: int) -> bool:
        if not first <= key <= until:
            return False
        handler.answer(503, SLOW_DOWN)
        return True

    return meet


def test_a_store_that_stays_away_ends_the_epoch_after_a_while(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_retries, "PATIENCE_S", 2.0)
    store.trouble = from_on("f/030", until="f/030")
    found: list[int] = []
    with pytest.raises(SourceError, match=r"f/030: .*503.*Please reduce.*It was asked for \d+ times in"):
        found.extend(files())
    assert found == list(range(30))
    assert 2 <= store.asked["f/030"] <= 20


def test_a_pipeline_ends_at_once_though_a_store_does_not_answer(store: Store) -> None:
    store.trouble = from_on("f/040")
    with contextlib.closing(iter(files())) as elements:
        assert [next(elements) for _ in range(5)] == list(range(5))
    assert not [each.name for each in threading.enumerate() if each.name.startswith("millrace")]
