"""The controller's authority for tests: signs what a process asks for, under any identity."""

from __future__ import annotations

from datetime import UTC, datetime

from rlguard.io.tls import Credentials, Key
from rlguard_controller import authority


class Authority:
    """Signs for whom it is told. `pem` is what everybody trusts."""

    def __init__(self) -> None:
        self._authority = authority.create_authority(datetime.now(UTC))
        self.pem = self._authority.pem

    def sign(self, request: bytes, identity: str, at: datetime | None = None) -> bytes:
        """The certificate (PEM) for a request (PEM), good for a day from `at` (default: now)."""
        return authority.sign(self._authority, request, identity, at or datetime.now(UTC))

    def credentials(self, identity: str, at: datetime | None = None) -> Credentials:
        """Everything a process of this identity has."""
        key = Key.generate()
        return Credentials(self.sign(key.request(), identity, at), key, self.pem)
