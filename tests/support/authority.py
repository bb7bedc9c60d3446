"""A certificate authority of a test's own.

authority = Authority(folder)
authority.certificate                   # the file that clients trust
authority.context("localhost")          # for a server of this name
"""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """It signs the certificates of servers; all its files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        """Make its own certificate."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"authority in {folder.name}")
        self.certificate = folder / "authority.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        own = self._certificate(self._name, self._key).add_extension(constraints, critical=True)
        self.certificate.write_bytes(self._signed(own))

    def context(self, host: str) -> ssl.SSLContext:
        """The side of a server that is called `host`."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        certificate = self._certificate(_name(host), key).add_extension(names, critical=False)
        file = self._folder / f"{host}.pem"
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(self._signed(certificate) + secret)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def _signed(self, certificate: x509.CertificateBuilder) -> bytes:
        return certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
