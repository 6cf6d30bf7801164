"""What a training container could get at, and whom the processes of rlguard let in."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from kit import SYSTEM, namespace_for, ppo, start

from rlguard_chaos.lab import images, layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit import Cluster, Job

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
TOKEN = "/var/run/secrets/rlguard/token"  # noqa: S105  # a path
API_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105  # a path
AGENT_PORT = 7443
LARGEST = 8 << 20

SEARCH = """
import glob, os, re
needle, skip, largest = %r, %r, %r
key = re.compile(rb'-----BEGIN [A-Z ]*PRIVATE KEY-----')
seen, found, looked = set(), [], 0
def look(path):
    global looked
    try:
        state = os.stat(path)
        if (state.st_dev, state.st_ino) in seen or not (state.st_mode & 0o170000 == 0o100000):
            return
        if not path.startswith('/proc/'):
            seen.add((state.st_dev, state.st_ino))
        if state.st_size > largest:
            return
        data = open(path, 'rb').read(largest)
    except OSError:
        return
    looked += 1
    if needle in data or key.search(data):
        found.append(path)
mounts = {line.split()[4] for line in open('/proc/self/mountinfo')}
for top in sorted(mounts):
    if top.startswith(('/proc', '/sys')) or any(top == s or top.startswith(s + '/') for s in skip):
        continue
    for folder, folders, files in os.walk(top):
        folders[:] = [f for f in folders if os.path.join(folder, f) not in (*skip, '/proc', '/sys')]
        for name in files:
            look(os.path.join(folder, name))
for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/proc/[0-9]*/fd/*'):
    look(path)
for maps in glob.glob('/proc/[0-9]*/maps'):
    try:
        mapped = {line.split()[-1] for line in open(maps) if line.rstrip().split()[-1].startswith('/')}
    except OSError:
        continue
    for path in mapped:
        if not any(path.startswith(s + '/') for s in skip):
            look(path)
print(looked)
print('\\n'.join(found))
"""
"""Looks everywhere; skips what the image brings (on the lab: folders of the machine) and what is larger."""

LISTENING = """
import os, socket
mine = set()
for entry in os.listdir('/proc/1/fd'):
    try:
        mine.add(os.readlink('/proc/1/fd/' + entry))
    except OSError:
        pass
for line in open('/proc/net/tcp').readlines()[1:]:
    word = line.split()
    address, port = word[1].split(':')
    if word[3] == '0A' and 'socket:[%s]' % word[9] in mine:
        print(socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16))
"""
"""The addresses on which the container's first process listens (those of the ranks are in the same network)."""

DIAL = """
import socket, ssl, sys
for address, port in %r:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((address, port), 5) as plain, context.wrap_socket(plain) as line:
            line.settimeout(5)
            line.sendall(b'GET /healthz HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
            print('answered' if line.recv(1) else 'closed')
    except ssl.SSLError as error:
        print('refused', error.reason)
    except ConnectionResetError:
        print('refused reset')
"""


@pytest.fixture(scope="module")
def job(guarded_cluster: Cluster) -> Iterator[Job]:
    """A guarded job that runs."""
    with namespace_for(guarded_cluster, __name__) as namespace:
        manifest = ppo("--steps=5000", "--min-step-seconds=0.5", f"--log-dir=/checkpoints/{namespace}")
        job = start(guarded_cluster, namespace, manifest, {"checkpoint": {"stageIntervalSeconds": 2}})
        job.running(limit_s=120)
        yield job


def test_the_service_account_of_a_guarded_pod_may_do_what_any_may_and_no_more(
    guarded_cluster: Cluster, job: Job
) -> None:
    guarded_cluster.kubectl("create", "namespace", f"{job.namespace}-other")
    try:
        name = next(iter(job.pods().values()))["spec"]["serviceAccountName"]

        def rights(namespace: str, account: str) -> list[str]:
            who = f"--as=system:serviceaccount:{namespace}:{account}"
            return sorted(guarded_cluster.kubectl("auth", "can-i", "--list", who, "-n", namespace).splitlines())

        assert rights(job.namespace, name) == rights(f"{job.namespace}-other", "default")
    finally:
        guarded_cluster.kubectl("delete", "namespace", f"{job.namespace}-other", "--wait=false")


def test_the_token_of_the_sidecar_is_worth_nothing_at_the_api_server(job: Job) -> None:
    assert status_of("GET", "/api/v1/nodes", token_of(job)) == 401


def test_a_training_container_finds_no_token_and_no_private_key(job: Job) -> None:
    token = token_of(job).rpartition(".")[2].encode()
    skip = tuple(str(path) for path in images.binds())
    for pod in job.pods():
        script = SEARCH % (token, skip, LARGEST)
        words = ("exec", "-i", pod, "-c", "trainer", "--", "python3", "-")
        looked, found = job.kubectl(*words, stdin=script).split("\n", 1)
        assert int(looked) > 20
        assert found.strip() == ""


def test_the_search_would_find_a_token_that_lay_about(job: Job) -> None:
    token = token_of(job).rpartition(".")[2]
    pod = next(iter(job.pods()))
    job.run(pod, f"open('/rlguard/run/planted', 'w').write('x{token}x')")
    words = ("exec", "-i", pod, "-c", "trainer", "--", "python3", "-")
    script = SEARCH % (token.encode(), tuple(str(path) for path in images.binds()), LARGEST)
    found = job.kubectl(*words, stdin=script).split()[1:]
    job.run(pod, "import os; os.unlink('/rlguard/run/planted')")
    assert found == ["/rlguard/run/planted"]


def test_a_dial_without_certificate_gets_no_answer_of_sidecar_coordinator_and_agent(job: Job) -> None:
    targets = []
    for name, pod in job.pods().items():
        lines = job.run(name, LISTENING, "rlguard-sidecar").splitlines()
        assert [line.split()[0] for line in lines] == [pod["status"]["podIP"]]
        targets += [(pod["status"]["podIP"], int(line.split()[1])) for line in lines]
        targets.append((pod["status"]["hostIP"], AGENT_PORT))
    answers = job.run(f"{job.name}-0", DIAL % (targets,)).splitlines()
    assert len(answers) == len(targets)
    assert "answered" not in answers, list(zip(targets, answers, strict=True))


def test_an_agent_may_write_the_status_of_its_own_node_alone(guarded_cluster: Cluster) -> None:
    pods = guarded_cluster.get("-n", SYSTEM, "pods", "-l", "app.kubernetes.io/component=agent")["items"]
    pod, node = pods[0]["metadata"]["name"], pods[0]["spec"]["nodeName"]
    other = next(item["spec"]["nodeName"] for item in pods if item["spec"]["nodeName"] != node)
    token = guarded_cluster.kubectl("-n", SYSTEM, "exec", pod, "--", "cat", API_TOKEN)
    condition = {"type": "rlguard.io/Probe", "status": "True", "reason": "Test", "message": "a test wrote this"}
    patch = {"status": {"conditions": [condition]}}
    assert status_of("PATCH", f"/api/v1/nodes/{node}/status", token, patch) == 200
    assert status_of("PATCH", f"/api/v1/nodes/{other}/status", token, patch) in {403, 422}
    capacity = {"status": {"capacity": {"nvidia.com/gpu": "16"}}}
    assert status_of("PATCH", f"/api/v1/nodes/{node}/status", token, capacity) in {403, 422}
    assert status_of("PATCH", f"/api/v1/nodes/{node}", token, {"spec": {"unschedulable": True}}) == 403
    assert status_of("DELETE", f"/api/v1/nodes/{node}", token) == 403


def token_of(job: Job) -> str:
    """The token of the leader's sidecar."""
    return job.kubectl("exec", f"{job.name}-0", "-c", "rlguard-sidecar", "--", "cat", TOKEN).strip()


def status_of(method: str, path: str, token: str, body: object = None) -> int:
    """The status code that the API server answers to this token's call."""
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/strategic-merge-patch+json"}
    request = urllib.request.Request(layout.API_URL + path, data, headers, method=method)  # noqa: S310  # https
    context = ssl.create_default_context(cafile=str(layout.PKI / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310  # https
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
