"""Certificates for tests: an authority, and pairs that it signed for 127.0.0.1."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

FROM, UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def cert_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    @property
    def serial(self) -> int:
        return self.certificate.serial_number

    def write(self, folder: Path, name: str = "tls") -> tuple[Path, Path]:
        """(certificate, key) as files."""
        cert, key = folder / f"{name}.crt", folder / f"{name}.key"
        cert.write_bytes(self.cert_pem)
        key.write_bytes(self.key_pem)
        key.chmod(0o600)
        return cert, key


def authority(name: str = "authority") -> Pair:
    """One that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Pair(_certificate(name, key, name, key, authority=True), key)


def signed_by(issuer: Pair, name: str = "server") -> Pair:
    """Of a server at 127.0.0.1, or of a client."""
    key = ec.generate_private_key(ec.SECP256R1())
    [common] = issuer.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return Pair(_certificate(name, key, str(common.value), issuer.key, authority=False), key)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(FROM)
        .not_valid_after(UNTIL)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
