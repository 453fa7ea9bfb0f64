"""TLS of the control port: who is believed, and what who isn't is told."""

import socket

import pytest
from tests.integration.tls_hosts import TlsHosts, exchange, files
from tests.integration.wire.wire_messages import Ping

from millrace.errors import AuthenticationError, ServiceError, ServiceUnreachableError
from millrace.wire.control.control_client import ControlChannel

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory) -> TlsHosts:
    return TlsHosts(tmp_path_factory.mktemp("tls"))


def channel(dispatcher, folder, *, token=TOKEN, timeout=30.0):
    return ControlChannel(dispatcher.address, token, timeout, None if folder is None else files(folder))


def reads(dispatcher, folder) -> bool:
    """Whether messages come back."""
    with channel(dispatcher, folder) as made:
        made.connect()
        session = made.open_session(Ping)
        session.send(Ping(7))
        return bool(next(session) == Ping(7))


@pytest.mark.parametrize("who", ["other", "anonymous"])
def test_who_trusts_the_authority_talks_to_its_hosts(hosts, serving, who):
    with serving(token=TOKEN, tls=files(hosts.good)) as dispatcher:
        assert reads(dispatcher, getattr(hosts, who))


def test_what_is_said_cannot_be_heard(hosts, serving):
    heard = []
    with serving(token=TOKEN, tls=files(hosts.good)) as dispatcher, socket.create_server(("127.0.0.1", 0)) as between:
        made = ControlChannel(f"localhost:{between.getsockname()[1]}", TOKEN, 0.5, files(hosts.other))
        with made, pytest.raises(ServiceUnreachableError):
            made.connect()
        while True:  # all that came before anybody answered
            between.settimeout(0.2)
            try:
                sock, _ = between.accept()
            except TimeoutError:
                break
            with sock:
                sock.settimeout(0.2)
                heard.append(sock.recv(1 << 16))
        assert dispatcher.address
    assert heard
    assert all(first[:1] == b"\x16" for first in heard if first)  # a TLS handshake, and nothing else
    assert not any(b"hello" in first.lower() or TOKEN.encode() in first for first in heard)


@pytest.mark.parametrize(
    ("listening", "asking", "said"),
    [
        ("stranger", "other", r"is not of the authority in .*/ca\.crt: somebody else listens there"),
        ("expired", "other", r"has expired: `millrace tls init` renews it"),
    ],
)
def test_who_is_not_believed_is_told_nothing(hosts, serving, listening, asking, said):
    with (
        serving(token=TOKEN, tls=files(getattr(hosts, listening))) as dispatcher,
        channel(dispatcher, getattr(hosts, asking)) as made,
        pytest.raises(ServiceUnreachableError, match=said),
    ):
        made.connect()


def test_a_certificate_of_another_host_is_not_believed(hosts, serving):
    with serving("127.0.0.2:0", token=TOKEN, tls=files(hosts.good)) as dispatcher:
        with (
            channel(dispatcher, hosts.other) as made,
            pytest.raises(ServiceUnreachableError, match=r"is for good, .*127\.0\.0\.1.*, and not for 127\.0\.0\.2"),
        ):
            made.connect()
        assert made.address == "127.0.0.2:" + dispatcher.address.partition(":")[2]
        second = files(hosts.issue("127.0.0.2"))
    with serving("127.0.0.2:0", token=TOKEN, tls=second) as dispatcher:
        assert reads(dispatcher, hosts.other)


def test_who_demands_certificates_gets_them(hosts, serving):
    with serving(token=TOKEN, tls=files(hosts.good, demands=True)) as dispatcher:
        assert reads(dispatcher, hosts.other)
        for folder, said in (
            (hosts.anonymous, r"demands a certificate \(--mtls\) and .*/anonymous has none"),
            (hosts.known_by(hosts.stranger, "unknown"), r"hung up on who has the certificate in .*/unknown"),
            (hosts.expired, r"hung up on who has the certificate in .*/expired: it has expired, or is not of the"),
        ):
            with channel(dispatcher, folder) as made, pytest.raises(ServiceUnreachableError, match=said):
                made.connect()


def test_a_token_is_demanded_all_the_same(hosts, serving):
    with (
        serving(token=TOKEN, tls=files(hosts.good, demands=True)) as dispatcher,
        channel(dispatcher, hosts.other, token="another") as made,
        pytest.raises((AuthenticationError, ServiceUnreachableError), match="token"),
    ):
        made.connect()


def test_who_speaks_tls_to_a_service_without_hears_so(hosts, serving):
    with (
        serving(token=TOKEN) as dispatcher,
        channel(dispatcher, hosts.other) as made,
        pytest.raises(ServiceUnreachableError, match=r"does not speak TLS: .* --tls \(or MILLRACE_TLS\), or this end"),
    ):
        made.connect()


def test_who_does_not_speak_tls_to_a_service_that_does_hears_so(hosts, serving):
    with (
        serving(token=TOKEN, tls=files(hosts.good)) as dispatcher,
        channel(dispatcher, None, timeout=1.0) as made,
        pytest.raises(ServiceUnreachableError, match="it speaks TLS, and this end does not: set MILLRACE_TLS"),
    ):
        made.connect()


def test_who_listens_needs_a_certificate(hosts, serving):
    with pytest.raises(ServiceError, match="who listens needs a certificate"):
        serving(token=TOKEN, tls=files(hosts.anonymous))


def test_certificates_change_at_both_ends_while_they_are_used(hosts, serving):
    there, here = hosts.copy(hosts.good, "rotating"), hosts.copy(hosts.other, "asking")
    with serving(token=TOKEN, tls=files(there, demands=True)) as dispatcher, channel(dispatcher, here) as made:
        made.connect()
        session = made.open_session(Ping)
        session.send(Ping(1))
        assert next(session) == Ping(1)
        exchange(there, hosts.stranger)  # all of another authority now
        session.send(Ping(2))
        assert next(session) == Ping(2)  # what is there goes on
        with channel(dispatcher, hosts.other) as late, pytest.raises(ServiceUnreachableError, match="is not of the"):
            late.connect()
        exchange(here, hosts.stranger)
        made.connect()
        again = made.open_session(Ping)
        again.send(Ping(3))
        assert next(again) == Ping(3)
        session.send(Ping(4))
        assert next(session) == Ping(4)
