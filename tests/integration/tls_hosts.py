"""Folders of certificates, as they lie on hosts that trust one another, and on others."""

import datetime as dt
import shutil
from pathlib import Path

from millrace.wire.tls_authority import TlsAuthority
from millrace.wire.tls_files import TlsFiles


class TlsHosts:
    """An authority and its hosts, another authority with a host, and a host whose certificate is of the past."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = TlsAuthority(str(folder / "authority"))
        self.good = self.issue("good,millrace-worker")
        self.other = self.issue("other")
        self.stranger = Path(TlsAuthority(str(folder / "elsewhere")).issue("good,millrace-worker")[0])
        then = TlsAuthority(str(folder / "authority"), lambda: dt.datetime.now(dt.UTC) - dt.timedelta(days=400))
        self.expired = Path(then.issue("expired,millrace-worker")[0])
        self.anonymous = folder / "anonymous"
        self.anonymous.mkdir()
        shutil.copy(folder / "authority" / "ca.crt", self.anonymous)

    def issue(self, host: str) -> Path:
        return Path(self.authority.issue(host)[0])

    def copy(self, of: Path, name: str) -> Path:
        """A folder of one's own with the same files."""
        return Path(shutil.copytree(of, self.folder / name))

    def known_by(self, of: Path, name: str) -> Path:
        """A folder with the certificate of another authority's host, which trusts this authority."""
        copied = self.copy(of, name)
        shutil.copy(self.anonymous / "ca.crt", copied)
        return copied


def files(folder: Path, *, demands: bool = False) -> TlsFiles:
    return TlsFiles(str(folder), demands=demands)


def exchange(folder: Path, for_those_of: Path) -> None:
    """Put other files into a folder, one after the other."""
    for name in ("ca.crt", "tls.key", "tls.crt"):
        shutil.copy(for_those_of / name, folder / f"{name}.new")
        (folder / f"{name}.new").replace(folder / name)
