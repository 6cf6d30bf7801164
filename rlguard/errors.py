"""Errors, named by who must act. A message says what was wrong, where, and what to do."""

from __future__ import annotations

from enum import StrEnum


class RlguardError(Exception):
    """Base of all errors that rlguard raises on purpose."""


class BadConfigError(RlguardError):
    """A person must correct a setting; the message names it."""


class BadWireError(RlguardError):
    """A peer sent what is no message of ours; it is counted and dropped, never acted on."""


class FencedError(RlguardError):
    """A newer incarnation exists: whoever gets this stops acting for the old one."""


class TransientError(RlguardError):
    """Worth another try, within bounds."""


class TornReadError(TransientError):
    """A slot changed while it was being copied (M2): the copy is thrown away, another stage may be tried."""


class StoreState(StrEnum):
    """Why the checkpoint root refused, as status and metrics name it."""

    FULL = "Full"
    QUOTA = "QuotaExceeded"
    READ_ONLY = "ReadOnly"
    DENIED = "Denied"
    STALE = "StaleHandle"
    IO_ERROR = "IoError"
    MISSING = "Missing"
    NO_HARD_LINKS = "NoHardLinks"
    NOT_VISIBLE = "CheckpointNotVisible"
    HUNG = "Hung"
    FAILED = "Failed"


class StoreError(RlguardError):
    """The checkpoint root refused or failed an operation; the message carries path, errno and what to do."""

    def __init__(self, message: str, state: StoreState = StoreState.FAILED) -> None:
        super().__init__(message)
        self.state = state


class StoreHungError(StoreError):
    """The checkpoint root does not answer; the process that waited for it was killed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, StoreState.HUNG)
