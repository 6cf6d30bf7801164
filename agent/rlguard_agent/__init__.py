"""The node agent: sees what breaks on its node and tells the sidecars on it, the controller, and the Node object."""
