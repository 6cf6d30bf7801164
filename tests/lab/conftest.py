"""The lab that lab tests run on: one for the whole session."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from kit import Cluster, Job, create_namespace, delete_namespace, eventually, install

from rlguard_chaos import lab as labs
from rlguard_chaos.lab import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NODES = 3


@pytest.fixture(scope="session")
def machine() -> Iterator[None]:
    """A machine without a lab; with RLGUARD_LAB_REUSE=1 the one that runs is left, before and after."""
    reuse = os.environ.get("RLGUARD_LAB_REUSE") == "1"
    if not reuse:
        labs.down()
    yield
    if not reuse:
        labs.down()


@pytest.fixture
def lab(machine: None) -> labs.Lab:  # noqa: ARG001  # a fixture asks for another by its name
    """A running lab of three nodes, started for the first test that needs it and for one that follows a removal."""
    return labs.Lab() if layout.RECORD.exists() else labs.up(NODES)


@pytest.fixture(scope="module")
def guarded_cluster(machine: None) -> Cluster:  # noqa: ARG001  # a fixture asks for another by its name
    """The lab of three nodes with rlguard installed by helm, mended and installed again where it is not so."""
    cluster = Cluster(labs.up(NODES))
    install(cluster)
    return cluster


@pytest.fixture
def namespace(guarded_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own with the shared volume in it; jobs and checkpoints go with it."""
    name = f"t{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:6]}"
    delete_namespace(guarded_cluster, name)
    eventually(lambda: guarded_cluster.call("get", "namespace", name).returncode)
    create_namespace(guarded_cluster, name)
    yield name
    delete_namespace(guarded_cluster, name)


@pytest.fixture
def apply(guarded_cluster: Cluster, namespace: str) -> Callable[..., Job]:
    """Create a job, and first its Guard if a spec is given."""

    def apply(manifest: dict[str, Any], guard: dict[str, Any] | None = None) -> Job:
        name = manifest["metadata"]["name"]
        job = Job(guarded_cluster, namespace, name)
        if guard is not None:
            head = {"apiVersion": "rlguard.io/v1alpha1", "kind": "Guard", "metadata": {"name": name}}
            job.kubectl("apply", "-f", "-", stdin=json.dumps({**head, "spec": guard}))
        job.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        return job

    return apply
