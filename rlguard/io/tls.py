"""Who is who on the wire: TLS 1.3 with certificates of the controller's authority on both sides.

A certificate carries one identity, a URI: `rlguard://controller`, `rlguard://node/<node>` or
`rlguard://pod/<namespace>/<pod>/<uid>`. Names and dates of certificates are not checked between peers (a stepped clock
must not cut a group in two, A5); the identity is, by whoever asked for the connection.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

CONTROLLER: Final = "rlguard://controller"
NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME (x509_vfy.h); Python's ssl has no name for it."""


def pod_identity(namespace: str, pod: str, uid: str) -> str:
    """The identity of one life of a pod."""
    return f"rlguard://pod/{namespace}/{pod}/{uid}"


def node_identity(node: str) -> str:
    """The identity of the agent on a node."""
    return f"rlguard://node/{node}"


def uid_of(identity: str) -> str | None:
    """The pod UID in a pod's identity, None for any other."""
    parts = _pod_parts(identity)
    return parts[2] if parts is not None else None


def namespace_of(identity: str) -> str | None:
    """The namespace in a pod's identity, None for any other."""
    parts = _pod_parts(identity)
    return parts[0] if parts is not None else None


def _pod_parts(identity: str) -> list[str] | None:
    kind, *parts = identity.removeprefix("rlguard://").split("/")
    return parts if kind == "pod" and len(parts) == 3 else None  # noqa: PLR2004 - namespace/name/uid


@dataclass(frozen=True, slots=True)
class Key:
    """A private key that stays in this process's memory."""

    key: ec.EllipticCurvePrivateKey

    @classmethod
    def generate(cls) -> Key:
        """A new P-256 key."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @property
    def pem(self) -> bytes:
        """The key unencrypted; never written to a file system."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def request(self) -> bytes:
        """A certificate request (PEM). It names nobody: the authority decides from the token who asks."""
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a process needs to speak: its certificate (PEM), its key, and the authority it trusts (PEM)."""

    certificate: bytes
    key: Key
    authority: bytes


def server_context(credentials: Credentials, *, client_required: bool = True) -> ssl.SSLContext:
    """For accepting peers. Without `client_required` a caller may come without a certificate, to ask for one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED if client_required else ssl.CERT_OPTIONAL
    return _prepare(context, credentials)


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """For calling peers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return _prepare(context, credentials)


def anonymous_context(authority: bytes) -> ssl.SSLContext:
    """For the first call of a process that has no certificate yet; it still knows whom to trust."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return _common(context, authority)


def _prepare(context: ssl.SSLContext, credentials: Credentials) -> ssl.SSLContext:
    _common(context, credentials.authority)
    load_certificate(context, credentials)
    return context


def load_certificate(context: ssl.SSLContext, credentials: Credentials) -> None:
    """Put certificate and key into a context, also one in use: new connections get them."""
    # Python's ssl loads keys from files only; an anonymous memory file is one that nobody else can open by name.
    descriptor = os.memfd_create("rlguard", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, credentials.certificate + credentials.key.pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _common(context: ssl.SSLContext, authority: bytes) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=authority.decode())
    context.verify_flags |= NO_CHECK_TIME
    return context


def identity_of(transport: Any) -> str | None:
    """The peer's identity on an open connection (asyncio transport or aiohttp response), None without certificate."""
    connection = transport.get_extra_info("ssl_object") if transport is not None else None
    return identity_in(connection.getpeercert()) if connection is not None else None


def identity_in(certificate: Mapping[str, Any] | None) -> str | None:
    """The identity in a verified certificate, as `getpeercert` gives it; None when it has none."""
    names: Any = certificate.get("subjectAltName", ()) if certificate else ()
    return next((value for kind, value in names if kind == "URI" and value.startswith("rlguard://")), None)
