"""The node agent: sees what breaks on its node and tells the sidecars on it, the controller, and the Node object.

What may live here: reading one source each, the one port, what a restarted process must remember. What a fault means
is decided in `rlguard.health`.
"""
