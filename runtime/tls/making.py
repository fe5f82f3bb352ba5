"""Certificates: an authority, and what it signs. Needs the library ``cryptography`` (the extra ``tls``)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

EARLIER: Final = timedelta(minutes=5)
"""A certificate is good from a little before it is made: clocks differ."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM (PKCS#8, which RocketMQ's Netty wants)."""

    cert: bytes
    key: bytes


def make_authority(name: str, days: int, now: datetime | None = None) -> Pair:
    """An authority whose only certificate is its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key.public_key(), days, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return Pair(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def issue(
    authority: Pair,
    name: str,
    days: int,
    hosts: Sequence[str] = (),
    *,
    server: bool,
    now: datetime | None = None,
) -> Pair:
    """A certificate of ``authority`` for a server of ``hosts`` (names and IP addresses), or for a client. One
    of a server is one of a client, too: servers dial each other. Raises ValueError."""
    issuer, signer = _authority(authority, now or datetime.now(UTC))
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), issuer.subject, key.public_key(), days, now)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if server:
        uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False
        )
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(known, critical=False)
    made = builder.sign(signer, hashes.SHA256())
    made.verify_directly_issued_by(issuer)
    return Pair(_pem(made), _key_pem(key))


def _authority(pair: Pair, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The certificate that the key belongs to, of those in the file: there are several while one authority
    follows another. Raises ValueError."""
    signer = load_pem_private_key(pair.key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is of another kind than keelmq certs makes")
    for found in x509.load_pem_x509_certificates(pair.cert):
        if found.public_key() == signer.public_key():
            if found.not_valid_after_utc <= now:
                raise ValueError(f"the authority expired at {found.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}")
            return found, signer
    raise ValueError("the authority's key belongs to none of its certificates")


def why_unfit(cert: bytes, key: bytes | None, authorities: bytes | None) -> str:
    """Why a certificate is not to be used with this key, or by those who believe ``authorities``; empty when
    it is. None: that is not looked at. Raises ValueError."""
    found, *others = x509.load_pem_x509_certificates(cert)
    own = [found, *others] if authorities is None else [found]  # of an authority's file any one
    try:
        secret = None if key is None else load_pem_private_key(key, None)
    except TypeError:
        secret = None  # it has a password
    except ValueError:
        return "its key is damaged"
    if secret is not None and all(secret.public_key() != one.public_key() for one in own):
        return "its key is another one's"
    if authorities is not None and not any(
        _is_of(found, one) for one in x509.load_pem_x509_certificates(authorities)
    ):
        return "it is of another authority"
    return ""


def _is_of(found: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        found.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def subject_of(cert: bytes) -> tuple[str, tuple[str, ...], bool]:
    """(name, hosts, whether it is a server's) of a certificate. Raises ValueError."""
    found = x509.load_pem_x509_certificate(cert)
    name = str(found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    try:
        listed = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return name, (), False
    return name, tuple(str(one.value) for one in listed), True


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: CertificateIssuerPublicKeyTypes,
    days: int,
    now: datetime | None,
) -> x509.CertificateBuilder:
    begin = now or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - EARLIER)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
