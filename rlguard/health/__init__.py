"""Decisions of the agent: from kernel lines and other facts to a verdict on one node. Pure."""
