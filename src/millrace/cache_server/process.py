"""Cache server process: its session with the dispatcher, its data port, and its end."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable

from millrace.cache_server.item_server import ItemServer
from millrace.cache_server.item_store import ItemStore
from millrace.errors import (
    AccessDeniedError,
    AuthenticationError,
    MillraceError,
    ServiceError,
    VersionMismatchError,
)
from millrace.protocol.cache_server_messages import (
    CacheServerHello,
    CacheServerReport,
    CacheServerWelcome,
    KeepChunks,
    ToCacheServer,
)
from millrace.wire.address import WILDCARDS, format_address, parse_address
from millrace.wire.backoff import delays
from millrace.wire.control.client_session import ClientSession
from millrace.wire.control.control_client import ControlChannel
from millrace.wire.data.data_keys import source_key
from millrace.wire.tls_files import TlsFiles, beyond_loopback

_CONNECT_S = 10.0
_FATAL = (AuthenticationError, AccessDeniedError, VersionMismatchError)

_logger = logging.getLogger(__name__)


class CacheServerProcess:
    """Cache server of a service; :meth:`run` is its whole life.

    Args:
        dispatcher: address of the dispatcher.
        folder: in which items are kept.
        most_bytes: that they may take.
        token: of the service; None if it has none.
        host: address to listen on for workers; other than loopback demands a token.
        port: to listen on; 0 takes a free one.
        advertise: host name under which workers reach it; None: ``host``, or this machine's name if that is a wildcard.
        name: unique in the service; None draws one.
        tls: this host's certificates; None: none.
        insecure: that it can be heard on other networks than loopback is no mistake.
        zone: that it is in: the workers there ask it, and those of zones without cache servers; empty: in none.

    Raises:
        CacheError: the folder can't be used.
    """

    def __init__(
        self,
        dispatcher: str,
        folder: str,
        most_bytes: int,
        *,
        token: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        name: str | None = None,
        tls: TlsFiles | None = None,
        insecure: bool = False,
        zone: str = "",
    ) -> None:
        self._zone = zone
        self.id = name or uuid.uuid4().hex
        self._host, self._port, self._token, self._insecure = host, port, token, insecure
        self._advertised = advertise or (platform.node() if host in WILDCARDS else host)
        self._tls = beyond_loopback(tls, self._advertised)
        self._most_bytes = most_bytes
        self._store = ItemStore(folder, most_bytes, time.monotonic)
        self._channel = ControlChannel(dispatcher, token, _CONNECT_S, tls)
        self._server: ItemServer | None = None
        self._session: ClientSession | None = None
        self._secret = b""
        self._heartbeat_s = 5.0
        self._over = threading.Event()
        self._error: MillraceError | None = None

    def run(self, listening: Callable[[], object] | None = None) -> None:
        """Serve until told to stop, by :meth:`stop`.

        Args:
            listening: called once workers can reach it.

        Raises:
            AuthenticationError, AccessDeniedError, VersionMismatchError: the dispatcher will never take it.
            AddressInUseError: the port to listen on is taken.
        """
        try:
            self._server = ItemServer(
                self._host,
                self._store,
                port=self._port,
                token=self._token,
                key_of=self._key_of,
                tls=self._tls,
                insecure=self._insecure,
            )
            self._serve(listening)
        finally:
            if self._server is not None:
                self._server.close()
            self._store.close()
        if self._error is not None:
            raise self._error

    def _serve(self, listening: Callable[[], object] | None) -> None:
        threads = [
            threading.Thread(target=self._converse, name="millrace-session", daemon=True),
            threading.Thread(target=self._beat, name="millrace-heartbeat", daemon=True),
        ]
        try:
            for thread in threads:
                thread.start()
            if listening is not None:
                listening()
            self._over.wait()
        finally:
            self._over.set()
            self._channel.close()
            for thread in threads:
                thread.join(_CONNECT_S)

    def stop(self, reason: str) -> None:
        """Have :meth:`run` return. May be called from a signal handler, any number of times."""
        _logger.info("ending: %s", reason)
        # A signal may come while this very thread holds the event's lock; another thread can wait for it.
        threading.Thread(target=self._over.set, name="millrace-leave", daemon=True).start()

    def _key_of(self, claims: bytes) -> bytes:
        if not self._secret:
            raise ServiceError("this cache server does not belong to a service yet")
        return source_key(self._secret, claims)

    def _converse(self) -> None:
        pauses, told = delays(), False
        assert self._server is not None
        address = format_address(self._advertised, parse_address(self._server.address)[1])
        hello = CacheServerHello(self.id, address, platform.node(), os.getpid(), self._most_bytes, self._zone)
        while not self._over.is_set():
            answered = False
            try:
                self._channel.connect()
                answered, told = True, False
                session = self._channel.open_session(ToCacheServer)
                session.send(hello)
                self._session = session
                for message in session:
                    pauses = delays()
                    match message:
                        case CacheServerWelcome():
                            self._heartbeat_s, self._secret = message.heartbeat_s, message.key
                        case KeepChunks(sets=sets):
                            self._store.keep_labels(dict(sets))
                _logger.info("the dispatcher ended the session")
            except _FATAL as error:
                self._error = error
                self._over.set()
            except MillraceError as error:
                _logger.log(logging.INFO if answered or told else logging.WARNING, "%s. Tries on", error)
                told = not answered
            finally:
                self._session = None
            self._over.wait(next(pauses))

    def _beat(self) -> None:
        while not self._over.wait(self._heartbeat_s):
            session = self._session
            if session is None or self._server is None:
                continue
            try:
                session.send(CacheServerReport(self._server.counts))
            except MillraceError as error:
                _logger.info("could not report: %s", error)
