"""Work_dir: the folder of all that outlives a dispatcher, which no second one may use."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets

from millrace.dispatcher.shortage import unusable
from millrace.errors import ServiceError
from millrace.private_folder import make_private, private

SECRET_BYTES = 32


class WorkDir:
    """Folder of this user alone, locked until :meth:`close` or the end of the process; made if it isn't there.

    Args:
        path: of the folder. One that was there and holds other files keeps its mode.

    Attributes:
        path: absolute.
        journal: path of the journal in it.
        blobs: path of the folder of blobs in it.

    Raises:
        ShortageError: if there is no room for it now.
        ServiceError: if another process has it, or it can't be made or written.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.journal = os.path.join(self.path, "journal.db")
        self.blobs = os.path.join(self.path, "blobs")
        self._secret = os.path.join(self.path, "secret")
        try:
            make_private(self.path, lambda name: name == "blobs" or self._is_file_of_ours(name))
            make_private(self.blobs)
            self._lock = os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise unusable(f"work_dir {self.path} cannot be used", error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise ServiceError(
                f"work_dir {self.path} is in use by another dispatcher, process {holder}; "
                "end that one first, or give this one a folder of its own"
            ) from error
        try:
            self._hide()
        except OSError as error:
            os.close(self._lock)
            raise unusable(f"work_dir {self.path} cannot be used", error) from error
        with contextlib.suppress(OSError):  # a full disk: only the message above would be poorer
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)

    def _hide(self) -> None:
        """Make this user's alone what an earlier version left for all to read; the folder may hold other files."""
        for name in os.listdir(self.path):
            path = os.path.join(self.path, name)
            if (
                self._is_file_of_ours(name)
                and os.path.isfile(path)
                and not os.path.islink(path)
                and os.stat(path).st_uid == os.geteuid()
            ):
                os.chmod(path, 0o600)

    def _is_file_of_ours(self, name: str) -> bool:
        return name in {"lock", "secret"} or name.startswith((os.path.basename(self.journal), "secret."))

    def secret(self) -> bytes:
        """Read the secret of the service, from which keys of its jobs follow; draw it if there is none.

        Raises:
            ShortageError: if there is no room for it now.
            ServiceError: if it can't be read or written, or is damaged.
        """
        try:
            with contextlib.suppress(FileNotFoundError), open(self._secret, "rb", opener=private) as file:
                found = file.read()
                if len(found) == SECRET_BYTES:
                    return found
                raise ServiceError(f"{self._secret} is damaged; remove it: jobs that are read now then begin anew")
            drawn = secrets.token_bytes(SECRET_BYTES)
            draft = f"{self._secret}.draft"
            with open(draft, "wb", opener=private) as file:
                file.write(drawn)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._secret)
            sync_folder(self.path)
        except OSError as error:
            raise unusable(f"work_dir {self.path} cannot be used", error) from error
        return drawn

    def close(self) -> None:
        """Let another dispatcher have it."""
        os.close(self._lock)


def sync_folder(path: str) -> None:
    """Make names in a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
