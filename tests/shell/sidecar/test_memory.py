"""What a sidecar's process leaves to the next one, and what it keeps in mind while it lives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from authority import Authority
from fakecontroller import KEY, TIMING

from rlguard.messages import AgentReport, Grant, Want
from rlguard.model import Member, Notice, Repair, Scope, Severity, Verdict, World
from rlguard_sidecar.kept import KeptCredentials
from rlguard_sidecar.notices import Notices
from rlguard_sidecar.remembered import Remembered

LEADER = Member(0, "uid-0", "ppo-0", "node-0", "10.0.0.1")
GRANT = Grant(KEY, 3, "job", LEADER, 4711, World((LEADER,)), 2, None, 20.0, Want.RUN, "", TIMING)
RECLAIM = Notice("spot-1", "spot-reclaim", Severity.FATAL, Scope.NODE, Repair.REPLACE, "reclaimed", 120.0)


class Quiet:
    """A log for nobody."""

    def warning(self, *_args: object, **_fields: object) -> None:
        """Say nothing."""


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def test_the_next_process_has_the_certificate_of_the_one_before(memory: int, authority: Authority) -> None:
    first = KeptCredentials(memory, authority.pem)
    assert first.client_context() is None
    given = authority.credentials("rlguard://pod/team/ppo-0/uid-0")
    first.replace(given)
    second = KeptCredentials(memory, authority.pem)
    assert second.current is not None
    assert second.current.certificate == given.certificate
    assert second.current.key.pem == given.key.pem
    assert second.server_context() is not None


def test_a_shorter_certificate_leaves_nothing_of_a_longer_one(memory: int, authority: Authority) -> None:
    holder = KeptCredentials(memory, authority.pem)
    holder.replace(authority.credentials("rlguard://pod/team/ppo-0/" + "u" * 400))
    short = authority.credentials("rlguard://pod/team/ppo-0/u")
    holder.replace(short)
    again = KeptCredentials(memory, authority.pem).current
    assert again is not None
    assert again.certificate == short.certificate


@pytest.mark.parametrize("left", [b"", b"[", b"[1, 2, 3]", b"{}", b'["a", "b", "c"]', b"\xff"])
def test_half_a_text_is_no_certificate(memory: int, authority: Authority, left: bytes) -> None:
    os.write(memory, left)
    assert KeptCredentials(memory, authority.pem).current is None


def test_a_certificate_of_another_authority_is_not_taken_over(memory: int, authority: Authority) -> None:
    KeptCredentials(memory, authority.pem).replace(authority.credentials("rlguard://controller"))
    assert KeptCredentials(memory, Authority().pem).current is None


def test_the_last_grant_is_remembered_without_the_time_it_left(tmp_path: Path) -> None:
    first = Remembered(tmp_path / "state", Quiet())
    assert first.grant is None
    first.keep(GRANT)
    assert first.grant == GRANT
    assert Remembered(tmp_path / "state", Quiet()).grant == replace(GRANT, save_within=None)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"generation": "3"}'])
def test_a_damaged_memory_is_no_grant(tmp_path: Path, text: str) -> None:
    (tmp_path / "grant.json").write_text(text)
    assert Remembered(tmp_path, Quiet()).grant is None


def test_a_folder_that_cannot_be_written_costs_the_memory_alone(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    remembered = Remembered(tmp_path / "state", Quiet())
    remembered.keep(GRANT)
    assert remembered.grant == GRANT


def test_deadlines_are_counted_down_by_the_own_clock() -> None:
    notices = Notices("uid-0", 30.0)
    notices.agent_said(AgentReport("node-0", "boot", Verdict.LEAVING, (RECLAIM,)), 1000.0)
    notices.end(1010.0)
    reclaim, ending = notices.standing(1015.0)
    assert (reclaim.seconds_left, ending.seconds_left) == (105.0, 25.0)
    assert all(notice.seconds_left == 0.0 for notice in notices.standing(9000.0))


def test_an_agent_that_takes_a_notice_back_is_believed() -> None:
    notices = Notices("uid-0", 30.0)
    notices.agent_said(AgentReport("node-0", "boot", Verdict.LEAVING, (RECLAIM,)), 1000.0)
    notices.agent_said(AgentReport("node-0", "boot", Verdict.HEALTHY, ()), 1001.0)
    assert notices.standing(1002.0) == ()
