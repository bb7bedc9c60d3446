"""Certificates for one test: an authority, a server on 127.0.0.1 and under names, and a client."""

import datetime as dt
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in one folder: `ca.pem`, and `NAME.pem` with `NAME.key` for `server` and `client`."""

    folder: Path

    @classmethod
    def made_in(cls, folder: Path, names: Sequence[str] = ()) -> Self:
        """New ones, good for a day, also under these names."""
        ca_key = ec.generate_private_key(ec.SECP256R1())
        ca = _certificate("authority", ca_key, "authority", ca_key, (), is_authority=True)
        (folder / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
        for name in ("server", "client"):
            key = ec.generate_private_key(ec.SECP256R1())
            made = _certificate(name, key, "authority", ca_key, names, is_authority=False)
            (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
            (folder / f"{name}.key").write_bytes(
                key.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
            )
        return cls(folder)

    def path(self, name: str) -> str:
        """One of the files."""
        return str(self.folder / name)

    def of_server(self, *, wants_client: bool = False) -> ssl.SSLContext:
        """What the server listens with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path("server.pem"), self.path("server.key"))
        if wants_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.path("ca.pem"))
        return context


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    addresses = [x509.IPAddress(IPv4Address("127.0.0.1")), *map(x509.DNSName, names)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
    )
    if is_authority:
        usage = {"key_cert_sign": True, "crl_sign": True}
        others = dict.fromkeys(
            ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
        )
        builder = builder.add_extension(
            x509.KeyUsage(**usage, **others, encipher_only=False, decipher_only=False), critical=True
        )
    return builder.sign(issuer_key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
