import pytest

from millrace.errors import ServiceError
from millrace.wire.address import dialled, format_address, is_loopback, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("grpc://host:5050", ("host", 5050)),
        ("host:5050", ("host", 5050)),
        (":5050", ("127.0.0.1", 5050)),
        ("grpc://:0", ("127.0.0.1", 0)),
        ("10.1.2.3:80/", ("10.1.2.3", 80)),
        ("[::1]:5050", ("::1", 5050)),
        ("grpc://[2001:DB8:0::1]:5050", ("2001:db8::1", 5050)),
        (" my-host.example.com:65535\n", ("my-host.example.com", 65535)),
    ],
)
def test_what_is_an_address(text, expected):
    assert parse_address(text) == expected
    assert parse_address(format_address(*expected)) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the port is missing"),
        ("host", "the port is missing"),
        ("host:", "the port is missing"),
        ("[::1]", "the port is missing"),
        ("host:http", "the port is not a number"),
        ("host:-1", "the port is not a number"),
        ("host:65536", "ports end at 65535"),
        ("http://host:80", "the scheme is grpc://, not http://"),
        ("::1:5050", "an IPv6 host stands in brackets"),
        ("[nonsense]:5050", "'nonsense' is not IPv6"),
        ("user@host:5050", "the host is malformed"),
        ("ho st:5050", "the host is malformed"),
        ("host/path:5050", "the host is malformed"),
    ],
)
def test_what_is_none(text, complaint):
    with pytest.raises(ServiceError) as caught:
        parse_address(text)
    message = str(caught.value)
    assert message.startswith(f"{text!r} is not an address: {complaint}")
    assert message.endswith("an address is HOST:PORT or grpc://HOST:PORT, e.g. grpc://dispatcher:5050 or [::1]:5050")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("0.0.0.0:5050", "127.0.0.1:5050"),
        ("[::]:5050", "[::1]:5050"),
        (":5050", "127.0.0.1:5050"),
        ("grpc://dispatcher:5050", "dispatcher:5050"),
        ("[2001:db8::7]:1", "[2001:db8::7]:1"),
    ],
)
def test_who_listens_everywhere_is_reached_on_this_host(address, expected):
    assert dialled(address) == expected


def test_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "dispatcher", "localhost.example.com"]))
