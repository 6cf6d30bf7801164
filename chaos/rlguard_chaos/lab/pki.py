"""Keys and certificates of the lab's cluster, and the kubeconfigs that carry them."""

from __future__ import annotations

import base64
import ipaddress
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rlguard_chaos.lab import layout

if TYPE_CHECKING:
    from collections.abc import Sequence

LIFE = timedelta(days=3650)
EARLIER = timedelta(hours=1)
KEY_MODE = 0o600


class Authority:
    """The cluster's certificate authority. Its own key never reaches the disk: everything is issued at `up`."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name("rlguard-lab", "")
        everything = x509.BasicConstraints(ca=True, path_length=None)
        builder = _builder(name, name, self._key.public_key()).add_extension(everything, critical=True)
        self._name = name
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)
        layout.PKI.mkdir(parents=True, exist_ok=True)
        (layout.PKI / "ca.crt").write_bytes(self.pem)

    def issue(self, file: str, common_name: str, organization: str = "", names: Sequence[str] = ()) -> None:
        """Write `<file>.crt` and `<file>.key` for a client or server; names are DNS names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = _builder(_name(common_name, organization), self._name, key.public_key())
        builder = builder.add_extension(usage, critical=False)
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        (layout.PKI / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(f"{file}.key", key)


def service_account_keys() -> None:
    """Write the pair that signs and checks ServiceAccount tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    layout.PKI.mkdir(parents=True, exist_ok=True)
    _write_key("sa.key", key)
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    (layout.PKI / "sa.pub").write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, kind))


def kubeconfig(name: str) -> str:
    """A kubeconfig with everything inside, for the holder of the certificate `name`."""
    cluster = {"server": layout.API_URL, "certificate-authority-data": _base64("ca.crt")}
    user = {"client-certificate-data": _base64(f"{name}.crt"), "client-key-data": _base64(f"{name}.key")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name}}],
    }
    return json.dumps(document, indent=1)


def write_kubeconfig(name: str) -> None:
    """Write `<state>/<name>.kubeconfig`, readable by root alone."""
    path = layout.STATE / f"{name}.kubeconfig"
    path.touch(mode=KEY_MODE)
    path.write_text(kubeconfig(name))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - EARLIER).not_valid_after(now + LIFE)


def _name(common_name: str, organization: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(file: str, key: ec.EllipticCurvePrivateKey) -> None:
    path = layout.PKI / file
    path.touch(mode=KEY_MODE)
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))


def _base64(file: str) -> str:
    return base64.b64encode((layout.PKI / file).read_bytes()).decode()
