"""Errors, named by who must act. A message says what was wrong, where, and what to do."""

from __future__ import annotations


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


class StoreError(RlguardError):
    """The checkpoint root refused or failed an operation; the message carries path and errno."""
