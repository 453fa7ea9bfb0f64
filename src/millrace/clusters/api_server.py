"""Client of a Kubernetes API server: requests that are tried again, and watches that go on for ever.

Why not a client that exists: kr8s brings 19 packages that take 0.4 s of processor time to import. lightkube (15, 0.2 s)
comes close, but does not wait out a server that throttles, and its watches do not tell what vanished while they were
away, which is most of what is here. aiohttp (10, 0.3 s) is developed, streams, and is there already where Ray is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import aiohttp

from millrace.errors import ServiceError
from millrace.wire.backoff import delays

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Folder in which every pod finds its service account."""
RETRY_S = 60.0
"""Seconds for which a request is tried again while the server throttles, fails or cannot be reached."""
REQUEST_S = 15.0
WATCH_S = 60
"""Seconds after which the server ends a watch, as one whose connection died unnoticed must not be believed for ever."""
SILENCE_S = WATCH_S + 15.0

_DENIED = {401, 403}
"""Denials that another attempt may change: the token may have been replaced just now, or the server was just started
and does not know all roles yet."""
_PASSING = {*_DENIED, 408, 429, 500, 502, 503, 504}
"""Answers that another attempt may change."""
_GONE = 410
_logger = logging.getLogger(__name__)

Change = tuple[Literal["LISTED"], list[Any]] | tuple[Literal["ADDED", "MODIFIED", "DELETED"], dict[str, Any]]


class RefusedError(ServiceError):
    """Refusal by the server: trying again would not help.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ApiServer:
    """API server with the objects of one namespace. Belongs to the event loop in which it is first used.

    Args:
        url: of the server; empty: that of the cluster that this process runs in.
        namespace: of the objects; empty: that of the service account.
        account: folder with ``token``, which is read again for each request because it is replaced every hour or so,
            ``ca.crt``, which may be replaced too, and ``namespace``; each is left out where it is missing.
        retry_s: seconds for which a request is tried again.
        pauses: seconds between attempts.

    Attributes:
        namespace: as given, or found.
        closing: a denial is believed at once.

    Raises:
        ServiceError: no URL or namespace is given or found.
    """

    def __init__(
        self,
        url: str = "",
        namespace: str = "",
        *,
        account: str = ACCOUNT,
        retry_s: float = RETRY_S,
        pauses: Callable[[], Iterator[float]] = lambda: delays(0.1, 5.0),
    ) -> None:
        self._account = account
        self.namespace = namespace or self._read("namespace")
        if not self.namespace:
            raise ServiceError(f"in which namespace? Name it with --namespace: there is no {account}/namespace here")
        self._url = (url or _own_url()).rstrip("/")
        self.closing = False
        self._retry_s = retry_s
        self._pauses = pauses
        self._session: aiohttp.ClientSession | None = None
        self._trust: tuple[float, ssl.SSLContext] | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def request(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Send a request; try again with growing, jittered pauses for as long as it may help.

        It may so be done twice, and has to be one that this does not harm (with a resource version, or of one object).

        Args:
            method: of HTTP.
            path: group, version, and what follows the namespace, e.g. ``apps/v1/deployments/millrace-worker/scale``.
            body: to be sent as JSON.
            query: parameters of the URL.

        Raises:
            RefusedError: the server refused; if it denied access, for as long as it may help to try again.
            ServiceError: the server was throttling, failing or not reached for too long.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._retry_s
        pauses = self._pauses()
        while True:
            pause, denied = next(pauses), 0
            try:
                async with self._open(method, path, body, query, aiohttp.ClientTimeout(total=REQUEST_S)) as answer:
                    text = await answer.text()
                    if answer.ok:
                        return json.loads(text)
                    reason = _refusal(method, path, answer.status, text)
                    denied = answer.status if answer.status in _DENIED else 0
                    if answer.status not in _PASSING or (denied and self.closing):
                        raise RefusedError(reason, answer.status)
                    # That many clients were told the same makes the jitter needed.
                    pause += _seconds(answer.headers.get("Retry-After", ""))
            except (aiohttp.ClientError, TimeoutError, OSError, json.JSONDecodeError) as error:
                reason = f"{method} {path} at {self._url}: {type(error).__name__}: {error}"
            if denied and loop.time() + pause > until:
                raise RefusedError(f"{reason} (for {self._retry_s:g} s)", denied)
            if loop.time() + pause > until:
                raise ServiceError(f"the Kubernetes API server did not help for {self._retry_s:g} s: {reason}")
            _logger.info("%s; trying again in %.1f s", reason, pause)
            await asyncio.sleep(pause)

    async def watch(self, path: str, **query: str) -> AsyncIterator[Change]:
        """Yield a list of some objects, then each change of them; a list again where changes were missed.

        The watch never ends by itself: what keeps it from going on is logged, and tried again. ``path`` and ``query``
        are as for :meth:`request`.
        """
        version, pauses = "", self._pauses()
        while True:
            try:
                if not version:
                    listed = await self.request("GET", path, **query)
                    version = listed["metadata"]["resourceVersion"]
                    yield "LISTED", listed["items"]
                async for event in self._stream(path, version, query):
                    pauses = self._pauses()
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]
            except RefusedError as error:
                if error.status == _GONE:
                    _logger.info("changes were missed; listing anew: %s", error)
                else:
                    _logger.error("%s; trying again", error)  # noqa: TRY400 - it says it all
                version = ""
            except (aiohttp.ClientError, TimeoutError, OSError, ServiceError, json.JSONDecodeError) as error:
                _logger.info("the watch of %s broke: %s: %s", path, type(error).__name__, error)
            await asyncio.sleep(next(pauses))

    async def _stream(self, path: str, version: str, query: dict[str, str]) -> AsyncIterator[Any]:
        """Yield events since ``version``, until the server ends the watch."""
        asked = {**query, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        timeout = aiohttp.ClientTimeout(sock_connect=REQUEST_S, sock_read=SILENCE_S)
        async with self._open("GET", path, None, {**asked, "timeoutSeconds": str(WATCH_S)}, timeout) as answer:
            if not answer.ok:
                failure = _refusal("GET", path, answer.status, await answer.text())
                if answer.status in _PASSING:
                    raise ServiceError(failure)
                raise RefusedError(failure, answer.status)
            rest = b""
            async for data in answer.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for event in map(json.loads, lines):
                    if event["type"] == "ERROR":
                        raise RefusedError(event["object"].get("message", "the watch failed"), event["object"]["code"])
                    yield event

    def _open(self, method: str, path: str, body: Any, query: dict[str, str], timeout: aiohttp.ClientTimeout) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        group, _, rest = path.partition("/v1/")
        root = f"apis/{group}/v1" if group else "api/v1"
        url = f"{self._url}/{root}/namespaces/{self.namespace}/{rest}"
        headers = {"Content-Type": "application/json"} if body is not None else {}
        token = self._read("token")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = json.dumps(body) if body is not None else None
        return self._session.request(
            method, url, params=query, data=data, headers=headers, timeout=timeout, ssl=self._trusted()
        )

    def _trusted(self) -> ssl.SSLContext | bool:
        """Trust the cluster's own authority, where its certificate is; else whom this machine trusts."""
        path = os.path.join(self._account, "ca.crt")
        try:
            changed = os.stat(path).st_mtime
        except FileNotFoundError:
            return True
        if self._trust is None or self._trust[0] != changed:
            self._trust = changed, ssl.create_default_context(cafile=path)
        return self._trust[1]

    def _read(self, name: str) -> str:
        try:
            with open(os.path.join(self._account, name)) as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""


def _own_url() -> str:
    """Find the API server of the cluster that this process runs in."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ServiceError(
            "this process is not in a Kubernetes pod; run the dispatcher in one (see docs/kubernetes.md), or name the"
            " API server, e.g. --api-server http://127.0.0.1:8001 with `kubectl proxy`"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _refusal(method: str, path: str, status: int, text: str) -> str:
    """Put the server's answer to a request into words; it is an object that has a message."""
    try:
        said = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        said = text.strip()[:200] or "no reason given"
    return f"the Kubernetes API server answers {method} {path} with {status}: {said}"


def _seconds(text: str) -> float:
    """Parse the seconds of a Retry-After header; Kubernetes sends whole ones."""
    return min(float(text), 30.0) if text.isdigit() else 0.0
