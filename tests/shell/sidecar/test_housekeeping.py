"""Retention on a real checkpoint root: what goes to trash after a commit, and when it is unlinked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlguard.checkpoint.pruning import TRASH_S
from rlguard.checkpoint.records import Manifest, Record
from rlguard.io.store import Store
from rlguard.io.storeclient import StoreClient
from rlguard.model import CheckpointId, Incarnation, Member, World
from rlguard_sidecar.housekeeping import Housekeeping

OWN, NEXT = Incarnation(1, 1), Incarnation(1, 2)
WORLD = World((Member(0, "uid-0", "ppo-0", "node-0", "127.0.0.1"),))


class Log:
    """Keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, **_fields: object) -> None:
        """Note it."""
        self.said.append(event)

    warning = info


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = Store(tmp_path / "root")
    claim = store.claim_next(1, "uid-0", "nonce")
    store.record(Record(OWN, "job", "uid-0", claim.nonce, WORLD, None))
    for step in (10, 20, 30, 40):
        checkpoint = CheckpointId(OWN, step)
        tmp = store.begin(checkpoint, "uid-0", f"n{step}")
        source = tmp_path / "state"
        source.write_bytes(b"state %d" % step)
        entry = store.put_file(tmp, "state", source)
        store.commit(tmp, Manifest(checkpoint, 1, "job", "uid-0", (entry,), "test"))
    return tmp_path / "root"


@pytest.fixture
async def client(root: Path) -> AsyncIterator[StoreClient]:
    made = StoreClient(root)
    yield made
    await made.close()


def steps(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "steps").iterdir())


async def once(keeper: Housekeeping) -> None:
    keeper.committed(OWN)
    await keeper._once()


async def test_after_a_commit_the_policys_number_stays_and_the_rest_goes_to_trash(
    root: Path, client: StoreClient
) -> None:
    await once(Housekeeping(client, lambda: 3, lambda: 0.0, Log()))
    assert steps(root) == ["20@1.1", "30@1.1", "40@1.1"]
    assert [path.name for path in (root / "trash" / "1.1").iterdir()] == ["10@1.1"]


async def test_trash_is_unlinked_an_hour_after_this_process_first_saw_it(root: Path, client: StoreClient) -> None:
    now = [0.0]
    keeper = Housekeeping(client, lambda: 2, lambda: now[0], Log())
    await once(keeper)
    now[0] = TRASH_S - 1
    await once(keeper)
    assert len(list((root / "trash" / "1.1").iterdir())) == 2
    now[0] = TRASH_S
    await once(keeper)
    assert list((root / "trash" / "1.1").iterdir()) == []


async def test_c7_a_coordinator_with_a_newer_claim_above_it_throws_nothing_away(
    root: Path, client: StoreClient
) -> None:
    Store(root).claim_next(1, "uid-0", "later")
    keeper = Housekeeping(client, lambda: 2, lambda: 0.0, Log())
    keeper.committed(OWN)
    with pytest.raises(Exception, match=r"1\.2"):
        await keeper._once()
    assert len(steps(root)) == 4
