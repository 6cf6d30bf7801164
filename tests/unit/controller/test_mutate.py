"""What injection makes of a pod, and what it must leave alone."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from apply_patch import apply
from hypothesis import given
from hypothesis import strategies as st

from rlguard_controller.mutate import AVOID, INJECTED, Context, Injection, Refusal, mutate

GOLDEN = Path(__file__).parent / "golden"
CONTEXT = Context(
    namespace="training",
    image="registry.example/rlguard:0.1.0",
    pull_policy="IfNotPresent",
    controller="10.78.0.40:8443",
    authority="-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    avoid=("node-b", "node-a"),
    shared_claims=frozenset({"cfs-turbo-checkpoint-pvc", "cfs-turbo"}),
)


@cache
def text(name: str) -> str:
    return json.dumps(yaml.safe_load((GOLDEN / f"{name}.yaml").read_text()))


def load(name: str) -> dict[str, Any]:
    return json.loads(text(name))


def inject(pod: dict[str, Any], context: Context = CONTEXT) -> dict[str, Any]:
    result = mutate(pod, context)
    assert isinstance(result, Injection), result
    return apply(pod, result.patch)


def refusal(pod: dict[str, Any], context: Context = CONTEXT) -> str:
    result = mutate(pod, context)
    assert isinstance(result, Refusal)
    return result.reason


def sidecar(pod: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in pod["spec"]["initContainers"] if c["name"] == "rlguard-sidecar")


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


@pytest.fixture
def pod() -> dict[str, Any]:
    return load("tke-leader")


@pytest.mark.parametrize("name", ["tke-leader", "tke-worker", "ppo-worker"])
def test_the_injected_pod_is_the_golden_one(name: str) -> None:
    assert inject(load(name)) == load(f"{name}.injected")


@pytest.mark.parametrize("name", ["tke-leader", "tke-worker", "ppo-worker"])
def test_everything_of_the_users_is_still_there_unchanged(name: str) -> None:
    before = load(name)
    after = inject(before)
    ours = {"command", "args", "env", "volumeMounts"}
    for old, new in zip(before["spec"]["containers"], after["spec"]["containers"], strict=True):
        assert {k: v for k, v in new.items() if k not in ours} == {k: v for k, v in old.items() if k not in ours}
        assert [m for m in new.get("volumeMounts", []) if m in old.get("volumeMounts", [])] == old.get(
            "volumeMounts", []
        )
        assert new.get("env", [])[: len(old.get("env", []))] == old.get("env", [])
    changed = {"initContainers", "containers", "volumes", "tolerations", "affinity", "terminationGracePeriodSeconds"}
    for field in before["spec"].keys() - changed:
        assert after["spec"][field] == before["spec"][field]
    assert after["metadata"]["labels"] == before["metadata"]["labels"]


def test_the_users_command_and_arguments_follow_the_launcher_word_for_word(pod: dict[str, Any]) -> None:
    trainer = inject(pod)["spec"]["containers"][0]
    assert trainer["command"] == ["python3", "/rlguard/lib/rlguard/launch/__main__.py", "--"]
    assert trainer["args"] == ["torchrun", *pod["spec"]["containers"][0]["args"]]


def test_the_token_is_mounted_in_the_sidecar_alone() -> None:
    spec = inject(load("ppo-worker"))["spec"]
    holders = [
        container["name"]
        for container in [*spec["initContainers"], *spec["containers"]]
        if any(mount["name"] == "rlguard-token" for mount in container.get("volumeMounts", []))
    ]
    assert holders == ["rlguard-sidecar"]


def test_our_containers_come_before_the_users_init_containers() -> None:
    names = [container["name"] for container in inject(load("ppo-worker"))["spec"]["initContainers"]]
    assert names == ["rlguard-install", "rlguard-sidecar", "fetch"]


def test_the_only_shared_volume_is_the_checkpoint_root(pod: dict[str, Any]) -> None:
    assert environment(sidecar(inject(pod)))["RLGUARD_ROOT"] == "/checkpoints/.rlguard/training/grpo/0"


def test_without_a_shared_volume_the_pod_is_guarded_with_a_warning_and_no_root(pod: dict[str, Any]) -> None:
    result = mutate(pod, replace(CONTEXT, shared_claims=frozenset()))
    assert isinstance(result, Injection)
    assert "NoCheckpointRoot: no writable" in result.warnings[0]
    guarded = sidecar(apply(pod, result.patch))
    assert environment(guarded)["RLGUARD_ROOT"] == ""
    assert "/checkpoints" not in [mount["mountPath"] for mount in guarded["volumeMounts"]]


def two_volumes(pod: dict[str, Any]) -> dict[str, Any]:
    pod["spec"]["volumes"].append({"name": "more", "persistentVolumeClaim": {"claimName": "cfs-turbo"}})
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "more", "mountPath": "/more"})
    return pod


def test_with_several_shared_volumes_only_the_guard_can_say_which_is_the_root(pod: dict[str, Any]) -> None:
    result = mutate(two_volumes(pod), CONTEXT)
    assert isinstance(result, Injection)
    assert "more than one" in result.warnings[0]
    chosen = inject(pod, replace(CONTEXT, checkpoint_path="/more/run7/"))
    assert environment(sidecar(chosen))["RLGUARD_ROOT"] == "/more/run7/.rlguard/training/grpo/0"


def test_a_checkpoint_path_outside_the_shared_volumes_gives_no_root(pod: dict[str, Any]) -> None:
    result = mutate(pod, replace(CONTEXT, checkpoint_path="/checkpoints-of-another"))
    assert isinstance(result, Injection)
    assert "/checkpoints-of-another is on no writable" in result.warnings[0]
    assert environment(sidecar(apply(pod, result.patch)))["RLGUARD_ROOT"] == ""


def test_a_dollar_in_a_path_is_not_taken_for_a_variable(pod: dict[str, Any]) -> None:
    after = inject(pod, replace(CONTEXT, checkpoint_path="/checkpoints/$(HOME)"))
    # Kubelet makes one dollar of two before it looks for variables.
    assert environment(sidecar(after))["RLGUARD_ROOT"] == "/checkpoints/$$(HOME)/.rlguard/training/grpo/0"


def test_a_volume_that_the_trainer_may_only_read_stays_out_of_the_sidecar() -> None:
    pod = load("ppo-worker")
    context = replace(CONTEXT, shared_claims=None)  # nobody knows the access modes: every claim counts
    mounts = [mount["mountPath"] for mount in sidecar(inject(pod, context))["volumeMounts"]]
    assert "/checkpoints" in mounts
    assert "/data" not in mounts


def test_a_claim_of_this_pod_alone_is_no_checkpoint_root(pod: dict[str, Any]) -> None:
    pod["spec"]["volumes"][1]["persistentVolumeClaim"]["claimName"] = "scratch-grpo-0"
    result = mutate(pod, replace(CONTEXT, shared_claims=None))
    assert isinstance(result, Injection)
    assert "NoCheckpointRoot" in result.warnings[0]


@pytest.mark.parametrize(("given_seconds", "expected"), [(None, 60), (30, 60), (60, 60), (600, 600)])
def test_the_termination_grace_is_raised_and_never_lowered(
    pod: dict[str, Any], given_seconds: int | None, expected: int
) -> None:
    pod["spec"]["terminationGracePeriodSeconds"] = given_seconds
    after = inject(pod)
    assert after["spec"]["terminationGracePeriodSeconds"] == expected
    assert environment(sidecar(after))["RLGUARD_GRACE"] == str(expected)


def test_a4_the_clusters_default_patience_with_a_bad_node_becomes_an_hour(pod: dict[str, Any]) -> None:
    seconds = {t["key"]: t["tolerationSeconds"] for t in inject(pod)["spec"]["tolerations"]}
    assert seconds == {"node.kubernetes.io/not-ready": 3600, "node.kubernetes.io/unreachable": 3600}


@pytest.mark.parametrize(
    "own",
    [
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 20},
        {"operator": "Exists"},
    ],
)
def test_a_toleration_that_the_user_chose_stays_as_it_is(pod: dict[str, Any], own: dict[str, Any]) -> None:
    pod["spec"]["tolerations"] = [own]
    about_unreachable = [
        t for t in inject(pod)["spec"]["tolerations"] if t.get("key") in (None, "node.kubernetes.io/unreachable")
    ]
    assert about_unreachable == [own]


def required(pod: dict[str, Any]) -> list[dict[str, Any]]:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def set_terms(pod: dict[str, Any], terms: list[dict[str, Any]]) -> dict[str, Any]:
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod["spec"]["affinity"] = {"nodeAffinity": rule}
    return pod


AVOIDED = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-a", "node-b"]}


def test_the_avoided_nodes_are_ruled_out_in_every_alternative(pod: dict[str, Any]) -> None:
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    labels = [{"key": "pool", "operator": "Exists"}]
    after = inject(set_terms(pod, [{"matchExpressions": labels}, {"matchFields": fields}]))
    assert required(after) == [
        {"matchExpressions": [*labels, AVOIDED]},
        {"matchFields": fields, "matchExpressions": [AVOIDED]},
    ]


def test_a_term_that_matches_no_node_does_not_start_to_match_some(pod: dict[str, Any]) -> None:
    assert required(inject(set_terms(pod, [{}]))) == [{}]


def test_with_nothing_to_avoid_the_affinity_is_untouched(pod: dict[str, Any]) -> None:
    after = inject(pod, replace(CONTEXT, avoid=()))
    assert "affinity" not in after["spec"]
    assert after["metadata"]["annotations"][AVOID] == ""


def test_a_node_name_that_no_label_can_hold_does_not_spoil_the_pod(pod: dict[str, Any]) -> None:
    after = inject(pod, replace(CONTEXT, avoid=("x" * 64, "node-a", "")))
    assert after["metadata"]["annotations"][AVOID] == "node-a"


def test_an_avoid_list_that_changed_replaces_the_old_one(pod: dict[str, Any]) -> None:
    once = inject(pod)
    assert required(inject(once, replace(CONTEXT, avoid=("node-c",)))) == [
        {"matchExpressions": [{**AVOIDED, "values": ["node-c"]}]}
    ]
    assert "affinity" not in inject(once, replace(CONTEXT, avoid=()))["spec"]


def test_the_ranks_per_node_annotation_reaches_the_trainer() -> None:
    trainer = inject(load("ppo-worker"))["spec"]["containers"][0]
    assert environment(trainer)["RLGUARD_NPROC_PER_NODE"] == "1"


@pytest.mark.parametrize("value", ["0", "-1", "1e3", "", "99999", "\u0663"])
def test_a_bad_number_of_ranks_is_ignored_and_said(value: str) -> None:
    pod = load("ppo-worker")
    pod["metadata"]["annotations"]["rlguard.io/nproc-per-node"] = value
    result = mutate(pod, CONTEXT)
    assert isinstance(result, Injection)
    assert "rlguard.io/nproc-per-node" in result.warnings[-1]
    assert "RLGUARD_NPROC_PER_NODE" not in environment(apply(pod, result.patch)["spec"]["containers"][0])


def test_a_trainer_without_a_command_is_refused(pod: dict[str, Any]) -> None:
    del pod["spec"]["containers"][0]["command"]
    assert "container trainer has no command" in refusal(pod)


def test_an_unclear_choice_of_trainer_is_refused_and_an_annotation_settles_it(pod: dict[str, Any]) -> None:
    pod["spec"]["containers"][0]["name"] = "main"
    pod["spec"]["containers"].append({"name": "other", "command": ["x"]})
    assert "none named trainer" in refusal(pod)
    pod["metadata"]["annotations"]["rlguard.io/container"] = "other"
    assert inject(pod)["spec"]["containers"][1]["args"] == ["x"]
    pod["metadata"]["annotations"]["rlguard.io/container"] = "typo"
    assert "no container 'typo', only main, other" in refusal(pod)


def test_a_pod_outside_any_leaderworkerset_is_refused(pod: dict[str, Any]) -> None:
    del pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/name"]
    assert "only pods of a LeaderWorkerSet" in refusal(pod)


@pytest.mark.parametrize("value", [None, "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3", "-1"])
def test_a_group_without_a_number_is_refused_rather_than_guessed(pod: dict[str, Any], value: str | None) -> None:
    pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-index"] = value
    assert "group-index" in refusal(pod)


@pytest.mark.parametrize("path", ["/rlguard", "/rlguard/run/", "/rlguard/../rlguard/lib"])
def test_a_volume_of_the_users_in_our_folder_is_refused(pod: dict[str, Any], path: str) -> None:
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "dshm", "mountPath": path})
    assert "that folder is rlguard's" in refusal(pod)


def test_the_sidecar_has_the_trainers_user_and_no_rights_beyond_its(pod: dict[str, Any]) -> None:
    as_root = sidecar(inject(pod))["securityContext"]
    assert as_root["runAsUser"] == 0
    assert as_root["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}
    pod["spec"]["containers"][0]["securityContext"] = {"runAsUser": 1001, "privileged": True}
    as_user = sidecar(inject(pod))["securityContext"]
    assert as_user == {"runAsUser": 1001, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_where_root_is_forbidden_and_no_user_named_our_containers_still_start(pod: dict[str, Any]) -> None:
    pod["spec"]["securityContext"] = {"runAsNonRoot": True}
    assert sidecar(inject(pod))["securityContext"]["runAsUser"] == 65532


def test_a_guaranteed_pod_stays_guaranteed(pod: dict[str, Any]) -> None:
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "90", "memory": "900Gi", "nvidia.com/gpu": "8"}}
    for container in inject(pod)["spec"]["initContainers"]:
        resources = container["resources"]
        assert resources["limits"] == resources["requests"]
        assert resources["limits"].keys() == {"cpu", "memory"}


def test_the_hash_changes_with_what_was_injected(pod: dict[str, Any]) -> None:
    hashes = {
        inject(pod, context)["metadata"]["annotations"][INJECTED]
        for context in (CONTEXT, replace(CONTEXT, image="other"), replace(CONTEXT, avoid=()))
    }
    assert len(hashes) == 3


TERMS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "matchExpressions": st.lists(st.just({"key": "pool", "operator": "Exists"}), min_size=1, max_size=2),
            "matchFields": st.just([{"key": "metadata.name", "operator": "In", "values": ["n"]}]),
        },
    ),
    min_size=1,
    max_size=3,
)
NODES = st.lists(st.sampled_from(["node-a", "node-b", "node-c"]), unique=True).map(tuple)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    pod = load(draw(st.sampled_from(["tke-leader", "tke-worker", "ppo-worker"])))
    spec, trainer = pod["spec"], pod["spec"]["containers"][0]
    trainer["command"] = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3))
    trainer["args"] = draw(st.none() | st.lists(st.text(max_size=8), max_size=3))
    spec["terminationGracePeriodSeconds"] = draw(st.none() | st.integers(0, 7200))
    if draw(st.booleans()):
        set_terms(pod, draw(TERMS))
    spec["tolerations"] = draw(st.none() | st.just([{"operator": "Exists"}]) | st.just(spec.get("tolerations")))
    for key in draw(st.sets(st.sampled_from(["env", "volumeMounts"]))):
        trainer.pop(key, None)
    return pod


@given(pods(), NODES)
def test_injecting_twice_is_injecting_once(pod: dict[str, Any], avoid: tuple[str, ...]) -> None:
    context = replace(CONTEXT, avoid=avoid)
    again = mutate(inject(pod, context), context)
    assert again == Injection([], again.warnings)


@given(pods(), NODES, NODES)
def test_only_the_last_injection_counts(pod: dict[str, Any], first: tuple[str, ...], last: tuple[str, ...]) -> None:
    earlier, later = replace(CONTEXT, avoid=first, image="older"), replace(CONTEXT, avoid=last)
    assert inject(inject(pod, earlier), later) == inject(pod, later)


@given(pods())
def test_the_pod_that_was_handed_in_is_never_changed(pod: dict[str, Any]) -> None:
    copied = copy.deepcopy(pod)
    mutate(pod, CONTEXT)
    assert pod == copied
