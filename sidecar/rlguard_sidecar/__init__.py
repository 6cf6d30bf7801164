"""The sidecar of a guarded pod: a thin shell around the decisions in `rlguard.group`.

What may live here: links, the launcher's socket, the pages in shared memory, and performing what the two cores ask for.
"""
