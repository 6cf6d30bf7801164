"""The controller: what is decided for the whole cluster, the injector, and the authority that names everybody.

What may live here: watching and writing Kubernetes objects, links, certificates, and the patch that guards a pod.
Whom to restart, and where, is decided in `rlguard.cluster`.
"""
