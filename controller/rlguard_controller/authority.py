"""The authority that names everybody: one key and certificate, created once, kept in one Secret.

It signs what a caller proved to be (see `issuer`), never what a request claims: subject and names of a request are
ignored. Time is an argument, so that tests and clocks that step need no patience.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rlguard.errors import BadConfigError, BadWireError, TransientError
from rlguard.io.tls import CONTROLLER, Credentials, Key

SECRET: Final = "rlguard-authority"  # noqa: S105 - the name of an object, not a password
LIFETIME: Final = timedelta(hours=24)
AUTHORITY_LIFETIME: Final = timedelta(days=3652)
LEEWAY: Final = timedelta(hours=1)
"""How far back a certificate starts to be valid: the API server's clock may be behind ours."""

SecretData = dict[str, str]
"""The `data` of a Secret: values in base64."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The signing key and its own certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        """What everybody trusts; public."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def secret_data(self) -> SecretData:
        """The `data` of the Secret that keeps this authority."""
        key = Key(self.key).pem
        return {"tls.crt": base64.b64encode(self.pem).decode(), "tls.key": base64.b64encode(key).decode()}

    @classmethod
    def from_secret_data(cls, data: Mapping[str, str]) -> Self:
        """Read it back. Raises BadConfigError when the Secret holds no usable pair."""
        try:
            key = serialization.load_pem_private_key(base64.b64decode(data["tls.key"]), None)
            certificate = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
        except (KeyError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise BadConfigError(_damaged(f"{type(error).__name__}: {error}")) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise BadConfigError(_damaged("its key does not belong to its certificate"))
        return cls(key, certificate)


def _damaged(what: str) -> str:
    return (
        f"Secret {SECRET} is damaged ({what:.120}). Restore it, or delete it and restart the controller, the agents and"
        " the guarded pods: a new authority is made and nobody trusts the old one"
    )


def create_authority(now: datetime) -> Authority:
    """A new authority: P-256, good for ten years."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rlguard authority")])
    builder = (
        _builder(key.public_key(), now, AUTHORITY_LIFETIME)
        .subject_name(name)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(key, builder.sign(key, hashes.SHA256()))


async def load_or_create(
    read: Callable[[], Awaitable[Mapping[str, str] | None]],
    create: Callable[[SecretData], Awaitable[bool]],
    now: datetime,
) -> Authority:
    """The one authority of this cluster, whoever of several replicas made it.

    `read` returns the Secret's data, None if there is none; `create` returns False if one was there already. Raises
    BadConfigError for a damaged Secret, TransientError if it keeps appearing and vanishing.
    """
    for _ in range(3):
        data = await read()
        if data is not None:
            return Authority.from_secret_data(data)
        authority = create_authority(now)
        if await create(authority.secret_data()):
            return authority
    raise TransientError(f"Secret {SECRET} is there when it is created and gone when it is read: who deletes it?")


def sign(
    authority: Authority,
    request: bytes,
    identity: str,
    now: datetime,
    lifetime: timedelta = LIFETIME,
    names: Sequence[str] = (),
) -> bytes:
    """A certificate (PEM) for the key in `request` (PEM), naming `identity` (a URI) and DNS `names`.

    Raises BadWireError when the request is no certificate request, is not signed by its own key, or is not P-256.
    """
    public = _public_key(request)
    subjects: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity), *map(x509.DNSName, names)]
    builder = (
        _builder(public, now, lifetime)
        .subject_name(x509.Name([]))
        .issuer_name(authority.certificate.subject)
        .add_extension(x509.SubjectAlternativeName(subjects), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def controller_credentials(authority: Authority, key: Key, names: Sequence[str], now: datetime) -> Credentials:
    """What the controller's one TLS server shows: its identity for peers, DNS `names` for the API server's webhooks."""
    return Credentials(sign(authority, key.request(), CONTROLLER, now, names=names), key, authority.pem)


def renew_at(certificate: bytes) -> datetime:
    """When to replace a certificate (PEM): after two thirds of its life."""
    loaded = x509.load_pem_x509_certificate(certificate)
    begin, end = loaded.not_valid_before_utc, loaded.not_valid_after_utc
    return begin + (end - begin) * 2 / 3


def _public_key(request: bytes) -> ec.EllipticCurvePublicKey:
    try:
        loaded = x509.load_pem_x509_csr(request)
        valid, public = loaded.is_signature_valid, loaded.public_key()
    except (ValueError, TypeError, x509.InvalidVersion, InvalidSignature, UnsupportedAlgorithm) as error:
        raise BadWireError("not a PEM certificate request") from error
    if not valid:
        raise BadWireError("the certificate request is not signed by its own key")
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise BadWireError("the certificate request's key is not P-256")
    return public


def _builder(public: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LEEWAY)
        .not_valid_after(now + lifetime)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
