"""Where a guarded pod may run and for how long it may stay on a node in trouble. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

Json = dict[str, Any]

HOSTNAME: Final = "kubernetes.io/hostname"
PATIENCE: Final = 3600
"""Seconds that a guarded pod tolerates a node that is not ready or unreachable (A4): rlguard decides, on proof."""
CLUSTER_PATIENCE: Final = 300
"""What the API server's DefaultTolerationSeconds plugin sets on a pod whose author said nothing."""
TROUBLE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def usable(nodes: Iterable[str]) -> tuple[str, ...]:
    """The names that can be a hostname label at all, sorted: one bad value would make the API server refuse the pod."""
    return tuple(sorted({node for node in nodes if _LABEL_VALUE.fullmatch(node)}))


def patient(tolerations: Sequence[Json]) -> list[Json]:
    """The tolerations with the cluster's default patience replaced by ours; what a person set stays."""
    kept = [toleration for toleration in tolerations if toleration not in _ours(CLUSTER_PATIENCE)]
    return kept + [ours for ours in _ours(PATIENCE) if not any(_covers(theirs, ours["key"]) for theirs in kept)]


def _ours(seconds: int) -> list[Json]:
    return [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds} for key in TROUBLE]


def _covers(toleration: Json, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")


def avoiding(affinity: Json | None, before: Sequence[str], nodes: Sequence[str]) -> Json | None:
    """The affinity with `nodes` ruled out and the nodes ruled out by an earlier injection (`before`) forgotten.

    Node selector terms are alternatives, so each one gets the rule. A term without any expression matches no node
    (Kubernetes API: "a null or empty node selector term matches no objects"); it must not start to match some.
    """
    if before:
        affinity = _with_terms(affinity, lambda terms: _forget(terms, _rule(before)))
    if nodes:
        affinity = _with_terms(affinity, lambda terms: _forbid(terms, _rule(nodes)))
    return affinity


def _rule(nodes: Sequence[str]) -> Json:
    return {"key": HOSTNAME, "operator": "NotIn", "values": list(nodes)}


def _forbid(terms: list[Json] | None, rule: Json) -> list[Json]:
    if terms is None:
        return [{"matchExpressions": [rule]}]
    return [_extended(term, rule) for term in terms]


def _extended(term: Json, rule: Json) -> Json:
    expressions = term.get("matchExpressions") or []
    matches_nothing = not expressions and not term.get("matchFields")
    return term if matches_nothing else {**term, "matchExpressions": [*expressions, rule]}


def _forget(terms: list[Json] | None, rule: Json) -> list[Json] | None:
    if terms is None:
        return None
    return [left for term in terms if (left := _without(term, rule)) or not term] or None


def _without(term: Json, rule: Json) -> Json:
    left = [expression for expression in term.get("matchExpressions") or [] if expression != rule]
    others = {key: value for key, value in term.items() if key != "matchExpressions"}
    return {**others, "matchExpressions": left} if left else others


def _with_terms(affinity: Json | None, change: Callable[[list[Json] | None], list[Json] | None]) -> Json | None:
    """The affinity with its required node selector terms changed; parts left empty are dropped."""
    whole = dict(affinity or {})
    of_node = dict(whole.pop("nodeAffinity", None) or {})
    required = of_node.pop("requiredDuringSchedulingIgnoredDuringExecution", None)
    terms = change(required.get("nodeSelectorTerms") if required else None)
    if terms:
        of_node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if of_node:
        whole["nodeAffinity"] = of_node
    return whole or None
