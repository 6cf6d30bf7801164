"""The sidecar of a guarded pod: a thin shell around the decisions in `rlguard.group`."""
