"""Settings that hold for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("gate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", max_examples=2000, deadline=None)
settings.load_profile("gate")
