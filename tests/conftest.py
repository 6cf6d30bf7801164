"""Settings that hold for every test."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings

# Without this, pytest-asyncio makes a loop for the main thread that nothing closes, and a garbage collection in a
# later test reports it there.
asyncio.set_event_loop(None)

settings.register_profile("gate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", max_examples=2000, deadline=None)
settings.load_profile("gate")
