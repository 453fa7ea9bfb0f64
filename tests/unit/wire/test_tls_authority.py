import datetime as dt
import os
import stat
import sys
from pathlib import Path

import pytest
from cryptography import x509

from millrace.cli import main
from millrace.errors import ServiceError
from millrace.wire.tls_authority import TlsAuthority

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def at(folder: Path, days: float = 0) -> TlsAuthority:
    return TlsAuthority(str(folder), lambda: NOW + dt.timedelta(days=days))


def names_of(folder: str) -> list[str]:
    held = x509.load_pem_x509_certificate(Path(folder, "tls.crt").read_bytes())
    return [str(each.value) for each in held.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]


def test_nobody_else_can_read_what_is_made(tmp_path):
    folder = at(tmp_path / "new").issue("host")[0]
    there = list((tmp_path / "new").rglob("*"))
    assert {path.name for path in there} == {"ca.crt", "ca.key", "host", "tls.crt", "tls.key"}
    assert [path for path in [tmp_path / "new", *there] if stat.S_IMODE(os.stat(path).st_mode) & 0o077] == []
    assert Path(folder, "ca.crt").read_bytes() == (tmp_path / "new" / "ca.crt").read_bytes()


def test_a_host_has_its_names_and_those_by_which_it_calls_itself(tmp_path):
    folder = at(tmp_path).issue("10.0.0.7,node7")[0]
    assert os.path.basename(folder) == "10.0.0.7"
    assert names_of(folder) == ["10.0.0.7", "node7", "localhost", "127.0.0.1", "::1"]
    assert os.path.basename(at(tmp_path).issue("fd00::2")[0]) == "fd00__2"


def test_again_nothing_changes(tmp_path):
    first = at(tmp_path)
    folder, until, new = first.issue("host,alias")
    content = Path(folder, "tls.crt").read_bytes()
    again = at(tmp_path, days=1)
    assert (first.made, again.made, new) == (True, False, True)
    assert again.hosts == ["host"]
    assert again.issue("host") == (folder, until, False)
    assert Path(folder, "tls.crt").read_bytes() == content


def test_a_certificate_is_renewed_when_a_third_of_its_time_is_left(tmp_path):
    folder, until, _ = at(tmp_path).issue("host,alias", days=90)
    assert at(tmp_path, days=59).issue("host", days=90) == (folder, until, False)
    folder, later, new = at(tmp_path, days=61).issue("host", days=90)
    assert new
    assert later - until == dt.timedelta(days=61)
    assert names_of(folder)[:2] == ["host", "alias"]


def test_other_names_make_another_certificate(tmp_path):
    at(tmp_path).issue("host,alias")
    folder, _, new = at(tmp_path).issue("host,other")
    assert new
    assert "alias" not in names_of(folder)


@pytest.mark.parametrize("host", ["", "a b", "../up", ".", "host,", "höst", "*"])
def test_what_is_no_host_is_refused(tmp_path, host):
    with pytest.raises(ServiceError, match="no name or address of a host"):
        at(tmp_path).issue(host)


def test_half_an_authority_is_refused(tmp_path):
    at(tmp_path)
    (tmp_path / "ca.key").write_text("hello")
    with pytest.raises(ServiceError, match=r"ca.key is no key that `millrace tls init` has made"):
        at(tmp_path)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ServiceError, match=r"has an authority's certificate and not its key ca.key"):
        at(tmp_path)


def test_without_cryptography_it_is_said_what_to_install(tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert main(["tls", "init", str(tmp_path), "host"]) == 1
    assert "pip install 'millrace[tls]'" in capsys.readouterr().err


def test_the_command_makes_hosts_and_renews_those_that_are_there(tmp_path, capsys):
    assert main(["tls", "init", str(tmp_path / "tls"), "one", "two,alias", "--days", "30"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "a new authority" in said[0]
    assert ["new, valid until" in line for line in said[1:]] == [True, True]
    assert main(["tls", "init", str(tmp_path / "tls")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert ["as it was, valid until" in line for line in said] == [True, True]
