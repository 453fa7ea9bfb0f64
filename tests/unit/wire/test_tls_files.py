import shutil

import pytest

from millrace.errors import ServiceError
from millrace.wire.tls_authority import TlsAuthority
from millrace.wire.tls_files import TlsFiles, open_tls


@pytest.fixture
def folder(tmp_path):
    authority = TlsAuthority(str(tmp_path / "authority"))
    return shutil.copytree(authority.issue("host")[0], tmp_path / "host")


def test_no_folder_is_no_tls():
    assert open_tls("") is None


def test_a_folder_without_an_authority_is_refused(tmp_path):
    with pytest.raises(ServiceError, match=r"is no folder with certificates: it has no ca.crt.*millrace tls init"):
        TlsFiles(str(tmp_path))


def test_who_listens_needs_a_certificate_and_who_asks_needs_none(folder):
    (folder / "tls.crt").unlink()
    with pytest.raises(ServiceError, match=r"has only one of tls.crt and tls.key"):
        TlsFiles(str(folder))
    (folder / "tls.key").unlink()
    asking = TlsFiles(str(folder))
    assert not asking.certificates().identified
    with pytest.raises(ServiceError, match=r"who listens needs a certificate.*millrace tls init DIR HOST"):
        asking.listening()


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_what_is_no_certificate_is_refused_by_name(folder, name):
    (folder / name).write_text("hello")
    with pytest.raises(ServiceError, match=name):
        TlsFiles(str(folder))


def test_a_key_of_another_certificate_is_refused(folder, tmp_path):
    other = TlsAuthority(str(tmp_path / "authority")).issue("other")[0]
    shutil.copy(f"{other}/tls.key", folder)
    with pytest.raises(ServiceError, match=r"tls.crt and tls.key in .* do not fit"):
        TlsFiles(str(folder))


def test_files_that_change_count_once_all_of_them_fit(folder, tmp_path, caplog):
    files = TlsFiles(str(folder)).listening()
    before, context = files.certificates(), files.server_context()
    assert files.server_context() is context  # nothing is read again without need
    other = TlsAuthority(str(tmp_path / "elsewhere")).issue("other")[0]
    shutil.copy(f"{other}/tls.crt", folder)
    assert files.certificates() == before
    assert "the certificates of before are used on" in caplog.text
    shutil.copy(f"{other}/tls.key", folder)
    shutil.copy(f"{other}/ca.crt", folder)
    assert files.certificates() != before
    assert files.server_context() is not context


@pytest.mark.parametrize("names", [["tls.crt"], ["tls.crt", "tls.key"], ["ca.crt"]])
def test_files_that_vanish_change_nothing(folder, names):
    files = TlsFiles(str(folder)).listening()
    before = files.certificates()
    for name in names:
        (folder / name).unlink()
    assert files.certificates() == before
