"""Which checkpoint counts: names, records, lineage, pruning. Pure: no clock, no file, no randomness."""
