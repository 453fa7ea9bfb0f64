"""TLS files: the certificates of this host, from a folder, read again when they change."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from typing import NamedTuple

from millrace.errors import ServiceError
from millrace.wire.address import is_loopback
from millrace.wire.peer_log import PeerLog
from millrace.wire.tls_contexts import client_context, server_context
from millrace.wire.tls_names import AUTHORITY, CERTIFICATE, KEY

_logger = logging.getLogger(__name__)
_log = PeerLog(_logger)


class Certificates(NamedTuple):
    """Contents of a folder; ``chain`` and ``key`` are empty where it has the authority's certificate alone."""

    authority: bytes
    chain: bytes
    key: bytes

    @property
    def identified(self) -> bool:
        """Whether this host has a certificate of its own."""
        return bool(self.chain)


class TlsFiles:
    """Certificates in a folder: ``ca.crt``, and of who listens, or is to be known, ``tls.crt`` and ``tls.key``.

    They are read again once they have changed. Files that cannot be read, or do not fit, change nothing and are logged.
    Thread-safe.

    Args:
        folder: its path.
        demands: who listens demands a certificate of the same authority from whoever connects.

    Raises:
        ServiceError: a file is missing, or is not what it should be.
    """

    def __init__(self, folder: str, *, demands: bool = False) -> None:
        self.folder = os.path.abspath(folder)
        self.demands = demands
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._loaded = self._load()

    def listening(self) -> TlsFiles:
        """Return these, of which who listens needs all.

        Raises:
            ServiceError: there is no certificate of this host.
        """
        if not self._loaded[0].identified:
            raise ServiceError(
                f"who listens needs a certificate, and {self.folder} has no {CERTIFICATE} and {KEY}: make them with"
                " `millrace tls init DIR HOST`, where the authority is, and copy them here"
            )
        return self

    def certificates(self) -> Certificates:
        """Return what is in the files now."""
        return self._current()[0]

    def client_context(self) -> ssl.SSLContext:
        """Return what a connecting end needs; whose the certificate is that it sees is checked by who connects."""
        return self._current()[1]

    def server_context(self) -> ssl.SSLContext:
        """Return what a listening end needs."""
        context = self._current()[2]
        assert context is not None, "checked by listening()"
        return context

    def _current(self) -> tuple[Certificates, ssl.SSLContext, ssl.SSLContext | None]:
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                try:
                    self._loaded = self._load(identified=self._loaded[0].identified)
                    self._stamp = stamp
                    _logger.info("certificates in %s have changed, and are used from now on", self.folder)
                except ServiceError as error:  # perhaps some of them are there and others not yet: looked at next time
                    _log.warning("the certificates of before are used on: %s", error)
            return self._loaded

    def _look(self) -> list[tuple[int, int, int] | None]:
        """Look when each file was written; None: it is not there."""
        stamps: list[tuple[int, int, int] | None] = []
        for name in (AUTHORITY, CERTIFICATE, KEY):
            try:
                found = os.stat(os.path.join(self.folder, name))
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
        return stamps

    def _load(self, *, identified: bool = False) -> tuple[Certificates, ssl.SSLContext, ssl.SSLContext | None]:
        authority = self._read(AUTHORITY)
        chain, key = (self._read(name, optional=not identified) for name in (CERTIFICATE, KEY))
        if bool(chain) != bool(key):
            raise ServiceError(f"{self.folder} has only one of {CERTIFICATE} and {KEY}: it takes both")
        try:
            client = client_context(authority)
            server = server_context(authority, demands=self.demands) if chain else None
        except (ssl.SSLError, ValueError) as error:
            raise ServiceError(f"{self.folder}/{AUTHORITY} is no certificate: {error}") from error
        if server is not None:
            try:
                for context in (client, server):
                    context.load_cert_chain(os.path.join(self.folder, CERTIFICATE), os.path.join(self.folder, KEY), "")
            except (OSError, ValueError) as error:
                raise ServiceError(
                    f"{CERTIFICATE} and {KEY} in {self.folder} do not fit, or are no certificate and key: {error}"
                ) from error
        return Certificates(authority, chain, key), client, server

    def _read(self, name: str, *, optional: bool = False) -> bytes:
        path = os.path.join(self.folder, name)
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            if optional:
                return b""
            raise ServiceError(
                f"{self.folder} is no folder with certificates: it has no {name}. `millrace tls init` makes one for"
                " each host"
            ) from None
        except OSError as error:
            raise ServiceError(f"{path} cannot be read: {error.strerror or error}") from error


def beyond_loopback(tls: TlsFiles | None, host: str) -> TlsFiles | None:
    """Return the certificates for data ports at ``host``; None on loopback, where nobody else hears anything."""
    return None if is_loopback(host) else tls


def open_tls(folder: str) -> TlsFiles | None:
    """Open the certificates of a folder; None if there is none (an empty path)."""
    return TlsFiles(folder) if folder else None
