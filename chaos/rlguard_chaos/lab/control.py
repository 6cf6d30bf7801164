"""The control plane: etcd, API server, controllers, scheduler, LWS, DNS, and the objects every lab has."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

import yaml

from rlguard_chaos.lab import api, layout, pki
from rlguard_chaos.lab.host import attempt, call, link_exists, write_whole
from rlguard_chaos.lab.processes import CONTROL_PLANE, Program, running, start

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

ETCD = f"http://127.0.0.1:{layout.ETCD_PORT}"
BRIDGE_MAC = "02:77:00:00:00:01"
"""Fixed: by default a bridge takes the lowest of its ports' addresses, and neighbours keep the stale one."""

CLIENTS = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
}
SERVER_NAMES = ("127.0.0.1", layout.API_ADDRESS, "10.78.0.1", "localhost", "kubernetes.default.svc")
LWS_API = "/apis/leaderworkerset.x-k8s.io/v1"
METADATA_NAME = "metadata.tencentyun.com"
SHARED_CLAIM = "cfs-turbo-checkpoint-pvc"
SHARED_SIZE = "100Gi"
READY_LIMIT_S = 60.0
WEBHOOK_CLIENT = re.compile(r"service:\n\s+name: webhook-service\n\s+namespace: system\n\s+path: (\S+)")


def create_bridge() -> None:
    """The machine's one bridge with the addresses of the API server and both name servers."""
    if not link_exists(layout.BRIDGE):
        call("ip", "link", "add", layout.BRIDGE, "address", BRIDGE_MAC, "type", "bridge")
    for address in (f"{layout.API_ADDRESS}/16", f"{layout.NODE_DNS}/32", f"{layout.CLUSTER_DNS}/32"):
        attempt("ip", "address", "add", address, "dev", layout.BRIDGE)
    call("ip", "link", "set", layout.BRIDGE, "up")


def create_identities(nodes: Iterable[str]) -> None:
    """Every key, certificate and kubeconfig of the lab."""
    authority = pki.Authority()
    pki.service_account_keys()
    authority.issue("server", "kube-apiserver", names=SERVER_NAMES)
    authority.issue("tls", "lws-webhook", names=("127.0.0.1",))
    for file, (user, group) in CLIENTS.items():
        authority.issue(file, user, group)
        pki.write_kubeconfig(file)
    for node in nodes:
        names = (node, layout.node_address(node))
        authority.issue(node, f"system:node:{node}", "system:nodes", names)
        pki.write_kubeconfig(node)


def start_store(binaries: Path) -> None:
    """Start etcd and the API server, where they do not run."""
    _start_missing(_store(binaries))


def start_rest(binaries: Path, *, production_timers: bool) -> None:
    """Create the lab's objects and start what needs a ready API server, where it does not run.

    LWS comes last: started before its definition is served, its controller looks again only after 10 s.
    """
    _write_configurations()
    _start_missing(_rest(binaries, production_timers=production_timers))
    _create_objects(binaries)
    served = lambda: api.request("GET", LWS_API)[0] < api.ERROR  # noqa: E731  # one call, one word
    api.wait_for("the LWS definition was not served", "kube-apiserver", READY_LIMIT_S, served)
    admin = f"--kubeconfig={layout.ADMIN_KUBECONFIG}"
    _start_missing([_program("lws", binaries / "lws-manager", f"--config={layout.STATE}/lws.json", admin)])


def wait_for_api() -> None:
    """Raises LabError when the API server is not ready in time."""
    done = lambda: api.request("GET", "/readyz")[0] < api.ERROR  # noqa: E731  # one call, one word
    api.wait_for("the API server was not ready", "kube-apiserver", READY_LIMIT_S, done)


def wait_for_lws() -> None:
    """Wait until an LWS applied now is taken: definition served, webhooks answering, pods admitted.

    Raises LabError when they do not in time.
    """
    api.wait_for("the LWS webhooks did not answer", "lws", READY_LIMIT_S, _takes_lws)


def shared_volume(namespace: str, claim: str = SHARED_CLAIM) -> Sequence[Mapping[str, Any]]:
    """A PersistentVolume on the shared folder and the claim bound to it, to be created in a namespace."""
    name = f"cfs-turbo-{namespace}-{claim}"
    access = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": access
        | {
            "capacity": {"storage": SHARED_SIZE},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": claim},
            "hostPath": {"path": layout.SHARED},
        },
    }
    request = {"resources": {"requests": {"storage": SHARED_SIZE}}, "volumeName": name}
    bound = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": namespace, "name": claim},
        "spec": access | request,
    }
    return volume, bound


def create_shared_volume(namespace: str, claim: str = SHARED_CLAIM) -> None:
    """Create both in the running lab; what exists is left as it is.

    Raises LabError when the API server refuses them.
    """
    volume, bound = shared_volume(namespace, claim)
    api.create("/api/v1/persistentvolumes", volume)
    api.create(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", bound)


def _start_missing(programs: Sequence[Program]) -> None:
    alive = running()
    for program in programs:
        if program.name not in alive:
            start(program)


def _program(name: str, binary: Path, *flags: str) -> Program:
    return Program(name, CONTROL_PLANE, (str(binary), *flags))


def _store(binaries: Path) -> Sequence[Program]:
    peer = f"http://127.0.0.1:{layout.ETCD_PEER_PORT}"
    etcd = _program(
        "etcd",
        binaries / "etcd",
        f"--data-dir={layout.STATE}/etcd",
        "--unsafe-no-fsync",  # its data is worth one lab
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    )
    apiserver = _program(
        "kube-apiserver",
        binaries / "kube-apiserver",
        f"--etcd-servers={ETCD}",
        "--secure-port=443",
        f"--bind-address={layout.API_ADDRESS}",
        f"--advertise-address={layout.API_ADDRESS}",
        f"--tls-cert-file={layout.PKI}/server.crt",
        f"--tls-private-key-file={layout.PKI}/server.key",
        f"--client-ca-file={layout.PKI}/ca.crt",
        f"--kubelet-client-certificate={layout.PKI}/admin.crt",
        f"--kubelet-client-key={layout.PKI}/admin.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={layout.PKI}/sa.pub",
        f"--service-account-signing-key-file={layout.PKI}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={layout.SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-aggregator-routing=true",  # webhook Services are called at their pods' addresses
        "--allow-privileged=true",
    )
    return etcd, apiserver


def _rest(binaries: Path, *, production_timers: bool) -> Sequence[Program]:
    fast = () if production_timers else ("--node-monitor-grace-period=10s", "--node-monitor-period=1s")
    controllers = _program(
        "kube-controller-manager",
        binaries / "kube-controller-manager",
        f"--kubeconfig={layout.STATE}/controllers.kubeconfig",
        "--leader-elect=false",
        f"--service-account-private-key-file={layout.PKI}/sa.key",
        f"--root-ca-file={layout.PKI}/ca.crt",
        "--use-service-account-credentials=true",
        f"--flex-volume-plugin-dir={layout.STATE}/flexvolume",  # the default one would be created on the machine
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.CONTROLLERS_PORT}",
        *fast,
    )
    scheduler = _program(
        "kube-scheduler",
        binaries / "kube-scheduler",
        f"--kubeconfig={layout.STATE}/scheduler.kubeconfig",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.SCHEDULER_PORT}",
    )
    dns = _program("coredns", binaries / "coredns", "-conf", f"{layout.STATE}/Corefile")
    return controllers, scheduler, dns


def _write_configurations() -> None:
    lws = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "metrics": {"bindAddress": f"127.0.0.1:{layout.LWS_METRICS_PORT}"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{layout.LWS_HEALTH_PORT}"},
        "webhook": {"port": layout.LWS_WEBHOOK_PORT, "certDir": str(layout.PKI)},
    }
    write_whole(layout.STATE / "lws.json", json.dumps(lws))
    write_whole(layout.STATE / "Corefile", corefile())


def corefile() -> str:
    """Two name servers: the cluster's, and the nodes' own, which knows no cluster name, as on a real cluster."""
    return f"""cluster.local:53 in-addr.arpa:53 {{
  bind {layout.CLUSTER_DNS}
  kubernetes {{
    kubeconfig {layout.ADMIN_KUBECONFIG} lab
    ttl 1
  }}
}}
.:53 {{
  bind {layout.CLUSTER_DNS} {layout.NODE_DNS}
  template IN A {METADATA_NAME} {{
    answer "{{{{ .Name }}}} 60 IN A {layout.METADATA_ADDRESSES[0]}"
  }}
  template ANY ANY {METADATA_NAME} {{
    rcode NOERROR
  }}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""


def _create_objects(binaries: Path) -> None:
    api.create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "lws-system"}})
    for file in sorted((binaries / "bases").glob("*.yaml")):
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", file.read_text())
    for hook in lws_webhooks((binaries / "manifests.yaml").read_text(), (layout.PKI / "ca.crt").read_bytes()):
        api.create(f"/apis/admissionregistration.k8s.io/v1/{hook['kind'].lower()}s", hook)
    api.create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "default"}})
    create_shared_volume("default")


def lws_webhooks(manifests: str, authority: bytes) -> Sequence[Mapping[str, Any]]:
    """LWS's own webhook configurations, pointed at the lab's LWS process and, for pods, kept to LWS pods."""
    bundle = base64.b64encode(authority).decode()
    url = rf"caBundle: {bundle}\n    url: https://127.0.0.1:{layout.LWS_WEBHOOK_PORT}\1"
    documents = [document for document in yaml.safe_load_all(WEBHOOK_CLIENT.sub(url, manifests)) if document]
    for document in documents:
        document["metadata"]["name"] = f"lws-{document['metadata']['name']}"
        for hook in document["webhooks"]:
            if hook["name"] in {"mpod.kb.io", "vpod.kb.io"}:
                label = {"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}
                hook["objectSelector"] = {"matchExpressions": [label]}
    return documents


def _takes_lws() -> bool:
    if api.request("GET", "/api/v1/namespaces/default/serviceaccounts/default")[0] >= api.ERROR:
        return False  # no pod is taken before the controllers have made it
    container = {"name": "probe", "image": layout.PAUSE_IMAGE}
    body = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "lab-probe"},
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {"size": 1, "workerTemplate": {"spec": {"containers": [container]}}},
        },
    }
    path = f"{LWS_API}/namespaces/default/leaderworkersets?dryRun=All"
    return api.request("POST", path, body)[0] < api.ERROR
