"""The shared file systems of a node, as the mount table and statfs tell them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.errors import BadConfigError
from rlguard.health.storage import (
    MOST_MOUNTS,
    Hung,
    Mount,
    NotProbed,
    Probed,
    Refused,
    Space,
    builtin,
    judge,
    parse_table,
    read_mounts,
    read_reply,
)
from rlguard.model import Repair, Scope, Severity

TABLE = builtin()
FOLDER = "/var/lib/kubelet/pods"
ROOMY = Space(1000, 500, 1000, 500)
CFS = Mount("0:52", "nfs4", "10.0.0.9:/cfs", (f"{FOLDER}/uid-1/v",), ("uid-1",), writable=True)
TEXT = f"""\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
90 22 0:52 / {FOLDER}/uid-1/volumes/kubernetes.io~nfs/data rw,relatime shared:9 - nfs4 10.0.0.9:/cfs rw,vers=4.0,hard
91 22 0:52 /sub {FOLDER}/uid-2/volume-subpaths/data/main/0 ro,relatime shared:9 - nfs4 10.0.0.9:/cfs rw,vers=4.0
92 22 0:53 / {FOLDER}/uid-1/volumes/kubernetes.io~csi/turbo\\040one/mount rw - lustre 10.0.0.1@tcp:/fs ro,flock
93 22 0:54 / {FOLDER}/uid-3/volumes/kubernetes.io~csi/other/mount rw - fuse.goosefs goosefs rw
94 22 0:55 / {FOLDER}/uid-1/volumes/kubernetes.io~empty-dir/shm rw - tmpfs tmpfs rw
95 22 0:56 / /mnt/of-the-host rw - nfs4 10.0.0.9:/other rw
96 22 254:2 / {FOLDER}/uid-1/volumes/kubernetes.io~csi/disk/mount rw - ext4 /dev/vdb rw
half a line
"""


def mounts(*pods: str, text: str = TEXT) -> tuple[Mount, ...]:
    return read_mounts(text, FOLDER, pods, TABLE)


def codes(probed: Probed, mount: Mount = CFS, before: frozenset[str] = frozenset()) -> list[str]:
    return [fault.code for fault in judge([(mount, probed)], before, TABLE).faults]


def test_only_shared_file_systems_of_guarded_pods_count() -> None:
    assert [mount.source for mount in mounts("uid-1")] == ["10.0.0.9:/cfs", "10.0.0.1@tcp:/fs"]
    assert [mount.kind for mount in mounts("uid-3")] == ["fuse.goosefs"]
    assert mounts() == ()


def test_a_file_system_that_several_pods_have_is_one() -> None:
    (cfs, _) = mounts("uid-1", "uid-2")
    assert (cfs.device, cfs.pods, cfs.writable) == ("0:52", ("uid-1", "uid-2"), True)
    assert len(cfs.points) == 2


def test_a_blank_in_a_path_is_read_and_the_super_block_says_whether_it_is_read_only() -> None:
    (_, turbo) = mounts("uid-1")
    assert turbo.points == (f"{FOLDER}/uid-1/volumes/kubernetes.io~csi/turbo one/mount",)
    assert not turbo.writable


def test_a_file_system_with_room_has_nothing_wrong() -> None:
    assert codes(ROOMY) == []


def test_a_hung_file_system_is_a_warning_that_mends_nothing() -> None:
    (fault,) = judge([(CFS, Hung())], frozenset(), TABLE).faults
    assert (fault.code, fault.device, fault.severity) == ("storage-hung", "10.0.0.9:/cfs", Severity.WARNING)
    assert (fault.scope, fault.repair, fault.deadline) == (Scope.NODE, Repair.NONE, None)
    assert "uid-1" in fault.detail


@pytest.mark.parametrize("error", ["ESTALE", "ENOTCONN", "EIO"])
def test_a_file_system_without_connection_is_gone(error: str) -> None:
    assert codes(Refused(error)) == ["storage-gone"]


@pytest.mark.parametrize(
    ("space", "full"),
    [
        (Space(1000, 20, 1000, 500), False),
        (Space(1000, 19, 1000, 500), True),
        (Space(1000, 500, 1000, 19), True),
        (Space(1000, 500, 0, 0), False),  # inodes are not counted
        (Space(0, 0, 0, 0), False),  # nothing is
    ],
)
def test_a_file_system_is_full_of_bytes_or_of_files(space: Space, full: bool) -> None:
    assert codes(space) == (["storage-full"] if full else [])


def test_read_only_is_wrong_only_where_it_was_writable() -> None:
    turned = Mount(CFS.device, CFS.kind, CFS.source, CFS.points, CFS.pods, writable=False)
    assert codes(ROOMY, turned) == []
    known = judge([(CFS, ROOMY)], frozenset(), TABLE).writable
    assert codes(ROOMY, turned, known) == ["storage-read-only"]
    still = judge([(turned, ROOMY)], known, TABLE).writable
    assert codes(ROOMY, turned, still) == ["storage-read-only"]
    assert judge([], still, TABLE).writable == frozenset()


@pytest.mark.parametrize("probed", [NotProbed("its probe failed"), Refused("EACCES")])
def test_a_probe_that_failed_says_nothing_about_the_file_system(probed: Probed) -> None:
    judged = judge([(CFS, probed)], frozenset(), TABLE)
    assert judged.faults == ()
    assert judged.unseen[0].startswith("10.0.0.9:/cfs: ")


def test_a_place_that_was_unmounted_a_moment_ago_is_neither_wrong_nor_unseen() -> None:
    judged = judge([(CFS, Refused("ENOENT"))], frozenset(), TABLE)
    assert (judged.faults, judged.unseen) == ((), ())


def test_two_mounts_of_one_source_tell_the_same_fault_once() -> None:
    twin = Mount("0:99", CFS.kind, CFS.source, CFS.points, CFS.pods, writable=True)
    assert len(judge([(CFS, Hung()), (twin, Hung())], frozenset(), TABLE).faults) == 1


@pytest.mark.parametrize(
    ("line", "probed"),
    [
        (b"ok 1 2 3 4\n", Space(1, 2, 3, 4)),
        (b"error ESTALE\n", Refused("ESTALE")),
    ],
)
def test_a_probe_s_line_is_read(line: bytes, probed: Probed) -> None:
    assert read_reply(line) == probed


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"ok 1 2 3\n", b"ok 1 2 3 -4\n", b"ok 1 2 3 4 5\n", b"\xff\xff", b"no 1 2 3 4"]
)
def test_what_is_no_line_of_a_probe_is_no_answer(line: bytes) -> None:
    assert isinstance(read_reply(line), NotProbed)


@given(st.binary(max_size=200))
def test_no_line_makes_the_reader_fail(line: bytes) -> None:
    read_reply(line)


WORDS = st.sampled_from(
    ["0:52", "0:53", f"{FOLDER}/uid-1/v", f"{FOLDER}/uid-1", "nfs4", "-", "rw", "ro", "10.0.0.9:/c", "\\040", "\\999"]
)


@given(
    st.lists(st.lists(WORDS | st.text(max_size=5), max_size=12).map(" ".join), max_size=8).map("\n".join) | st.text()
)
def test_no_table_makes_the_reader_fail(text: str) -> None:
    for mount in mounts("uid-1", text=text):
        assert "uid-1" in mount.pods
        assert len(mount.source) <= 96


def test_a_table_without_end_is_read_to_a_limit() -> None:
    lines = (f"9 2 0:{number} / {FOLDER}/uid-1/v{number} rw - nfs4 h:/{number} rw" for number in range(2000))
    assert len(mounts("uid-1", text="\n".join(lines))) == MOST_MOUNTS


SPACES = st.integers(0, 1 << 64)


@given(st.builds(Space, SPACES, SPACES, SPACES, SPACES) | st.builds(Refused, st.text(max_size=9)) | st.just(Hung()))
def test_no_answer_of_a_file_system_condemns_the_node(probed: Probed) -> None:
    for fault in judge([(CFS, probed)], frozenset({"0:52"}), TABLE).faults:
        assert fault.severity is Severity.WARNING
        assert fault.deadline is None


def test_each_row_says_its_source_and_what_ends_it() -> None:
    assert set(TABLE.rows) == {"storage-hung", "storage-gone", "storage-full", "storage-read-only"}
    assert all(row.source and row.clears and row.meaning for row in TABLE.rows.values())


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1, "rows": [{}]}'])
def test_a_table_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadConfigError):
        parse_table(text)
