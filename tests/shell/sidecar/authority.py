"""A certificate authority for tests: signs what a process asks for, under any identity."""

from __future__ import annotations

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rlguard.io.tls import Credentials, Key

_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rlguard test")])


class Authority:
    """Signs for whom it is told. `pem` is what everybody trusts."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(self._key.public_key()).subject_name(_NAME)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def sign(self, request: bytes, identity: str) -> bytes:
        """The certificate (PEM) for a request (PEM)."""
        public = x509.load_pem_x509_csr(request).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        name = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity)])
        builder = _builder(public).subject_name(x509.Name([])).add_extension(name, critical=True)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def credentials(self, identity: str) -> Credentials:
        """Everything a process of this identity has."""
        key = Key.generate()
        return Credentials(self.sign(key.request(), identity), key, self.pem)


def _builder(public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(_NAME)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
    )
