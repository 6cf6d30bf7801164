"""The controller: what is decided for the whole cluster, the injector, and the authority that names everybody."""
