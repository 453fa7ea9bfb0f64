import pytest

from millrace.errors import AuthenticationError, ServiceError, VersionMismatchError
from millrace.protocol.messages import PROTOCOL
from millrace.wire.auth import OWN, Identity, check_exposure, check_protocol


def test_a_token_is_demanded_off_loopback():
    check_exposure("127.0.0.1", 5050, None, private=False)
    check_exposure("0.0.0.0", 5050, "secret", private=True)
    check_exposure("0.0.0.0", 5050, None, "tokens.toml", private=True)
    with pytest.raises(AuthenticationError, match=r"listen on 0.0.0.0:5050 without a token: .* Set MILLRACE_TOKEN or"):
        check_exposure("0.0.0.0", 5050, None, private=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "node7"])
def test_tls_is_demanded_off_loopback(host):
    with pytest.raises(ServiceError, match=r"without TLS: .*millrace tls init.*--insecure, insecure=True"):
        check_exposure(host, 5050, "secret", private=False)
    for here in ("127.0.0.1", "127.64.0.1", "::1", "localhost"):
        check_exposure(here, 5050, None, private=False)


@pytest.mark.parametrize("token", ["", "two words", "new\nline", "schlüssel", "x" * 4097])
def test_tokens_that_cannot_travel(token):
    with pytest.raises(AuthenticationError, match="a token is 1 to 4096 printable ASCII characters"):
        check_exposure("127.0.0.1", 5050, token, private=False)


def test_protocols_have_to_be_equal():
    check_protocol(OWN)
    with pytest.raises(
        VersionMismatchError, match=rf"protocol {PROTOCOL} .* this process protocol 99 \(millrace 9.9\): install the"
    ):
        check_protocol(Identity(protocol=99, version="9.9"))
