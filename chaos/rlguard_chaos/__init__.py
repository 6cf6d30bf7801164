"""The command `rlguard`: the lab, the chaos experiments and the live views.

What may live here: what a person's machine does, and the simulated world. Nothing of it runs in a cluster.
"""
