"""TLS contexts: what either end of a connection demands of the other one. Of the standard library alone."""

from __future__ import annotations

import ssl


def client_context(authority: bytes) -> ssl.SSLContext:
    """Make a connecting end's context, which trusts an authority; whose the certificate is, is checked by who connects.

    Raises:
        ssl.SSLError, ValueError: it is no certificate.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, authority)
    context.check_hostname = False
    return context


def server_context(authority: bytes, *, demands: bool) -> ssl.SSLContext:
    """Make a listening end's context, which shows its certificate once it is loaded, and may demand one.

    Raises:
        ssl.SSLError, ValueError: the authority's is no certificate.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, authority)
    context.verify_mode = ssl.CERT_REQUIRED if demands else ssl.CERT_NONE
    context.num_tickets = 0  # nobody resumes
    return context


def _context(protocol: int, authority: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # no renegotiation, and every millrace has it
    context.load_verify_locations(cadata=authority.decode("ascii", "replace"))
    return context
