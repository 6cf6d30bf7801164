"""Lets these tests use the scripted sidecar of the tests with torch."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "torch"))
