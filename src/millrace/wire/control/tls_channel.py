"""TLS of the control protocol: credentials for gRPC, and why a channel does not come about."""

from __future__ import annotations

import socket
import ssl

import grpc

from millrace.wire.address import parse_address
from millrace.wire.tls_files import Certificates, TlsFiles
from millrace.wire.tls_names import describe, is_named, misnamed

_ALPN = ["h2"]
_CONNECT_S = 1.0
_HANDSHAKE_S = 5.0
"""Seconds for each step with somebody who has been connected to: a busy host may take some."""


def channel_credentials(held: Certificates) -> grpc.ChannelCredentials:
    """Make the credentials of who connects."""
    if held.identified:
        return grpc.ssl_channel_credentials(held.authority, held.key, held.chain)
    return grpc.ssl_channel_credentials(held.authority)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Make the credentials of who listens: each handshake has what is in the files then."""
    used = [files.certificates()]

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        held = files.certificates()
        if held == used[0]:
            return None
        used[0] = held
        return _configuration(held)

    return grpc.dynamic_ssl_server_credentials(_configuration(used[0]), fetch, files.demands)


def _configuration(held: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(held.key, held.chain)], held.authority)


def why_refused(address: str, files: TlsFiles) -> str:
    """Shake hands once, and say why that does not do; empty if it does, or if nobody listens there.

    gRPC tries again without end, and says what is wrong in OpenSSL's words.
    """
    host, port = parse_address(address)
    context = files.client_context()
    context.set_alpn_protocols(_ALPN)
    try:
        plain = socket.create_connection((host, port), _CONNECT_S)
    except OSError:
        return ""
    with plain:
        try:
            plain.settimeout(_HANDSHAKE_S)
            with context.wrap_socket(plain, server_hostname=host) as sock:
                certificate = sock.getpeercert() or {}
                if not is_named(certificate, host):
                    return misnamed(certificate, address, host)
                if not sock.recv(1):  # gRPC's first word, if it is content with this end
                    return _turned_away(address, files)
        except TimeoutError:
            return ""
        except (OSError, ssl.SSLError) as error:
            return describe(error, address, files.folder)
    return ""


def _turned_away(address: str, files: TlsFiles) -> str:
    if not files.certificates().identified:
        return (
            f"{address} hung up, as it demands a certificate (--mtls) and {files.folder} has none: put tls.crt and"
            " tls.key there, of the same authority (`millrace tls init`)"
        )
    return (
        f"{address} hung up on who has the certificate in {files.folder}: it has expired, or is not of the authority"
        " that is trusted there (`millrace tls init` renews it)"
    )


def speaks_tls(address: str) -> bool:
    """Whether who listens there speaks TLS, with whomever."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(_ALPN)
    try:
        with socket.create_connection(parse_address(address), _CONNECT_S) as plain:
            plain.settimeout(_HANDSHAKE_S)
            with context.wrap_socket(plain):
                return True
    except OSError:
        return False
