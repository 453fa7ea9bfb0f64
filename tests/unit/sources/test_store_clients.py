"""Clients of object stores: which are kept, and what their errors say."""

from __future__ import annotations

import os

import pytest
from obstore import exceptions

from millrace.errors import SourceError, SourceNotFoundError
from millrace.sources import storage, stores

MISSING = FileNotFoundError("no such key")
DENIED = exceptions.PermissionDeniedError("Forbidden")
UNKNOWN = exceptions.UnauthenticatedError("Who are you?")
BROKEN = exceptions.GenericError(
    'HTTP error: error sending request\n\nDebug source:\nError { code: 111, message: "Connection refused" }'
)


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "mill")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    monkeypatch.setattr(stores, "_stores", {})
    return monkeypatch


def fail(error: Exception, location: str = "s3://mill/a") -> str:
    scheme, _, name = location.rpartition("/")[0].partition("://")
    with pytest.raises(SourceError) as raised, stores.store_errors(location, scheme, name):
        raise error
    return str(raised.value)


@pytest.mark.parametrize(
    "variable", ["AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "https_proxy"]
)
def test_a_client_is_kept_while_its_settings_are(settings: pytest.MonkeyPatch, variable: str) -> None:
    first = stores.store_of("s3", "mill")
    settings.setenv("LANG", "C")
    assert stores.store_of("s3", "mill") is first
    settings.setenv(variable, "http://127.0.0.1:9")
    second = stores.store_of("s3", "mill")
    assert second is not first
    settings.setenv(variable, "http://127.0.0.1:10")
    third = stores.store_of("s3", "mill")
    assert third is not first
    assert third is not second
    settings.delenv(variable)
    assert stores.store_of("s3", "mill") is first


@pytest.mark.parametrize(("error", "kept"), [(BROKEN, False), (UNKNOWN, False), (MISSING, True), (DENIED, True)])
def test_a_client_that_failed_is_not_kept(error: Exception, kept: bool) -> None:
    first, other = stores.store_of("s3", "mill"), stores.store_of("s3", "race")
    fail(error)
    assert (stores.store_of("s3", "mill") is first) == kept
    assert stores.store_of("s3", "race") is other


def test_so_many_are_kept_as_are_in_use(settings: pytest.MonkeyPatch) -> None:
    settings.setattr(stores, "_KEPT", 2)
    first = stores.store_of("s3", "mill")
    stores.store_of("s3", "race")
    assert stores.store_of("s3", "mill") is first
    stores.store_of("s3", "wheel")
    assert stores.store_of("s3", "mill") is first
    assert len(stores._stores) == 2


def test_the_store_in_memory_outlives_errors_and_settings(settings: pytest.MonkeyPatch, bucket: str) -> None:
    storage.write(bucket + "a", b"kept")
    fail(BROKEN, bucket + "a")
    settings.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert storage.read(bucket + "a") == b"kept"


def test_errors_say_who_was_asked(settings: pytest.MonkeyPatch) -> None:
    theirs = "(asked Amazon S3, region eu-central-1)"
    assert fail(MISSING) == f"s3://mill/a does not exist {theirs}"
    assert fail(DENIED).startswith(f"s3://mill/a: access denied {theirs}. Credentials come from the environment: AWS_")
    settings.setenv("AWS_ENDPOINT_URL", "http://me:word@127.0.0.1:9")
    ours = "(asked AWS_ENDPOINT_URL=http://127.0.0.1:9, region eu-central-1)"
    assert fail(MISSING) == f"s3://mill/a does not exist {ours}"
    assert fail(BROKEN) == f"s3://mill/a: HTTP error: error sending request (Connection refused) {ours}"
    assert fail(UNKNOWN).startswith(f"s3://mill/a: access denied {ours}. ")
    assert fail(MISSING, "gs://mill/a") == "gs://mill/a does not exist (asked Google Cloud Storage)"
    assert fail(MISSING, "az://mill/a") == "az://mill/a does not exist (asked Azure Blob Storage, account mill)"
    assert fail(MISSING, "http://mill/a") == "http://mill/a does not exist"


def test_errors_that_are_millraces_pass() -> None:
    with pytest.raises(SourceNotFoundError, match=r"^own$"), stores.store_errors("s3://mill/a", "s3", "mill"):
        raise SourceNotFoundError("own")


def test_a_forked_child_is_told_instead_of_hanging(settings: pytest.MonkeyPatch) -> None:
    settings.setattr(stores, "_runtime_pid", os.getpid() + 1)
    with pytest.raises(SourceError, match=r"forked.*multiprocessing_context='spawn'"):
        storage.read("s3://bucket-of-this-test/key")
