"""The authority: made once, whoever makes it, and it names only what it was told to name."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.verification import PolicyBuilder, Store

from rlguard.errors import BadConfigError, BadWireError, TransientError
from rlguard.io.tls import CONTROLLER, Key, pod_identity
from rlguard_controller.authority import (
    Authority,
    controller_credentials,
    create_authority,
    load_or_create,
    renew_at,
    sign,
)
from rlguard_controller.webhookcert import bundle_patch, serving_names

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
IDENTITY = pod_identity("training", "grpo-0", "1f0c")


class Secrets:
    """One Secret, and what happens around it."""

    def __init__(self, data: dict[str, str] | None = None) -> None:
        self.data = data
        self.created = 0
        self.rival: dict[str, str] | None = None
        self.vanishes = False

    async def read(self) -> Mapping[str, str] | None:
        """What is there now."""
        return None if self.vanishes else self.data

    async def create(self, data: dict[str, str]) -> bool:
        """Whether this call made it; a rival may come first."""
        if self.rival is not None:
            self.data, self.rival = self.rival, None
        if self.data is not None:
            return False
        self.data, self.created = data, self.created + 1
        return True


def names(pem: bytes) -> x509.SubjectAlternativeName:
    return x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value


async def test_the_first_replica_creates_the_authority_and_the_second_reads_the_same() -> None:
    secrets = Secrets()
    first = await load_or_create(secrets.read, secrets.create, NOW)
    second = await load_or_create(secrets.read, secrets.create, NOW)
    assert first.pem == second.pem
    assert secrets.created == 1


async def test_of_two_replicas_that_create_at_once_the_loser_takes_the_winners() -> None:
    winner, secrets = create_authority(NOW), Secrets()
    secrets.rival = winner.secret_data()
    assert (await load_or_create(secrets.read, secrets.create, NOW)).pem == winner.pem


async def test_a_secret_that_keeps_vanishing_is_an_error_and_no_endless_loop() -> None:
    secrets = Secrets(create_authority(NOW).secret_data())
    secrets.vanishes = True
    with pytest.raises(TransientError, match="who deletes it"):
        await load_or_create(secrets.read, secrets.create, NOW)


@pytest.mark.parametrize("damage", ["missing", "garbage", "not base64", "foreign key"])
async def test_a_damaged_secret_is_named_and_never_replaced(damage: str) -> None:
    data = create_authority(NOW).secret_data()
    if damage == "missing":
        del data["tls.key"]
    data |= {
        "garbage": {"tls.crt": base64.b64encode(b"no certificate").decode()},
        "not base64": {"tls.key": "\u00fc"},
        "foreign key": {"tls.key": create_authority(NOW).secret_data()["tls.key"]},
    }.get(damage, {})
    secrets = Secrets(data)
    with pytest.raises(BadConfigError, match="Secret rlguard-authority is damaged"):
        await load_or_create(secrets.read, secrets.create, NOW)
    assert secrets.created == 0


def test_a_certificate_names_the_identity_it_was_signed_for_and_lives_a_day() -> None:
    authority, key = create_authority(NOW), Key.generate()
    pem = sign(authority, key.request(), IDENTITY, NOW)
    loaded = x509.load_pem_x509_certificate(pem)
    assert names(pem).get_values_for_type(x509.UniformResourceIdentifier) == [IDENTITY]
    assert loaded.not_valid_after_utc == NOW + timedelta(hours=24)
    assert loaded.public_key() == key.key.public_key()
    loaded.verify_directly_issued_by(authority.certificate)


def test_what_the_request_claims_to_be_is_ignored() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    claims = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(CONTROLLER)])
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name.from_rfc4514_string("CN=controller"))
    request = request.add_extension(claims, critical=False)
    signed = sign(
        create_authority(NOW),
        request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        IDENTITY,
        NOW,
    )
    assert list(names(signed)) == [x509.UniformResourceIdentifier(IDENTITY)]
    assert not list(x509.load_pem_x509_certificate(signed).subject)


def test_a_signed_certificate_cannot_sign_others() -> None:
    loaded = x509.load_pem_x509_certificate(sign(create_authority(NOW), Key.generate().request(), IDENTITY, NOW))
    assert loaded.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert loaded.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is False


def rsa_request() -> bytes:
    key = rsa.generate_private_key(65537, 2048)
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def forged_request() -> bytes:
    """A request whose signature is damaged."""
    loaded = x509.load_pem_x509_csr(Key.generate().request())
    der = bytearray(loaded.public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    body = base64.encodebytes(bytes(der)).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n".encode()


@pytest.mark.parametrize("request_pem", [b"", b"x" * 100, rsa_request(), forged_request()])
def test_what_is_no_request_of_ours_is_not_signed(request_pem: bytes) -> None:
    with pytest.raises(BadWireError):
        sign(create_authority(NOW), request_pem, IDENTITY, NOW)


def test_the_controllers_certificate_serves_peers_and_the_api_server() -> None:
    authority = create_authority(NOW)
    credentials = controller_credentials(authority, Key.generate(), serving_names("rlguard-system"), NOW)
    found = names(credentials.certificate)
    assert found.get_values_for_type(x509.UniformResourceIdentifier) == [CONTROLLER]
    # As a TLS client that checks names and dates, like the API server.
    verifier = PolicyBuilder().store(Store([authority.certificate])).time(NOW.replace(tzinfo=None))
    chain = verifier.build_server_verifier(x509.DNSName("rlguard-webhook.rlguard-system.svc")).verify(
        x509.load_pem_x509_certificate(credentials.certificate), []
    )
    assert chain[-1] == authority.certificate


def test_a_certificate_is_renewed_long_before_it_ends() -> None:
    due = renew_at(sign(create_authority(NOW), Key.generate().request(), IDENTITY, NOW))
    assert NOW < due < NOW + timedelta(hours=24) - timedelta(hours=6)


def test_an_authority_survives_its_secret() -> None:
    authority = create_authority(NOW)
    assert Authority.from_secret_data(authority.secret_data()).pem == authority.pem


def configuration(bundle: str | None) -> dict[str, object]:
    client = {"service": {"name": "rlguard-webhook"}} | ({"caBundle": bundle} if bundle else {})
    return {"metadata": {"resourceVersion": "7"}, "webhooks": [{"clientConfig": client}]}


def test_the_bundle_is_patched_where_it_is_missing_or_another() -> None:
    pem = create_authority(NOW).pem
    wanted = base64.b64encode(pem).decode()
    expected = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": wanted},
    ]
    assert bundle_patch(configuration(None), pem) == expected
    assert bundle_patch(configuration("b2xk"), pem) == expected
    assert bundle_patch(configuration(wanted), pem) == []
