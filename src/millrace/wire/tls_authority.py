"""TLS authority: a private one, and certificates of it for hosts, in a folder. Needs ``cryptography``."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import os
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millrace.errors import ServiceError
from millrace.private_folder import private
from millrace.wire.tls_names import AUTHORITY, CERTIFICATE, KEY

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_KEY = "ca.key"
AUTHORITY_DAYS = 3650
HOST_DAYS = 365
ALWAYS = ("localhost", "127.0.0.1", "::1")
"""Names in each certificate: a host is also its own."""
_SLACK = dt.timedelta(hours=1)
"""Certificates are valid since a while ago, for hosts whose clocks are behind."""


class TlsAuthority:
    """Private authority in a folder: ``ca.crt`` and ``ca.key``, and a folder for each host, to be copied there.

    Args:
        folder: its path; made, with an authority, if there is none.
        now: the time; None: asked whenever it matters.

    Raises:
        ServiceError: ``cryptography`` is missing, or the folder holds no authority that can be used.
    """

    def __init__(self, folder: str, now: Callable[[], dt.datetime] | None = None) -> None:
        try:
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.asymmetric import ec
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "cryptography":
                raise
            raise ServiceError("making certificates needs cryptography: pip install 'millrace[tls]'") from None
        self.folder = os.path.abspath(folder)
        self._now = now or (lambda: dt.datetime.now(dt.UTC))
        certificate, key = os.path.join(self.folder, AUTHORITY), os.path.join(self.folder, AUTHORITY_KEY)
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            self.made = not os.path.exists(key)
            if self.made:
                if os.path.exists(certificate):
                    raise ServiceError(f"{self.folder} has an authority's certificate and not its key {AUTHORITY_KEY}")
                self._make(certificate, key)
            with open(key, "rb") as file:
                loaded = serialization.load_pem_private_key(file.read(), None)
            assert isinstance(loaded, ec.EllipticCurvePrivateKey)
            self._key, self._certificate = loaded, _read(certificate)
        except OSError as error:
            raise ServiceError(f"no authority can be kept in {self.folder}: {error}") from error
        except (ValueError, TypeError, AssertionError) as error:
            raise ServiceError(f"{key} is no key that `millrace tls init` has made") from error

    @property
    def hosts(self) -> list[str]:
        """Hosts that have certificates."""
        names = sorted(os.listdir(self.folder))
        return [name for name in names if os.path.exists(os.path.join(self.folder, name, CERTIFICATE))]

    def issue(self, host: str, days: int = HOST_DAYS) -> tuple[str, dt.datetime, bool]:
        """Give a host a certificate, unless it has one for these names that is valid for a third of its time yet.

        Args:
            host: its name or address, further ones behind commas; of a host that is there the names are kept if it is
                said by its first name alone.
            days: that a new certificate is valid, 1 or more.

        Returns:
            The host's folder, until when its certificate is valid, and whether it is new.

        Raises:
            ServiceError: a name is none, or a file cannot be written.
        """
        names = [name.strip() for name in host.split(",")]
        for name in names:
            if not name or len(name) > 253 or name.startswith(".") or not set(name) <= _IN_NAMES:
                raise ServiceError(
                    f"{name!r} is no name or address of a host; say NAME or NAME,OTHER,... such as 10.0.0.7,node7"
                )
        folder = os.path.join(self.folder, names[0].replace(":", "_"))
        path = os.path.join(folder, CERTIFICATE)
        try:
            held = _read(path) if os.path.exists(path) else None
            if held is not None and len(names) == 1:
                names = [name for name in _names(held) if name not in ALWAYS or name == names[0]]
            wanted = list(dict.fromkeys([*names, *ALWAYS]))
            if held is not None and self._holds(held, wanted):
                return folder, held.not_valid_after_utc, False
            os.makedirs(folder, mode=0o700, exist_ok=True)
            made, key = self._sign(wanted, days)
            with open(os.path.join(self.folder, AUTHORITY), "rb") as file:
                _put(os.path.join(folder, AUTHORITY), file.read())
            _put(os.path.join(folder, KEY), _pem_of(key))
            _put(path, _pem(made))
        except OSError as error:
            raise ServiceError(f"the certificate of {names[0]} cannot be written to {folder}: {error}") from error
        return folder, made.not_valid_after_utc, True

    def _holds(self, held: x509.Certificate, wanted: Sequence[str]) -> bool:
        left = held.not_valid_after_utc - self._now()
        lasts = held.not_valid_after_utc - held.not_valid_before_utc
        from cryptography.exceptions import InvalidSignature

        try:
            held.verify_directly_issued_by(self._certificate)
        except (InvalidSignature, TypeError, ValueError):  # of another authority, by its signature, kind of key or name
            return False
        return left > lasts / 3 and {_canonical(name) for name in _names(held)} == {_canonical(name) for name in wanted}

    def _make(self, certificate: str, key: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        drawn = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"millrace authority {uuid.uuid4().hex[:8]}")
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            self._builder(name, name, drawn, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        _put(certificate, _pem(_signed(builder, drawn)))
        _put(key, _pem_of(drawn))

    def _sign(self, names: Sequence[str], days: int) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        drawn = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            self._builder(_name(names[0][:64]), self._certificate.subject, drawn, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .add_extension(issuer, critical=False)
        )
        return _signed(builder, self._key), drawn

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int
    ) -> x509.CertificateBuilder:
        from cryptography import x509

        now = self._now()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SLACK)
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )


_IN_NAMES = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:-_")


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _name(common: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate) -> list[str]:
    from cryptography import x509

    try:
        held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(each.value) for each in held]


def _canonical(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.lower()


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_of(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _read(path: str) -> x509.Certificate:
    from cryptography import x509

    with open(path, "rb") as file:
        try:
            return x509.load_pem_x509_certificate(file.read())
        except ValueError as error:
            raise OSError(f"{path} is no certificate") from error


def _put(path: str, content: bytes) -> None:
    """Write a file that nobody else can read, at once in whole."""
    draft = f"{path}.{uuid.uuid4().hex}"
    try:
        with open(draft, "xb", opener=private) as file:
            file.write(content)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise
