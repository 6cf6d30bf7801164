"""A process's certificate and key outlive it, in anonymous memory that the supervisor holds: no file system sees them.

Without this a sidecar that restarts while the controller is away could speak to nobody in its group, and a group must
recover its processes with nobody outside it.
"""

from __future__ import annotations

import json
import os
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rlguard.io.identity import CredentialsHolder
from rlguard.io.tls import Credentials, Key

MOST_BYTES: Final = 65536


class KeptCredentials(CredentialsHolder):
    """A holder that begins with what the process before it had, if the authority is still the same."""

    def __init__(self, descriptor: int, authority: bytes) -> None:
        super().__init__()
        self._descriptor = descriptor
        kept = _read(descriptor, authority)
        if kept is not None:
            super().replace(kept)

    def replace(self, credentials: Credentials) -> None:
        """Use these from now on, and leave them to the next process."""
        super().replace(credentials)
        fields = (credentials.certificate, credentials.key.pem, credentials.authority)
        content = json.dumps([field.decode() for field in fields]).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)


def _read(descriptor: int, authority: bytes) -> Credentials | None:
    """What was left, None for nothing, for half a text, and for a certificate of another authority."""
    try:
        certificate, key, trusted = json.loads(os.pread(descriptor, MOST_BYTES, 0))
        private = serialization.load_pem_private_key(key.encode(), None)
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    if trusted != authority.decode() or not isinstance(private, ec.EllipticCurvePrivateKey):
        return None
    return Credentials(certificate.encode(), Key(private), authority)
