import ssl

import pytest

from millrace.wire.tls_authority import TlsAuthority
from millrace.wire.tls_files import TlsFiles
from millrace.wire.tls_names import describe, is_named, misnamed

HELD = {
    "subjectAltName": (("DNS", "Node7.example"), ("IP Address", "10.0.0.7"), ("IP Address", "FD00:0:0:0:0:0:0:2\n"))
}


@pytest.mark.parametrize("name", ["node7.EXAMPLE", "node7.example.", "10.0.0.7", "fd00::2"])
def test_a_certificate_is_for_its_names(name):
    assert is_named(HELD, name)
    assert is_named(HELD, "elsewhere", name)


@pytest.mark.parametrize("name", ["node7", "example", "10.0.0.70", "fd00::3", "*.example", ""])
def test_and_for_no_others(name):
    assert not is_named(HELD, name)


def test_nobody_is_named_in_a_certificate_without_names():
    assert not is_named({}, "node7.example")
    assert not is_named({"subject": ((("commonName", "node7.example"),),)}, "node7.example")


def test_an_address_is_no_name_and_a_name_no_address():
    assert not is_named({"subjectAltName": (("DNS", "10.0.0.7"),)}, "10.0.0.7")


def test_who_is_misnamed_hears_by_which_names_it_would_do():
    said = misnamed(HELD, "10.0.0.8:5050", "10.0.0.8")
    assert "is for Node7.example, 10.0.0.7" in said
    assert "millrace tls init DIR 10.0.0.8" in said


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> BaseException | None:
    """What a client sees of a handshake in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up)
    far = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for end in (near, far):
            try:
                end.do_handshake()
                if end is near:
                    near.read(1)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                if end is near:
                    return error
    return None


@pytest.fixture
def hosts(tmp_path):
    def files(authority: str, host: str, *, demands: bool = False) -> TlsFiles:
        return TlsFiles(TlsAuthority(str(tmp_path / authority)).issue(host)[0], demands=demands)

    return files


def test_hosts_of_one_authority_understand_each_other(hosts):
    listening = hosts("a", "one", demands=True)
    assert shake_hands(hosts("a", "two").client_context(), listening.server_context()) is None


def test_a_stranger_is_told_of(hosts):
    files = hosts("b", "two")
    error = shake_hands(files.client_context(), hosts("a", "one").server_context())
    said = describe(error or EOFError(), "host:1", files.folder)
    assert "the certificate of host:1 is not of the authority in" in said
    assert f"{files.folder}/ca.crt" in said


def test_who_is_refused_hears_that_it_is_of_another_authority(hosts, tmp_path):
    files = hosts("b", "two", demands=True)
    (tmp_path / "b" / "two" / "ca.crt").write_bytes(
        (tmp_path / "a" / "ca.crt").read_bytes() if hosts("a", "x") else b""
    )
    error = shake_hands(files.client_context(), hosts("a", "one", demands=True).server_context())
    assert "refused the certificate in" in describe(error or EOFError(), "host:1", files.folder)


def test_who_has_no_certificate_hears_that_one_is_demanded(hosts, tmp_path):
    listening = hosts("a", "one", demands=True)
    folder = tmp_path / "anonymous"
    folder.mkdir()
    (folder / "ca.crt").write_bytes((tmp_path / "a" / "ca.crt").read_bytes())
    error = shake_hands(TlsFiles(str(folder)).client_context(), listening.server_context())
    assert f"host:1 demands a certificate, and {folder} has none" in describe(
        error or EOFError(), "host:1", str(folder)
    )


@pytest.mark.parametrize("error", [ConnectionResetError(), EOFError(), ssl.SSLEOFError(8, "EOF")])
def test_who_hangs_up_in_the_middle_does_not_speak_tls(error):
    assert "host:1 does not speak TLS" in describe(error or EOFError(), "host:1", "/tls")


def test_what_is_not_foreseen_is_said_as_openssl_says_it():
    assert "no shared cipher" in describe(ssl.SSLError(1, "no shared cipher"), "host:1", "/tls")
    assert describe(TimeoutError("timed out"), "host:1", "/tls") == "host:1 did not answer in time"
