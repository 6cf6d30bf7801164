"""The lab's texts: names, metadata, DNS, LWS webhooks, the command line."""

from __future__ import annotations

import json
import tarfile
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from rlguard.errors import BadConfigError
from rlguard_chaos.__main__ import main
from rlguard_chaos.lab import binaries, control, edge, fakes, images, layout, nodefiles

if TYPE_CHECKING:
    from pathlib import Path

HOOKS = """
kind: MutatingWebhookConfiguration
metadata:
  name: mutating-webhook-configuration
webhooks:
- clientConfig:
    service:
      name: webhook-service
      namespace: system
      path: /mutate--v1-pod
  name: mpod.kb.io
"""


@pytest.mark.parametrize("name", ["node", "node-1", "node123", "n0", "../x", ""])
def test_a_name_no_node_can_have_is_refused(name: str) -> None:
    with pytest.raises(BadConfigError, match="nodes are called node0"):
        layout.node_index(name)


def test_a_node_has_its_own_address_and_its_pods_its_own_range() -> None:
    assert layout.node_address("node2") == "10.77.3.1"
    part = nodefiles.network_plugin("node2")["plugins"][0]["ipam"]["ranges"][0][0]
    assert (part["rangeStart"], part["gateway"]) == ("10.77.3.10", "10.77.3.1")


def test_no_notice_is_404_and_a_notice_is_a_time_in_utc_plus_8() -> None:
    assert edge.answer(edge.TERMINATION, {})[0] == HTTPStatus.NOT_FOUND
    told = edge.answer(edge.TERMINATION, {"termination_time": "2018-08-18 12:05:33"})
    assert told == (HTTPStatus.OK, "2018-08-18 12:05:33")
    assert edge.answer("/latest/meta-data/", {})[0] == HTTPStatus.NOT_FOUND


def test_only_the_clusters_name_server_knows_the_cluster() -> None:
    cluster, everyone = control.corefile().split("\n.:53", 1)
    assert layout.NODE_DNS not in cluster
    assert "kubernetes" not in everyone
    assert "metadata.tencentyun.com" in everyone
    assert "NXDOMAIN" in everyone


def test_the_lws_webhooks_call_the_labs_process_for_lws_pods_alone() -> None:
    (hook,) = control.lws_webhooks(HOOKS, b"authority")
    (webhook,) = hook["webhooks"]
    assert webhook["clientConfig"]["url"] == f"https://127.0.0.1:{layout.LWS_WEBHOOK_PORT}/mutate--v1-pod"
    assert "service" not in webhook["clientConfig"]
    assert webhook["objectSelector"]["matchExpressions"][0]["key"] == "leaderworkerset.sigs.k8s.io/name"


def test_production_timers_leave_the_kubelets_defaults_alone() -> None:
    assert "nodeStatusUpdateFrequency" in nodefiles.kubelet("node0", production_timers=False)
    assert "nodeStatusUpdateFrequency" not in nodefiles.kubelet("node0", production_timers=True)


def test_a_folder_that_lacks_programs_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "etcd").touch()
    with pytest.raises(BadConfigError, match=r"lacks pause, containerd.*kubelet"):
        binaries.provide(str(tmp_path))


def test_a_wish_for_no_nodes_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "up", "--nodes", "0"]) == 2
    assert capsys.readouterr().err.startswith("rlguard: ")


def test_images_differ_in_their_search_path_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "IMAGE_ARCHIVE", tmp_path / "images.tar")
    monkeypatch.setenv("RLGUARD_LAB_USER_VENV", str(layout.product_environment()))
    (tmp_path / "pause").write_bytes(b"program")
    images.write_archive(tmp_path / "pause")
    with tarfile.open(layout.IMAGE_ARCHIVE) as tar:
        texts = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        read = {name: file.read() for name, file in texts.items() if file}
    manifest = {entry["RepoTags"][0]: entry for entry in json.loads(read["manifest.json"])}
    assert set(manifest) == {
        "registry.k8s.io/pause:3.10",
        "docker.io/rlguard/rlguard:dev",
        "docker.io/rlguard/trainer:dev",
        "nvcr.io/nvidia/pytorch:24.04-py3",
    }
    for entry in manifest.values():
        assert json.loads(read[entry["Config"]])["config"]["Env"][0].startswith("PATH=/")
        assert all(layer in read for layer in entry["Layers"])


def test_a_new_boot_id_differs_and_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "STATE", tmp_path)
    fakes.prepare("node0")
    file = layout.node_fakes("node0") / "boot_id"
    before, inode = file.read_text(), file.stat().st_ino
    assert fakes.set_boot_id("node0") != before.strip()
    assert file.stat().st_ino == inode


def test_a_schema_loses_its_prose_and_keeps_a_property_of_that_name() -> None:
    schema = {"description": "prose", "properties": {"description": {"type": "string", "description": "prose"}}}
    assert binaries.without_descriptions([schema]) == [{"properties": {"description": {"type": "string"}}}]
