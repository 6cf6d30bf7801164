"""The lab that lab tests run on: one for the whole session."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import pytest
from kit import Cluster, install, namespace_for, start

from rlguard_chaos import lab as labs
from rlguard_chaos.lab import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit import Job

NODES = 3
SHARED_MIB = 2048


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
    return labs.Lab() if layout.RECORD.exists() else labs.up(NODES, shared_mib=SHARED_MIB)


@pytest.fixture(scope="module")
def guarded_cluster(machine: None) -> Cluster:  # noqa: ARG001  # a fixture asks for another by its name
    """The lab of three nodes with rlguard installed by helm, mended and installed again where it is not so."""
    cluster = Cluster(labs.up(NODES, shared_mib=SHARED_MIB))
    install(cluster)
    return cluster


@pytest.fixture
def namespace(guarded_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own with the shared volume in it; jobs and checkpoints go with it."""
    with namespace_for(guarded_cluster, request.node.nodeid) as name:
        yield name


@pytest.fixture
def apply(guarded_cluster: Cluster, namespace: str) -> Callable[..., Job]:
    """Create a job in the test's namespace, and first its Guard if a spec is given."""
    return functools.partial(start, guarded_cluster, namespace)
