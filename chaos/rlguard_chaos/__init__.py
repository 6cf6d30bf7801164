"""The command `rlguard`: the lab, the chaos experiments and the live views."""
