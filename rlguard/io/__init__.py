"""Thin wrappers around the outside world, one third party per file. No decisions live here."""
