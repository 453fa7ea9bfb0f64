"""Registry of tokens: who may do what, from a TOML file that is read again when it changes.

    [[token]]
    name = "anna"
    tenant = "vision"
    hash = "scram-sha-256:..."
    join = "tenant"

Whatever else an entry has is a field of :class:`~millrace.protocol.caller.Rights`.
"""

from __future__ import annotations

import logging
import os
import stat
import tomllib
from typing import NamedTuple

import msgspec

from millrace.errors import AuthenticationError, MillraceError, ServiceError, ServiceUnreachableError
from millrace.private_folder import ROOT
from millrace.protocol.caller import ADMINISTRATOR, Caller, Rights
from millrace.wire.token_keys import TokenKeys, keys_of, parse_keys

MOST_BYTES = 16 << 20
RESERVED = (ADMINISTRATOR.name, "worker")
"""Names of callers that have no entry."""
WORKER = Caller("worker", rights=Rights(run=False, join="none", control="none", status="none", work=True))
"""Worker that the dispatcher has started."""

_Stamp = tuple[int, int, int]
_logger = logging.getLogger(__name__)


class TokenEntry(NamedTuple):
    """Entry of a token: its keys, and whoever has it."""

    keys: TokenKeys
    caller: Caller


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    hash: str
    tenant: str = "default"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    token: list[dict[str, object]] = []


def parse_tokens(text: str) -> dict[str, TokenEntry]:
    """Parse a file of tokens: its entries, by the names of their keys.

    Raises:
        ServiceError: it has a mistake; the message says in which entry.
    """
    try:
        listed = msgspec.convert(tomllib.loads(text), _File).token
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ServiceError(f"it has to be TOML with entries [[token]]: {error}") from error
    found: dict[str, TokenEntry] = {}
    for number, fields in enumerate(listed, 1):
        try:
            entry = _parse_entry(fields)
        except (msgspec.ValidationError, ValueError) as error:
            name = fields.get("name")
            raise ServiceError(f"entry {number}{f' ({name})' if isinstance(name, str) else ''}: {error}") from error
        if entry.keys.name in found:
            raise ServiceError(f"entry {number} ({entry.caller.name}) has the token of another entry")
        found[entry.keys.name] = entry
    return found


def _parse_entry(fields: dict[str, object]) -> TokenEntry:
    of_rights = {name: value for name, value in fields.items() if name in Rights.__struct_fields__}
    entry = msgspec.convert({name: fields[name] for name in fields if name not in of_rights}, _Entry)
    if not entry.name or not entry.tenant or not (entry.name + entry.tenant).isprintable():
        raise ValueError("name and tenant are words that can be printed")
    if entry.name in RESERVED:
        raise ValueError(f"nobody else is called {' or '.join(RESERVED)}")
    return TokenEntry(parse_keys(entry.hash), Caller(entry.name, entry.tenant, msgspec.convert(of_rights, Rights)))


class TokenRegistry:
    """Tokens that a service knows.

    Args:
        path: of the file of tokens; empty: there is none.
        administrator: token that may do everything; None: there is none.
        worker: token of workers that the dispatcher starts, if they have one of their own.

    Raises:
        ServiceError: the file cannot be read, has a mistake, or may be written by others.
    """

    def __init__(self, path: str = "", administrator: str | None = None, worker: str | None = None) -> None:
        self._path = path
        given = ((administrator, ADMINISTRATOR), (worker, WORKER))
        entries = [TokenEntry(keys_of(token), caller) for token, caller in given if token]
        self._fixed = {entry.keys.name: entry for entry in reversed(entries)}  # of one token, the administrator's
        self._stamp: _Stamp | None = None
        self._entries: dict[str, TokenEntry] = {}
        if path:
            try:
                self._stamp, self._entries = self._read()
            except (OSError, UnicodeDecodeError, ServiceError) as error:
                raise ServiceError(f"the file of tokens {path} cannot be used: {error}") from error

    def find(self, name: str) -> TokenEntry | None:
        """Find the entry of a token, by the name of its keys; None: there is none."""
        self.refresh()
        return self._get(name)

    def ended(self, entry: TokenEntry) -> MillraceError | None:
        """Why a session ends that this entry has let in; None: it goes on."""
        now = self._get(entry.keys.name)
        if now is None:
            return AuthenticationError(f"the token of {entry.caller.name!r} is not valid any more: ask for another one")
        if now.caller != entry.caller:
            return ServiceUnreachableError(f"what {entry.caller.name!r} may do has changed")  # it comes back
        return None

    def refresh(self) -> bool:
        """Read the file again if it has changed; whether there are other entries now."""
        if not self._path:
            return False
        try:
            if _stamp(os.stat(self._path)) == self._stamp:
                return False
            before, (self._stamp, self._entries) = self._entries, self._read()
        except (OSError, UnicodeDecodeError, ServiceError) as error:
            self._complain(error)
            return False
        _logger.info("read %d tokens in %s", len(self._entries), self._path)
        return before != self._entries

    def _complain(self, error: Exception) -> None:
        """Log, once for each state of the file, that the entries of before hold."""
        try:
            stamp = _stamp(os.stat(self._path))
        except OSError:
            stamp = (0, 0, 0)
        if stamp != self._stamp:
            _logger.error("the file of tokens %s is not used: %s. Its former entries hold", self._path, error)
        self._stamp = stamp

    def _get(self, name: str) -> TokenEntry | None:
        return self._fixed.get(name) or self._entries.get(name)

    def _read(self) -> tuple[_Stamp, dict[str, TokenEntry]]:
        with open(self._path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in {os.geteuid(), ROOT} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ServiceError("others may write it, and could make themselves administrators: chmod go-w")
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ServiceError(f"it has more than {MOST_BYTES:,} bytes")
        if not text and self._entries:
            raise ServiceError("it is empty, as while it is being written. To have no tokens, leave a comment in it")
        return _stamp(found), parse_tokens(text.decode())


def _stamp(found: os.stat_result) -> _Stamp:
    return found.st_ino, found.st_mtime_ns, found.st_size
