import pytest

from millrace.errors import AuthenticationError, VersionMismatchError
from millrace.protocol.messages import PROTOCOL
from millrace.wire.auth import OWN, Identity, check_exposure, check_protocol


def test_a_token_is_demanded_off_loopback():
    check_exposure("127.0.0.1", 5050, None)
    check_exposure("0.0.0.0", 5050, "secret")
    check_exposure("0.0.0.0", 5050, None, "tokens.toml")
    with pytest.raises(AuthenticationError, match=r"listen on 0.0.0.0:5050 without a token: .* Set MILLRACE_TOKEN or"):
        check_exposure("0.0.0.0", 5050, None)


@pytest.mark.parametrize("token", ["", "two words", "new\nline", "schlüssel", "x" * 4097])
def test_tokens_that_cannot_travel(token):
    with pytest.raises(AuthenticationError, match="a token is 1 to 4096 printable ASCII characters"):
        check_exposure("127.0.0.1", 5050, token)


def test_protocols_have_to_be_equal():
    check_protocol(OWN)
    with pytest.raises(
        VersionMismatchError, match=rf"protocol {PROTOCOL} .* this process protocol 99 \(millrace 9.9\): install the"
    ):
        check_protocol(Identity(protocol=99, version="9.9"))
