"""Lines of NFS and Lustre clients, of local file systems and of disks. Pure."""

from __future__ import annotations

import re
from typing import Final

from rlguard.health.lines.line import NAME, Line, Pattern, first

TELLTALES: Final = (
    "nfs: server",
    "Lock reclaim failed",
    "Lustre",
    "-fs error",
    "emounting filesystem",
    "Aborting journal",
    "XFS (",
    "Disk failure",
    "nvme nvme",
    "I/O error, dev",
)

# fs-MDT0001-mdc-ff11a2b3c4d5e6f7: the target, the kind of client, an address
_TARGET = r"(?<![\w.])(?P<target>[\w.]{1,32}-(?:MDT|OST)[0-9a-fA-F]{4})-(?:mdc|osc)-[\w.-]{1,40}"

_PATTERNS = (
    # nfs: server ease not responding, still trying
    Pattern(
        "nfs-not-responding",
        re.compile(rf"nfs: server (?P<server>{NAME}) not responding, still trying"),
        "nfs/{server}",
    ),
    # nfs: server ease not responding, timed out          (a soft mount: no "OK" ever follows)
    Pattern("nfs-timed-out", re.compile(rf"nfs: server (?P<server>{NAME}) not responding, timed out"), "nfs/{server}"),
    # nfs: server ease OK
    Pattern("nfs-ok", re.compile(rf"nfs: server (?P<server>{NAME}) OK"), "nfs/{server}"),
    # NFS: nfs4_reclaim_open_state: Lock reclaim failed!
    Pattern("nfs-lock-lost", re.compile(r"nfs4_reclaim_(?:open_state|locks): .{0,40}?[Ll]ock reclaim failed"), "nfs"),
    # LustreError: 167-0: fs-MDT0001-mdc-ff11a2b3c4d5e6f7: This client was evicted by fs-MDT0001; in progress
    #   operations ...
    Pattern(
        "lustre-evicted", re.compile(rf"LustreError: .{{0,80}}{_TARGET}: This client was evicted by"), "lustre/{target}"
    ),
    # Lustre: X-MDT0000-mdc-ffff9a3c5e7b0000: Connection to X-MDT0000 (at 10.0.47.232@tcp) was lost; in progress
    #   operations ...
    Pattern(
        "lustre-connection-lost",
        re.compile(rf"Lustre: .{{0,80}}{_TARGET}: Connection to .{{1,80}} was lost"),
        "lustre/{target}",
    ),
    # Lustre: X-MDT0000-mdc-ffff9a3c5e7b0000: Connection restored to 10.0.47.232@tcp (at 10.0.47.232@tcp)
    Pattern("lustre-restored", re.compile(rf"Lustre: .{{0,80}}{_TARGET}: Connection restored to "), "lustre/{target}"),
    # LustreError: 11-0: fs-OST0003-osc-ffff8801: operation obd_ping to node 10.0.0.9@o2ib failed: rc = -107
    Pattern(
        "lustre-request-failed",
        re.compile(rf"LustreError: .{{0,80}}{_TARGET}: operation \w{{1,40}} to node .{{1,64}} failed: rc = -"),
        "lustre/{target}",
    ),
    # EXT4-fs error (device sda9): ext4_lookup:1602: inode #67005: comm docker: deleted inode referenced
    # EXT4-fs error (device dm-4) in ext4_setattr:4562: Journal has aborted
    Pattern("filesystem-error", re.compile(rf"EXT[234]-fs error \(device (?P<disk>{NAME})\)"), "{disk}"),
    # Aborting journal on device dm-4-8.
    Pattern(
        "filesystem-error",
        re.compile(r"Aborting journal on device (?P<disk>[\w.]{1,32}?(?:-[0-9]{1,4})?)-[0-9]{1,6}\."),
        "{disk}",
    ),
    # EXT4-fs (dm-4): Remounting filesystem read-only
    Pattern(
        "filesystem-read-only",
        re.compile(rf"EXT[234]-fs \((?P<disk>{NAME})\): Remounting filesystem read-only"),
        "{disk}",
    ),
    # XFS (dm-0): Corruption of in-memory data detected.  Shutting down filesystem
    # XFS (dm-0): xfs_do_force_shutdown(0x8) called from line 461 of file fs/xfs/xfs_trans.c
    # XFS (dm-0): Filesystem has been shut down due to log error (0x2).
    Pattern(
        "filesystem-shut-down",
        re.compile(
            rf"XFS \((?P<disk>{NAME})\): "
            r"(?:.{0,80}Shutting down filesystem|xfs_do_force_shutdown|Filesystem has been shut down)"
        ),
        "{disk}",
    ),
    # XFS (dm-0): Metadata I/O Error (0x11) detected at xfs_trans_read_buf_map+0x1f0/0x3c0 [xfs] (dm-0).
    Pattern(
        "filesystem-error",
        re.compile(rf"XFS \((?P<disk>{NAME})\): (?i:metadata I/O error|Metadata corruption detected)"),
        "{disk}",
    ),
    # md/raid1:md0: Disk failure on sdb1, disabling device.
    # md/raid1:md0: Disk failure on nvme1n1 detected, failing array
    Pattern(
        "raid-disk-failed",
        re.compile(rf"md/raid[\w]{{0,4}}:(?P<array>{NAME}): Disk failure on (?P<disk>[\w]{{1,32}})"),
        "{array}/{disk}",
    ),
    # nvme nvme1: I/O 23 QID 4 timeout, reset controller
    # nvme nvme1: I/O tag 23 (1017) opcode 0x2 (I/O Cmd) QID 4 timeout, reset controller              (newer)
    Pattern(
        "nvme-reset", re.compile(r"nvme (?P<disk>nvme[0-9]{1,4}): I/O .{1,80} timeout, reset controller"), "{disk}"
    ),
    # nvme nvme1: Removing after probe failure status: -19
    # nvme nvme1: Device not ready; aborting reset, CSTS=0x1
    Pattern(
        "nvme-lost",
        re.compile(r"nvme (?P<disk>nvme[0-9]{1,4}): (?:Removing after probe failure|Device not ready; aborting reset)"),
        "{disk}",
    ),
    # blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0
    # I/O error, dev nvme0n1, sector 123456 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 2
    # Loop, RAM and network block devices, and drives without a medium, say so whenever they are taken away.
    Pattern(
        "disk-error",
        re.compile(r"(?<!Buffer )I/O error, dev (?P<disk>(?:sd|vd|xvd|hd|nvme|dm-|md|mmcblk)[\w-]{1,24}), sector"),
        "{disk}",
    ),
)


def read(text: str) -> Line | None:
    """What a line tells of storage, None if nothing. Never raises."""
    return first(_PATTERNS, text)
