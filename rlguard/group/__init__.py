"""Decisions inside a group: the coordinator's (leader pod) and each member's. Pure."""
