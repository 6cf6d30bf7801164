"""The chart: what it grants, what it installs, and that its CRD says the same as the policy that the code enforces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlguard.cluster.status import (
    Avoided,
    Condition,
    DeleteKind,
    GroupStatus,
    GuardStatus,
    PendingDelete,
    Until,
    status_to_json,
)
from rlguard.cluster.taints import EFFECT, KEY, TaintPolicy
from rlguard.errors import BadConfigError
from rlguard.health.catalogue import builtin
from rlguard.model import CheckpointId, Incarnation, Incident, Member, Phase, Rung, Severity
from rlguard.policy import RANGES, OnGiveUp, parse_spec
from rlguard_controller.authority import SECRET
from rlguard_controller.settings import read_settings
from rlguard_controller.webhookcert import CONFIGURATION, SERVICE

CHART = Path(__file__).parents[2] / "charts" / "rlguard"
NAMESPACE = "rlguard-system"


def helm() -> str:
    """A helm to run: on the PATH, or where the lab keeps its own."""
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders = [os.environ.get("RLGUARD_LAB_BINARIES", ""), *map(str, cache_home.glob("rlguard/lab/*"))]
    found = shutil.which("helm") or shutil.which("helm", path=os.pathsep.join(folders))
    if not found:
        pytest.skip("no helm on the PATH and none in the lab's cache; the lab tests install the chart with theirs")
    return found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm(), *arguments], capture_output=True, text=True, check=False, timeout=50)


@cache
def rendered(*settings: str) -> str:
    flags = [flag for setting in settings for flag in ("--set-json", setting)]
    done = run("template", "rlguard", str(CHART), "--namespace", NAMESPACE, *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(*settings: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What is installed, by kind and `namespace/name` (the namespace only where it is not the release's)."""
    found = {}
    for thing in yaml.safe_load_all(rendered(*settings)):
        metadata = thing["metadata"]
        elsewhere = metadata.get("namespace", NAMESPACE) != NAMESPACE
        name = f"{metadata['namespace']}/{metadata['name']}" if elsewhere else metadata["name"]
        assert (thing["kind"], name) not in found
        found[thing["kind"], name] = thing
    return found


def crd() -> dict[str, Any]:
    return yaml.safe_load((CHART / "crds" / "guards.rlguard.io.yaml").read_text())["spec"]


def spec_schema() -> dict[str, Any]:
    return crd()["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def numbers(schema: dict[str, Any], prefix: str = "") -> dict[str, tuple[float, float, bool]]:
    """Every number in a schema: its path, least, most, and whether it is whole."""
    found: dict[str, tuple[float, float, bool]] = {}
    for name, field in schema.items():
        if field["type"] == "object":
            found |= numbers(field["properties"], f"{prefix}{name}.")
        elif field["type"] in ("number", "integer"):
            found[prefix + name] = (field["minimum"], field["maximum"], field["type"] == "integer")
    return found


def test_the_crds_ranges_are_those_of_the_policy() -> None:
    assert numbers(spec_schema()) == {path: (r.low, r.high, r.whole) for path, r in RANGES.items()}


def test_the_crd_knows_every_field_of_the_policy_and_no_other() -> None:
    schema = spec_schema()
    fields = {f"{a}.{b}" for a in schema for b in schema[a].get("properties", {})}
    assert fields == {*RANGES, "checkpoint.path"}
    assert set(schema["onGiveUp"]["enum"]) == {*OnGiveUp}


def test_a_relative_checkpoint_path_is_refused_by_both() -> None:
    assert spec_schema()["checkpoint"]["properties"]["path"]["x-kubernetes-validations"][0]["rule"] == (
        "self == '' || self.startsWith('/')"
    )
    with pytest.raises(BadConfigError):
        parse_spec({"checkpoint": {"path": "checkpoints"}})


def test_the_crd_outlives_the_chart_and_has_a_status_of_its_own() -> None:
    whole = yaml.safe_load((CHART / "crds" / "guards.rlguard.io.yaml").read_text())
    assert whole["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert whole["spec"]["versions"][0]["subresources"] == {"status": {}}
    assert whole["spec"]["names"]["shortNames"] == ["guard"]


def full_status() -> dict[str, Any]:
    """A status in which every field is set, as the controller writes it."""
    checkpoint = CheckpointId(Incarnation(3, 1), 120)
    incident = Incident("i", "xid-79", "d", 1.0, Rung.REPLACE, "w", 2.0, checkpoint, 4, 3.0)
    group = GroupStatus(
        group=0,
        phase=Phase.RUNNING,
        world=(Member(0, "u", "p", "n", "10.0.0.1"),),
        newest=checkpoint,
        step=130,
        fenced=True,
        incidents=(incident,),
        pending=PendingDelete(DeleteKind.REPLACE, ("u",), ("u",), "w"),
    )
    conditions = (Condition("Guarded", "True", "Watching", "m", 1.0),)
    avoid = (Avoided("n", "xid-79", "b", Until.REBOOT),)
    return status_to_json(GuardStatus(Phase.RUNNING, "uid", 1, conditions, avoid, (group,)))


def lost(value: Any, schema: dict[str, Any], at: str) -> list[str]:
    """What the API server would drop or refuse of `value`: fields that the schema has not, wrong types."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    if not isinstance(value, kinds[schema["type"]]) or value not in schema.get("enum", [value]):
        return [at]
    if isinstance(value, list):
        return [path for item in value for path in lost(item, schema["items"], f"{at}[]")]
    if not isinstance(value, dict):
        return []
    known = schema.get("properties", {})
    missing = [f"{at}.{name}" for name in schema.get("required", []) if name not in value]
    unknown = [f"{at}.{name}" for name in value if name not in known]
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        unknown = []
    deeper = [path for name in value if name in known for path in lost(value[name], known[name], f"{at}.{name}")]
    return missing + unknown + deeper


def test_nothing_of_the_status_that_the_controller_writes_is_lost_in_the_crd() -> None:
    schema = crd()["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert lost(full_status(), schema, "status") == []
    assert lost(full_status() | {"surprise": 1}, schema, "status") == ["status.surprise"]


def test_every_column_shows_something_that_the_controller_writes() -> None:
    guard = {"status": full_status(), "metadata": {"creationTimestamp": "now"}}
    for column in crd()["versions"][0]["additionalPrinterColumns"]:
        value: Any = guard
        for part in column["jsonPath"].removeprefix(".").replace("[0]", ".0").split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
        assert isinstance(value, int if column["type"] == "integer" else str), column["name"]


def test_helm_finds_nothing_to_complain_about() -> None:
    done = run("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def grants(role: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    """(group, resource, verb, name or empty) for each single right."""
    return {
        (group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def table(text: str) -> set[tuple[str, str, str, str]]:
    """Read `group resource verb,verb [name]` lines; `-` is the core group."""
    found = set()
    for line in text.strip().splitlines():
        group, resource, verbs, *name = line.split()
        found |= {(group.strip("-"), resource, verb, name[0] if name else "") for verb in verbs.split(",")}
    return found


RIGHTS = {
    ("ClusterRole", "rlguard-controller"): """
        - pods list,watch,delete
        - nodes list,watch
        - persistentvolumeclaims get
        - events create
        leaderworkerset.x-k8s.io leaderworkersets list,watch
        leaderworkerset.x-k8s.io leaderworkersets/scale patch
        rlguard.io guards get,list,watch,create
        rlguard.io guards/status patch
        authentication.k8s.io tokenreviews create
        admissionregistration.k8s.io mutatingwebhookconfigurations get,patch rlguard-injector
    """,
    ("Role", "rlguard-controller"): """
        - secrets create
        - secrets get rlguard-authority
        - configmaps create
        - configmaps get,patch rlguard-authority
        - services get rlguard-controller
        - pods patch
        coordination.k8s.io leases create
        coordination.k8s.io leases get,update rlguard-controller
    """,
    ("Role", "kube-node-lease/rlguard-controller"): "coordination.k8s.io leases list,watch",
    ("ClusterRole", "rlguard-agent"): """
        - nodes get,watch
        - nodes/status patch
    """,
    ("Role", "default/rlguard-agent"): "- events create",
}


def test_the_rights_are_exactly_those_in_the_table() -> None:
    roles = {key: grants(thing) for key, thing in objects().items() if key[0] in ("ClusterRole", "Role")}
    assert roles == {key: table(text) for key, text in RIGHTS.items()}


def test_nobody_but_our_two_accounts_is_given_anything() -> None:
    subjects = {
        (subject["kind"], subject["namespace"], subject["name"], thing["roleRef"]["name"])
        for (kind, _), thing in objects().items()
        if kind.endswith("RoleBinding")
        for subject in thing["subjects"]
    }
    assert subjects == {
        ("ServiceAccount", NAMESPACE, "rlguard-controller", "rlguard-controller"),
        ("ServiceAccount", NAMESPACE, "rlguard-agent", "rlguard-agent"),
    }


def test_what_an_agent_may_write_is_bounded_to_its_own_node() -> None:
    installed = objects()
    for name, resources in (("own-node", {"nodes", "nodes/status"}), ("own-events", {"events"})):
        policy = installed["ValidatingAdmissionPolicy", f"rlguard-agent-{name}"]["spec"]
        assert {one for rule in policy["matchConstraints"]["resourceRules"] for one in rule["resources"]} == resources
        assert "variables.node != ''" in policy["validations"][0]["expression"]
        binding = installed["ValidatingAdmissionPolicyBinding", f"rlguard-agent-{name}"]["spec"]
        assert binding == {"policyName": f"rlguard-agent-{name}", "validationActions": ["Deny"]}


TAINTS_ON = "controller.taints.enabled=true"


def controller_environment(*settings: str) -> dict[str, str]:
    """What the controller's process is told, without what it is told of its own pod."""
    (container,) = objects(*settings)["Deployment", "rlguard-controller"]["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def test_without_taints_the_chart_says_nothing_of_them() -> None:
    assert "TAINTS" not in rendered()
    assert "rlguard.io/unhealthy" not in rendered()


def test_with_taints_the_controller_may_patch_nodes_and_that_alone_comes_on_top() -> None:
    role = ("ClusterRole", "rlguard-controller")
    more = grants(objects(TAINTS_ON)[role]) - grants(objects()[role])
    assert more == {("", "nodes", "patch", "")}
    new = set(objects(TAINTS_ON)) - set(objects())
    name = "rlguard-controller-own-taint"
    assert new == {("ValidatingAdmissionPolicy", name), ("ValidatingAdmissionPolicyBinding", name)}


def test_what_a_controller_may_change_of_a_node_is_bounded_to_its_own_taint() -> None:
    installed, name = objects(TAINTS_ON), "rlguard-controller-own-taint"
    policy = installed["ValidatingAdmissionPolicy", name]["spec"]
    assert policy["failurePolicy"] == "Fail"
    (condition,) = policy["matchConditions"]
    assert condition["expression"].endswith(f"== 'system:serviceaccount:{NAMESPACE}:rlguard-controller'")
    expression = policy["validations"][0]["expression"]
    assert expression.count(f"t.key == '{KEY}' && t.effect == '{EFFECT}'") == 2
    binding = installed["ValidatingAdmissionPolicyBinding", name]["spec"]
    assert binding == {"policyName": name, "validationActions": ["Deny"]}


@pytest.mark.parametrize(
    ("values", "policy"),
    [
        ({}, TaintPolicy()),
        ({"maxShare": 1, "floor": 0, "poolLabel": "pool"}, TaintPolicy(1.0, 0, "pool")),
        ({"maxShare": 0.333, "floor": 100000}, TaintPolicy(0.333, 100000)),
        ({"maxShare": 0}, TaintPolicy(0.0)),
    ],
)
def test_the_bounds_on_taints_reach_the_controller_as_it_reads_them(
    values: dict[str, Any], policy: TaintPolicy
) -> None:
    told = controller_environment(f"controller.taints={json.dumps({'enabled': True, **values})}")
    assert read_settings({"POD_NAMESPACE": "n", "POD_NAME": "p", **told}).taints == policy


def test_no_right_has_a_wildcard() -> None:
    for text in RIGHTS.values():
        assert "*" not in text
    assert "'*'" not in rendered()


def test_the_code_and_the_chart_use_the_same_names() -> None:
    installed = objects()
    assert ("MutatingWebhookConfiguration", CONFIGURATION) in installed
    assert ("Service", SERVICE) in installed
    assert ("", "secrets", "get", SECRET) in grants(installed["Role", "rlguard-controller"])


def test_the_injector_sees_only_labelled_pods_outside_the_systems_namespaces() -> None:
    (hook,) = objects()["MutatingWebhookConfiguration", "rlguard-injector"]["webhooks"]
    assert hook["objectSelector"]["matchExpressions"] == [{"key": "rlguard.io/guard", "operator": "Exists"}]
    (rule,) = hook["namespaceSelector"]["matchExpressions"]
    assert rule["operator"] == "NotIn"
    assert set(rule["values"]) == {NAMESPACE, "kube-system", "kube-node-lease"}
    assert (hook["failurePolicy"], hook["reinvocationPolicy"], hook["sideEffects"]) == ("Ignore", "IfNeeded", "None")
    assert hook["timeoutSeconds"] == 5


def test_the_injectors_configuration_sorts_after_that_of_lws() -> None:
    assert CONFIGURATION > "lws-mutating-webhook-configuration"


def test_every_replica_injects_and_only_the_leader_is_spoken_to() -> None:
    installed = objects()
    labels = installed["Deployment", "rlguard-controller"]["spec"]["template"]["metadata"]["labels"]
    webhook, leader = (installed["Service", name]["spec"] for name in ("rlguard-webhook", "rlguard-controller"))
    assert webhook["selector"].items() <= labels.items()
    assert leader["selector"] == {**webhook["selector"], "rlguard.io/leader": "true"}
    assert "rlguard.io/leader" not in installed["Deployment", "rlguard-controller"]["spec"]["selector"]["matchLabels"]
    assert [port["port"] for port in leader["ports"]] == [8443]
    assert [port["port"] for port in webhook["ports"]] == [443]


def test_the_injected_image_is_the_controllers_own() -> None:
    (container,) = objects('image={"repository":"ccr.example/rlguard","tag":"1.2"}')[
        "Deployment", "rlguard-controller"
    ]["spec"]["template"]["spec"]["containers"]
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert container["image"] == values["RLGUARD_IMAGE"] == "ccr.example/rlguard:1.2"


def test_an_agents_sources_can_be_replaced_one_by_one() -> None:
    spec = objects(
        'agent.env={"RLGUARD_AGENT_KMSG":"unix:/fakes/kmsg.sock"}',
        'agent.hostPaths={"fakes":{"path":"/run/fakes","mountPath":"/fakes"},"state":null}',
    )["DaemonSet", "rlguard-agent"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert {"name": "RLGUARD_AGENT_KMSG", "value": "unix:/fakes/kmsg.sock"} in container["env"]
    assert {"name": "fakes", "mountPath": "/fakes", "readOnly": True} in container["volumeMounts"]
    assert [volume for volume in spec["volumes"] if "hostPath" in volume] == [
        {"name": "fakes", "hostPath": {"path": "/run/fakes"}}
    ]


def test_an_agent_gets_the_runtime_class_that_brings_the_driver() -> None:
    def spec(*settings: str) -> dict[str, Any]:
        return objects(*settings)["DaemonSet", "rlguard-agent"]["spec"]["template"]["spec"]

    assert "runtimeClassName" not in spec()
    assert spec('agent.runtimeClassName="nvidia"')["runtimeClassName"] == "nvidia"


def test_an_agent_sees_what_is_mounted_for_pods_only_where_it_is_told_to() -> None:
    pods = '{"path":"/var/lib/kubelet/pods","mountPath":"/var/lib/kubelet/pods","propagation":"HostToContainer"}'
    spec = objects('agent.hostPaths={"pods":' + pods + "}")["DaemonSet", "rlguard-agent"]["spec"]["template"]["spec"]
    (found,) = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "pods"]
    assert (found["readOnly"], found["mountPropagation"]) == (True, "HostToContainer")
    assert "mountPropagation" not in rendered()


def test_an_agent_stays_on_a_node_in_trouble() -> None:
    spec = objects()["DaemonSet", "rlguard-agent"]["spec"]["template"]["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["hostNetwork"] is True


def test_only_the_agent_is_privileged() -> None:
    installed = objects()
    (controller,) = installed["Deployment", "rlguard-controller"]["spec"]["template"]["spec"]["containers"]
    assert controller["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert installed["Deployment", "rlguard-controller"]["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ('controler={"replicas":2}', "controler"),
        ('agent.env={"A":["list"]}', "env"),
        ('webhook.failurePolicy="Maybe"', "failurePolicy"),
        ("controller.taints.maxShare=2", "maxShare"),
        ('controller.taints={"enable":true}', "enable"),
        ('agent.hostPaths={"x":{"path":"relative","mountPath":"/x"}}', "path"),
    ],
)
def test_a_wrong_value_is_named(setting: str, named: str) -> None:
    done = run("template", "rlguard", str(CHART), "--set-json", setting)
    assert done.returncode != 0
    assert named in done.stderr


def test_every_value_is_in_the_schema() -> None:
    def paths(values: dict[str, Any], schema: dict[str, Any], at: str = "") -> list[str]:
        known = schema.get("properties")
        if known is None:
            return []
        wrong = [f"{at}{name}" for name in values if name not in known]
        deeper = (paths(v, known[k], f"{at}{k}.") for k, v in values.items() if k in known and isinstance(v, dict))
        return wrong + [path for found in deeper for path in found]

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert paths(values, schema) == []
    assert set(schema["properties"]) - {"global"} == set(values)


def test_one_s_own_rows_of_the_fault_tables_reach_the_agent_as_it_reads_them() -> None:
    assert ("ConfigMap", "rlguard-catalogue") not in objects()
    rows = {"version": "mine", "rows": [{"code": "xid-63", "severity": "info"}]}
    things = objects(f"agent.catalogue={json.dumps(rows)}")
    text = things["ConfigMap", "rlguard-catalogue"]["data"]["rows.json"]
    assert builtin(text).rows["xid-63"].rating[0] is Severity.INFO
    pod = things["DaemonSet", "rlguard-agent"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    (path,) = (one["value"] for one in container["env"] if one["name"] == "RLGUARD_AGENT_CATALOGUE")
    (mount,) = (one["mountPath"] for one in container["volumeMounts"] if one["name"] == "catalogue")
    assert path == f"{mount}/rows.json"
    assert pod["metadata"]["annotations"]["rlguard.io/catalogue"]
