"""Names in the checkpoint root."""

from __future__ import annotations

import pytest

from rlguard.checkpoint import names
from rlguard.model import CheckpointId, Incarnation

CHECKPOINT = CheckpointId(Incarnation(3, 2), 120)


def test_every_name_reads_back_as_its_value() -> None:
    tmp = names.TmpName(CHECKPOINT, "0f3c-11", "ab12")
    assert names.parse_claim(names.claim_name(CHECKPOINT.incarnation)) == CHECKPOINT.incarnation
    assert names.parse_record(names.record_name(CHECKPOINT.incarnation)) == CHECKPOINT.incarnation
    assert names.parse_checkpoint(str(CHECKPOINT)) == CHECKPOINT
    assert names.parse_tmp(str(tmp)) == tmp


@pytest.mark.parametrize("name", ["", ".", "03.2.json", "3.2", "3.json", "3.2.json.swp", "-3.2.json", "٣.2.json"])
def test_a_foreign_name_in_the_lineage_is_no_record(name: str) -> None:
    assert names.parse_record(name) is None
    assert names.parse_claim(name.replace(".json", ".claim")) is None


@pytest.mark.parametrize("name", ["", "120", "120@3", "0120@3.2", "120@3.2.old", "@3.2", "120@3.2 ", "lost+found"])
def test_a_foreign_folder_is_no_checkpoint(name: str) -> None:
    assert names.parse_checkpoint(name) is None


@pytest.mark.parametrize("name", ["120@3.2", "120@3.2.uid", "120@3.2.u_d.n", "120@3.2.uid.", "x.uid.nonce"])
def test_a_foreign_folder_is_no_try(name: str) -> None:
    assert names.parse_tmp(name) is None


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "rlguard.json", "../x", "a\0b", "x" * 300])
def test_a_data_file_cannot_lead_elsewhere_or_pose_as_the_manifest(name: str) -> None:
    assert not names.is_data_file(name)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "objects-0.pt"])
def test_what_a_distributed_checkpoint_holds_is_a_data_file(name: str) -> None:
    assert names.is_data_file(name)


@pytest.mark.parametrize("number", [names.MOST + 1, 10**18 - 1])
def test_a_number_that_nobody_can_have_counted_to_is_foreign(number: int) -> None:
    """Counting on from it would make a name that nothing can read."""
    assert names.parse_claim(f"{number}.1.claim") is None
    assert names.parse_record(f"1.{number}.json") is None
    assert names.parse_checkpoint(f"5@{number}.1") is None
    assert names.parse_claim(f"{names.MOST}.{names.MOST}.claim") == Incarnation(names.MOST, names.MOST)
