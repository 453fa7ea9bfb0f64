"""Names in certificates, and what the errors of TLS mean. Pure."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from typing import Any

WORKER_NAME = "millrace-worker"
"""Name in a certificate that is good for a worker at any address: those of pods and actors are not known before."""
AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
"""Files of a host's folder, named as in a Kubernetes secret of a certificate."""

NO_TLS_HERE = "and this end does not: set MILLRACE_TLS or pass tls=..., a folder with the certificate of its authority"
"""What who has no TLS is told."""

_EXPIRED, _NOT_YET = 10, 9
_STRANGERS = {2, 7, 18, 19, 20, 21, 24}
"""OpenSSL's numbers for a chain that does not end at an authority that is trusted."""


def is_named(certificate: Mapping[str, Any], *names: str) -> bool:
    """Whether a certificate, as :meth:`ssl.SSLSocket.getpeercert` gives it, has one of these names or addresses."""
    held = certificate.get("subjectAltName", ())
    hosts = {value.lower().rstrip(".") for kind, value in held if kind == "DNS"}
    addresses = {_address(value) for kind, value in held if kind == "IP Address"} - {None}
    return any(
        name.lower().rstrip(".") in hosts if _address(name) is None else _address(name) in addresses for name in names
    )


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip())
    except ValueError:
        return None


def names_in(certificate: Mapping[str, Any]) -> str:
    """Names and addresses in a certificate, for a message."""
    return ", ".join(value.strip() for _, value in certificate.get("subjectAltName", ())) or "nobody"


def describe(error: BaseException, peer: str, folder: str, *, listening: bool = False) -> str:
    """Say why TLS with ``peer`` came to nothing, and what to do.

    Args:
        error: of the handshake, or of what was read first.
        peer: the other end's ``host:port``.
        folder: this end's certificates.
        listening: it is the peer that has connected.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unverified(error, peer, folder)
    reason = str(getattr(error, "reason", None) or "")
    if "CERTIFICATE_REQUIRED" in reason:
        return (
            f"{peer} demands a certificate, and {folder} has none: put {CERTIFICATE} and {KEY} there, of the same"
            " authority (`millrace tls init`)"
        )
    if "CERTIFICATE_EXPIRED" in reason:
        return f"{peer} refused the certificate in {folder}, as it has expired: {_RENEW}"
    if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason:
        return (
            f"{peer} refused the certificate in {folder}: it is not of the authority that is trusted there, so the two"
            f" hosts have folders of different ones"
        )
    if "DID_NOT_RETURN_A_CERTIFICATE" in reason:
        return f"{peer} showed no certificate, and one is demanded here (--mtls)"
    if isinstance(error, TimeoutError):
        return f"{peer} did not answer in time"
    if isinstance(error, ConnectionError | EOFError | ssl.SSLEOFError | ssl.SSLZeroReturnError) or reason in _NO_TLS:
        if listening:
            return f"{peer} hung up in the middle of the TLS handshake, or does not speak TLS"
        return (
            f"{peer} does not speak TLS: what listens there has to be started with --tls (or MILLRACE_TLS), or this"
            " end without"
        )
    return f"TLS with {peer} failed: {error}"


_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL"}
_RENEW = "`millrace tls init` renews it, where the authority is; the new files count without a restart"


def _unverified(error: ssl.SSLCertVerificationError, peer: str, folder: str) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return f"the certificate of {peer} has expired: {_RENEW}"
    if code == _NOT_YET:
        return f"the certificate of {peer} is not valid yet: look at the clocks of both hosts"
    if code in _STRANGERS:
        return (
            f"the certificate of {peer} is not of the authority in {folder}/{AUTHORITY}: somebody else listens there,"
            " or the two hosts have folders of different authorities"
        )
    return f"the certificate of {peer} was refused: {error.verify_message}"


def misnamed(certificate: Mapping[str, Any], peer: str, host: str) -> str:
    """Say that a certificate is another host's."""
    return (
        f"the certificate of {peer} is for {names_in(certificate)}, and not for {host}: use one of these names, or make"
        f" one for it (`millrace tls init DIR {host}`)"
    )
