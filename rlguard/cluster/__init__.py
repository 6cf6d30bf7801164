"""Decisions of the controller: generations, worlds, recreation, avoided nodes, completion. Pure."""
