"""Certificates for hosts whose requests the proxy of a container has to read, because it puts secrets into them.

Each container trusts an authority of its own. Its key is gone once the certificates are signed, and it is valid only
for these hosts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BEFORE: Final = timedelta(days=1)
_AFTER: Final = timedelta(days=365)
"""The times for which a certificate is valid: clocks may differ, and a container ends long before."""

_NAME_CHARACTERS: Final = 64
"""Maximum characters of a common name (RFC 5280, appendix A.1). A longer host is only in the alternative name."""


@dataclass(frozen=True, slots=True)
class HostCertificates:
    """Certificates of hosts.

    Attributes:
        authority: the certificate of the authority that signed them, in PEM.
        of_hosts: by host, its certificate and its private key, in PEM.
    """

    authority: str
    of_hosts: dict[str, str] = field(repr=False)


def certificates_for(hosts: Iterable[str]) -> HostCertificates:
    """Return certificates for these hosts, signed by a new authority; without hosts, none."""
    names = sorted(hosts)
    if not names:
        return HostCertificates("", {})
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("The proxy of this container")
    authority = (
        _begun(subject, subject, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints([x509.DNSName(each) for each in names], None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return HostCertificates(_pem(authority), {host: _of_host(host, subject, key) for host in names})


def _of_host(host: str, issuer: x509.Name, authority: ec.EllipticCurvePrivateKey) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _begun(_name(host[:_NAME_CHARACTERS]), issuer, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return _pem(certificate) + private.decode()


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
