"""Object store clients as this process's environment describes them, and their errors as millrace's.

One client a bucket or host is kept for as long as the settings in the environment are what they were when it was made,
and it works: whoever corrects an endpoint or a key is heard by the next read.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from millrace.errors import MillraceError, SourceError, SourceNotFoundError

# A body may take long as long as bytes keep coming, so the bound is on each read.
_CLIENT = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "24h"}
_RETRY = {"max_retries": 10, "retry_timeout": timedelta(minutes=3)}
_NO_RETRY = {"max_retries": 0}
_KEPT = 256
_SETTINGS = ("AWS_", "GOOGLE_", "SERVICE_ACCOUNT", "AZURE_", "MSI_", "IDENTITY_", "SSL_CERT_")
_STATUS = re.compile(r"status code: (\d{3})")
_PASSING = (408, 429)
_SLOW_DOWN = (429, 503)
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired", "token has expired")
_OTHER_REGION = ("incorrectly configured region", "AuthorizationHeaderMalformed", "PermanentRedirect")
_NO_BUCKET = ("NoSuchBucket", "specified bucket does not exist", "ContainerNotFound")
_EXPECTED_REGION = re.compile(r"expecting \\*['\"]([\w-]+)")
_USER = re.compile("//[^/@]*@")  # and password, which is nobody's business
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class Provider(NamedTuple):
    """Kind of object store, for messages.

    Attributes:
        name: in plain words.
        endpoints: environment variables that name another server than the provider's own.
        details: environment variables that narrow the location down, such as a region, with a word for each.
        credentials: what to set, in words.
    """

    name: str
    endpoints: tuple[str, ...]
    details: dict[str, str]
    credentials: str


PROVIDERS = {
    "s3": Provider(
        "Amazon S3",
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        {"AWS_REGION": "region", "AWS_DEFAULT_REGION": "region"},
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    ),
    "gs": Provider("Google Cloud Storage", ("GOOGLE_BASE_URL",), {}, "GOOGLE_APPLICATION_CREDENTIALS"),
    "az": Provider(
        "Azure Blob Storage",
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        {"AZURE_STORAGE_ACCOUNT_NAME": "account"},
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    ),
}
"""Providers of stores that have buckets, by scheme."""


class StoreAccessDeniedError(SourceError):
    """Access was denied; a class of its own, as a store answers so for a missing file too, if one may not list."""


class PassingError(SourceError):
    """A store did not answer a request, or said that it is not able to now; asking again may help.

    Attributes:
        slow_down: the store said that it is asked too much.
    """

    def __init__(self, message: str, *, slow_down: bool = False) -> None:
        super().__init__(message)
        self.slow_down = slow_down


class NoRangesError(SourceError):
    """The server has no parts of files, only whole ones."""


# -- clients -----------------------------------------------------------------------------------------------------------

_stores: dict[tuple[str, ...], Any] = {}
_lock = threading.Lock()
_runtime_pid = 0


def store_of(scheme: str, name: str, *, retries: bool = True) -> Any:
    """Client of a bucket (``s3``, ``gs``, ``az``), of a web server's root, or ``memory`` for this process's own.

    Args:
        scheme: of the location.
        name: of the bucket or host.
        retries: whether the client repeats requests that failed; reads of data are repeated by who makes them.

    Raises:
        SourceError: this process was forked after its parent had read from a store.
    """
    if scheme == "memory":
        with _lock:
            return _memory()
    pid = os.getpid()
    _refuse_fork(pid)
    key = (scheme, name, str(pid), str(retries), *_settings())
    with _lock:
        store = _stores.pop(key, None) or _connect(scheme, name, _RETRY if retries else _NO_RETRY)
        _stores[key] = store  # the latest used comes last
        if len(_stores) > _KEPT:
            del _stores[next(iter(_stores))]
        return store


@functools.cache
def _memory() -> Any:
    from obstore.store import MemoryStore

    return MemoryStore()


def _settings() -> list[str]:
    """Environment variables that the clients read when they are made."""
    return [
        f"{name}={os.environ.get(name)}"
        for name in os.environ
        if name.startswith(_SETTINGS) or name.upper() in _PROXIES
    ]


def _connect(scheme: str, name: str, retry: dict[str, Any]) -> Any:
    from obstore import store

    options: dict[str, Any] = {"retry_config": retry, "client_options": {**_CLIENT, "allow_http": True}}
    match scheme:
        case "s3":
            return store.S3Store(name, **options)
        case "gs":
            return store.GCSStore(name, **options)
        case "az":
            return store.AzureStore(name, **options)
    return store.HTTPStore(name, **options)


def _forget(scheme: str, name: str) -> None:
    """Drop a client, so that the next read makes a new one, which reads files of credentials again."""
    with _lock:
        for key in [key for key in _stores if key[:2] == (scheme, name)]:
            del _stores[key]


def _refuse_fork(pid: int) -> None:
    # obstore's threads don't survive fork, and a read in the child would wait for them for ever.
    global _runtime_pid  # noqa: PLW0603
    if _runtime_pid not in (0, pid):
        raise SourceError(
            "This process was forked after its parent had read from an object store, whose threads do not survive a "
            "fork. Start it with the 'spawn' or 'forkserver' method (in torch's DataLoader: "
            "multiprocessing_context='spawn')"
        )
    _runtime_pid = pid


# -- errors ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def store_errors(location: str, scheme: str, name: str) -> Iterator[None]:
    """Raise errors of a store's client as millrace's, each with the location, who was asked, and what to do."""
    from obstore import exceptions

    try:
        yield
    except MillraceError:
        raise
    except FileNotFoundError as error:
        if any(sign in str(error) for sign in _NO_BUCKET):
            raise _no_bucket(location, scheme, name) from error
        raise SourceNotFoundError(f"{location} does not exist{_asked(scheme)}") from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        if any(sign in str(error) for sign in _EXPIRED):
            raise _failed(location, scheme, name, str(error), _summary(error)) from error
        if isinstance(error, exceptions.UnauthenticatedError):
            _forget(scheme, name)
        raise _denied(location, scheme) from error
    except exceptions.NotSupportedError as error:
        raise NoRangesError(f"{location}: the server cannot serve parts of a file ({_summary(error)})") from error
    except (exceptions.BaseError, ValueError) as error:
        raise _failed(location, scheme, name, str(error), _summary(error)) from error


def _failed(location: str, scheme: str, name: str, text: str, summary: str) -> SourceError:
    """Choose the error for what a client said, of which ``summary`` is what a user wants to know."""
    asked = _asked(scheme)
    if "NotPartial" in text:
        return NoRangesError(f"{location}: the server cannot serve parts of a file ({summary})")
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    if status >= 500 or status in _PASSING or (not status and "HttpError {" in text):
        slow_down = status in _SLOW_DOWN or "SlowDown" in text
        return PassingError(f"{location}: {summary}{asked}", slow_down=slow_down)
    _forget(scheme, name)
    if any(sign in text for sign in _EXPIRED):
        provider = PROVIDERS.get(scheme)
        advice = f" (they come from {provider.credentials})" if provider is not None else ""
        return StoreAccessDeniedError(
            f"{location}: the credentials have expired{asked}; renew them where this process was started{advice}"
        )
    if any(sign in text for sign in _OTHER_REGION):
        expected = _EXPECTED_REGION.search(text)
        region = f"AWS_REGION={expected[1]}" if expected else "AWS_REGION to the bucket's region"
        return SourceError(f"{location}: the bucket is in another region{asked}; set {region}")
    if any(sign in text for sign in _NO_BUCKET):
        return _no_bucket(location, scheme, name)
    return SourceError(f"{location}: {summary}{asked}")


def _no_bucket(location: str, scheme: str, name: str) -> SourceError:
    return SourceError(f"{location}: there is no bucket {name!r}{_asked(scheme)}: check its name")


def _denied(location: str, scheme: str) -> SourceError:
    provider = PROVIDERS.get(scheme)
    advice = f". Credentials come from the environment: {provider.credentials}" if provider is not None else ""
    return StoreAccessDeniedError(f"{location}: access denied{_asked(scheme)}{advice}")


def _asked(scheme: str) -> str:
    """Name the server that was asked, and the reason; nothing where the location says it."""
    provider = PROVIDERS.get(scheme)
    if provider is None:
        return ""
    servers = [f"{name}={_USER.sub('//', os.environ[name])}" for name in provider.endpoints if os.environ.get(name)]
    details = {what: os.environ[name] for name, what in provider.details.items() if os.environ.get(name)}
    said = [", ".join(servers) or provider.name, *(f"{what} {value}" for what, value in details.items())]
    return f" (asked {', '.join(said)})"


def _summary(error: Exception) -> str:
    said, _, details = str(error).partition("\n\nDebug source")
    causes = re.findall(r'\b(?:message|error): "([^"\\]+)"', details)
    return said.strip() + (f" ({causes[-1]})" if causes and causes[-1] not in said else "")
