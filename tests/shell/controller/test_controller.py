"""The whole controller against a fake API server: real TLS, real certificates, real links."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from fakeapi import FakeApi
from waiting import until

from rlguard.cluster import taints
from rlguard.io.identity import request_certificate
from rlguard.io.kube import Kube
from rlguard.io.link import Dialler, Outbox, Target
from rlguard.io.log import configure
from rlguard.io.tls import CONTROLLER, Credentials, Key, client_context
from rlguard.messages import AgentReport, Grant, Message, PodReport, Want
from rlguard.model import GroupKey, Member, Notice, Repair, Scope, Severity, Verdict
from rlguard_controller import lease
from rlguard_controller.controller import Controller
from rlguard_controller.lease import LABEL, Election
from rlguard_controller.links import Links
from rlguard_controller.settings import Settings, read_settings
from rlguard_controller.trust import CA_FILE

HOME = "/api/v1/namespaces/rlguard"
GUARD = "/apis/rlguard.io/v1alpha1/namespaces/ns/guards/job"
LWS = "leaderworkerset.sigs.k8s.io"


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def populate(api: FakeApi) -> None:
    """One guarded job of one pod, a webhook configuration, the controller's own pod."""
    hooks = [{"name": "injector.rlguard.io", "clientConfig": {}}]
    api.put("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/rlguard-injector", {"webhooks": hooks})
    api.put(f"{HOME}/pods/me", {})
    labels = {"rlguard.io/guard": "enabled"}
    template = {"size": 1, "restartPolicy": "None", "workerTemplate": {"metadata": {"labels": labels}}}
    api.put(
        "/apis/leaderworkerset.x-k8s.io/v1/namespaces/ns/leaderworkersets/job",
        {"spec": {"replicas": 1, "leaderWorkerTemplate": template}},
    )
    names = {f"{LWS}/name": "job", f"{LWS}/group-index": "0", f"{LWS}/worker-index": "0", **labels}
    meta = {"uid": "p1", "labels": names, "annotations": {"rlguard.io/injected": "x", "rlguard.io/avoid": ""}}
    api.put("/api/v1/namespaces/ns/pods/job-0", {"metadata": meta, "spec": {"nodeName": "a"}})
    api.put("/api/v1/nodes/a", {"spec": {}})


def settings_for(port: int, **more: str) -> Settings:
    """The controller's settings, as the chart gives them."""
    return read_settings(
        {
            "POD_NAMESPACE": "rlguard",
            "POD_NAME": "me",
            "RLGUARD_IMAGE": "rlguard:test",
            "RLGUARD_AGENT_ACCOUNT": "rlguard/rlguard-agent",
            "RLGUARD_PORT": str(port),
            "RLGUARD_ADDRESS": f"127.0.0.1:{port}",
            **more,
        }
    )


@pytest.fixture
async def port(api: FakeApi, request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """The port of a running controller; its parameter: more of its environment."""
    populate(api)
    port = free_port()
    running = asyncio.create_task(
        Controller(settings_for(port, **getattr(request, "param", {})), configure("test"), api.access).run()
    )
    await until(lambda: "rlguard.io/leader" in api.objects[f"{HOME}/pods/me"]["metadata"].get("labels", {}))
    yield port
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def authority(api: FakeApi) -> bytes:
    """What agents and pods are given to trust."""
    return str(api.objects[f"{HOME}/configmaps/rlguard-authority"]["data"][CA_FILE]).encode()


def report(uid: str = "p1") -> PodReport:
    """What the only pod says."""
    member = Member(0, uid, "job-0", "a", "127.0.0.1")
    return PodReport(
        key=GroupKey("ns", "job", 0),
        member=member,
        port=4000,
        root_state="ok",
        disk_generation=3,
        completed=False,
        hears_coordinator=True,
        notices=(),
        terminating=False,
        untouched=False,
        group=None,
    )


class Sidecar:
    """A link to the controller in the name of a token; `path` is another one for an agent."""

    def __init__(self, port: int, context: ssl.SSLContext, path: str = "/v1/pod") -> None:
        self.grants: list[Grant] = []
        self.outbox = Outbox()
        target = Target(f"https://127.0.0.1:{port}{path}", CONTROLLER)
        self.dialler = Dialler(lambda: target, lambda: context, self.outbox, self._take)
        self.task = asyncio.create_task(self.dialler.run())

    def _take(self, message: Message) -> None:
        if isinstance(message, Grant):
            self.grants.append(message)


async def dial(api: FakeApi, port: int, folder: Path, token: str, path: str = "/v1/pod") -> Sidecar:
    """A sidecar with a certificate of its own."""
    (folder / "token").write_text(token)
    key = Key.generate()
    certificate = await request_certificate(f"127.0.0.1:{port}", folder / "token", authority(api), key)
    return Sidecar(port, client_context(Credentials(certificate, key, authority(api))), path)


async def test_a_pod_that_reports_gets_its_generation_and_its_world(api: FakeApi, port: int, tmp_path: Path) -> None:
    sidecar = await dial(api, port, tmp_path, "ns/default/job-0/p1/a")
    sidecar.outbox.publish(report())
    await until(lambda: sidecar.grants and sidecar.grants[-1].world)
    grant = sidecar.grants[-1]
    assert (grant.generation, grant.world_number, grant.want) == (4, 1, Want.RUN)
    stored = api.objects[GUARD]
    assert stored["status"]["groups"][0]["leaderUID"] == "p1"
    assert stored["metadata"]["ownerReferences"][0]["kind"] == "LeaderWorkerSet"
    await until(lambda: any(path.endswith("/events") for _, path, _ in api.calls))
    sidecar.task.cancel()


@pytest.mark.parametrize("port", [{"RLGUARD_TAINTS": "on"}], indirect=True)
async def test_what_an_agent_says_puts_the_taint_on_its_node_and_takes_it_off(
    api: FakeApi, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taints, "SETTLE", 0.0)
    agent = await dial(api, port, tmp_path, "rlguard/rlguard-agent/agent-x/u/a", "/v1/agent")
    fault = Notice("i", "xid-79", Severity.FATAL, Scope.GPU, Repair.REBOOT, "fallen off the bus")
    agent.outbox.publish(AgentReport("a", "boot-1", Verdict.LOST, (fault,)))
    await until(lambda: tainted(api) == [{"key": "rlguard.io/unhealthy", "value": "xid-79", "effect": "NoSchedule"}])
    agent.outbox.publish(AgentReport("a", "boot-2", Verdict.HEALTHY, ()))
    await until(lambda: not tainted(api))
    agent.task.cancel()


def tainted(api: FakeApi) -> list[dict[str, str]]:
    """The taints of the only node."""
    return list(api.objects["/api/v1/nodes/a"]["spec"].get("taints", []))


async def test_a_pod_cannot_speak_for_another(
    api: FakeApi, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    original = Links._heard_pod

    def heard(links: Links, identity: str, message: Message) -> None:
        original(links, identity, message)
        refused.append(links.refused)

    monkeypatch.setattr(Links, "_heard_pod", heard)
    liar = await dial(api, port, tmp_path, "ns/default/other/p9/a")
    liar.outbox.publish(report())
    await until(lambda: refused)
    assert refused[0] == 1
    await until(lambda: "status" in api.objects.get(GUARD, {}))
    assert api.objects[GUARD]["status"]["groups"][0].get("generation", 0) == 0
    liar.task.cancel()


async def test_written_grants_are_told_while_the_api_server_is_away(api: FakeApi, port: int, tmp_path: Path) -> None:
    sidecar = await dial(api, port, tmp_path, "ns/default/job-0/p1/a")
    sidecar.outbox.publish(report())
    await until(lambda: sidecar.grants and sidecar.grants[-1].world)
    api.down = True
    sidecar.task.cancel()
    again = Sidecar(port, sidecar.dialler._context())  # type: ignore[arg-type]
    again.outbox.publish(report())
    await until(lambda: again.grants)
    assert again.grants[-1].world is not None
    again.task.cancel()


async def test_the_api_server_is_given_the_bundle_to_trust_the_injector(api: FakeApi, port: int) -> None:
    assert port
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/rlguard-injector"
    await until(lambda: "caBundle" in api.objects[path]["webhooks"][0]["clientConfig"])


async def test_of_two_candidates_one_leads_and_the_other_follows_after_it(api: FakeApi, kube: Kube) -> None:
    api.put(f"{HOME}/pods/one", {})
    api.put(f"{HOME}/pods/two", {})
    clock = [0.0]
    turns: list[str] = []

    async def lead(name: str) -> None:
        turns.append(name)
        await asyncio.Event().wait()

    one = Election(kube, "rlguard", "one", lambda: clock[0], configure("test"))
    two = Election(kube, "rlguard", "two", lambda: clock[0], configure("test"))
    first = asyncio.create_task(one.run(lambda: lead("one")))
    await until(one.holding)
    assert not await two._try()
    clock[0] += 60
    assert not one.holding(), "a leader that has not renewed for so long must not act"
    await until(one.holding)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    assert await two._try(), "a Lease that was released is free at once"
    assert turns == ["one"]
    assert LABEL not in api.objects[f"{HOME}/pods/one"]["metadata"].get("labels", {})


async def test_a_lease_that_nobody_renews_is_taken_after_its_duration(api: FakeApi, kube: Kube) -> None:
    spec = {"holderIdentity": "gone", "leaseTransitions": 1}
    api.put("/apis/coordination.k8s.io/v1/namespaces/rlguard/leases/rlguard-controller", {"spec": spec})
    clock = [0.0]
    two = Election(kube, "rlguard", "two", lambda: clock[0], configure("test"))
    assert not await two._try()
    clock[0] = 9.0
    assert not await two._try()
    clock[0] = 11.0
    assert await two._try()


async def test_a_turn_that_does_not_end_ends_the_process(
    api: FakeApi, kube: Kube, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api.put(f"{HOME}/pods/one", {})
    monkeypatch.setattr(lease, "END_WITHIN", 0.1)
    given_up, over = asyncio.Event(), asyncio.Event()

    async def deaf() -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    one = Election(kube, "rlguard", "one", lambda: 0.0, configure("test"), given_up.set)
    task = asyncio.create_task(one.run(deaf))
    await until(one.holding)
    task.cancel()
    await asyncio.wait_for(given_up.wait(), 5)
    over.set()
    await asyncio.gather(task, return_exceptions=True)
    assert "deaf" in capsys.readouterr().err
