"""rlguard: keeps training alive on Kubernetes.

What may live here: the vocabulary and the pure decisions (no clock, no I/O, no third party), the one loop that drives
them (`drive`), the thin wrappers of third parties (`io`, one library per file), and what runs inside the user's own
image (`launch`, `train`: stdlib only, plus torch in `train`). Importing this package costs nothing.
"""

__version__ = "0.1.0"
