"""Everything that reads hostile text, each as a target for a fuzzer: bytes in, and nothing may come out but its errors.

A target fails by any other exception, by output without a bound, or by taking long. `make fuzz` runs them with coverage
as a guide; `tests/law/test_fuzz_laws.py` runs each on its seeds and on what hypothesis thinks of.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from rlguard.checkpoint import names
from rlguard.checkpoint.records import Claim, Completed, Manifest, Record
from rlguard.cluster.status import parse_status, status_to_json
from rlguard.errors import BadConfigError, BadWireError
from rlguard.health import conditions, once, storage
from rlguard.health.assess import Memory
from rlguard.health.catalogue import builtin, parse
from rlguard.health.clouds.providers import PROVIDERS, detect
from rlguard.health.clouds.request import Here, Reply, read
from rlguard.health.gpu.snapshot import Snapshot
from rlguard.health.gpu.table import builtin_signs
from rlguard.health.kmsg import RECORD_LIMIT, gather, parse_record
from rlguard.health.lines.dispatch import worth_reading
from rlguard.health.rdma import table as rdma
from rlguard.health.rdma.learned import Expectation
from rlguard.health.rdma.snapshot import PORT_LIMIT, read_snapshot
from rlguard.health.replay import read_log
from rlguard.health.xid import read_xid
from rlguard.messages import AgentReport
from rlguard.model import Incarnation, Repair, Scope, Severity, Verdict
from rlguard.policy import parse_spec
from rlguard.wire import decode, encode, from_json, to_json

DATA: Final = Path(__file__).parent / "data"
CATALOGUE: Final = builtin()
SIGNS: Final = builtin_signs()
PORTS: Final = rdma.builtin()
STORAGE: Final = storage.builtin()
HERE: Final = Here(1_772_337_600.0, 86_400.0, "vm_0")
QUESTIONS: Final = [question for provider in PROVIDERS.values() for question in provider.questions]
WORDS: Final = 16_384
"""Characters of a fault's words: a few times the longest record."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser: `run` raises for what must not happen; `seeds` are inputs that get far into it.

    `is_json`: inputs are JSON, so that flaws of its values get further than flaws of its bytes.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    is_json: bool = False


HOSTILE: Final = (
    *(None, True, -1, 0, 2**63, 10**30, 0.5, 1e308, float("inf"), float("nan"), [], {}, [[]], {"": None}, [None] * 300),
    *("", "\ud800", "\0", "x" * 5000, "9" * 5000, "\u0663", "../x", "[red]", "3.2", "120@3.2", "boot", "quiet:1e999"),
)
"""Values that stand where others are expected."""


def flawed(value: Any, pick: Random) -> Any:
    """A JSON value with one place of it replaced, taken away, or doubled."""
    if isinstance(value, dict) and value and pick.random() < GO_DEEPER:
        key = pick.choice(sorted(value))
        rest = {name: part for name, part in value.items() if name != key}
        return pick.choice((rest, {**value, key: flawed(value[key], pick)}, {**value, key: flawed(value[key], pick)}))
    if isinstance(value, list) and value and pick.random() < GO_DEEPER:
        place = pick.randrange(len(value))
        changed = [*value[:place], flawed(value[place], pick), *value[place + 1 :]]
        return pick.choice((value * 2, value[1:], changed, changed, changed))
    return pick.choice(HOSTILE)


GO_DEEPER: Final = 0.9


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _json(data: bytes) -> Any:
    """The JSON in the bytes; what is none is itself hostile enough, as a string."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return _text(data)


def _as_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def _bounded(facts: Iterable[Any]) -> None:
    for fact in facts:
        assert len(str(fact)) < WORDS, fact


def kernel_line(data: bytes) -> None:
    """A line of the kernel log's text."""
    text = _text(data)
    _bounded(CATALOGUE.read_line(text[:RECORD_LIMIT]))
    read_xid(text)


def kernel_records(data: bytes) -> None:
    """Records of /dev/kmsg, as a reader gets them: here with NUL between."""
    packets = data.split(b"\0")
    for packet in packets:
        parse_record(packet)
    gathered = gather(None, packets, kernel_only=True, about=worth_reading)
    _bounded(fact for text, count in gathered.texts.items() for fact in CATALOGUE.read_line(text, count))
    assert gathered.records <= len(packets)
    _bounded(fact for one in once.kernel_log(packets, CATALOGUE, 1e6).facts for fact in one.told)


def saved_log(data: bytes) -> None:
    """A saved log in any of its forms."""
    for entry in read_log(_text(data).splitlines(keepends=True)):
        _bounded(CATALOGUE.read_line(entry.text, entry.count))


def cloud_answer(data: bytes) -> None:
    """Answers of every provider: the first byte picks the question, the second the status."""
    question = QUESTIONS[(data[0] if data else 0) % len(QUESTIONS)]
    status = (200, 404, 401, 500)[(data[1] if len(data) > 1 else 0) % 4]
    date, _, body = _text(data[2:]).partition("\n")
    for headers in ({"date": date}, {"date": date, "metadata-flavor": "Google"}):
        assert len(str(read(question, Reply(status, body, headers), HERE))) < WORDS
    detect({"sys_vendor": body, "product_name": date, "chassis_asset_tag": body})


def rdma_files(data: bytes) -> None:
    """A snapshot of sysfs: a JSON object, path to text."""
    value = _json(data)
    files = {path: text for path, text in value.items() if isinstance(text, str)} if isinstance(value, dict) else {}
    seen = read_snapshot(files or dict.fromkeys(_text(data).splitlines(), _text(data)))
    assert len(seen.ports) <= PORT_LIMIT
    once.ports(seen, PORTS, Expectation(gid_index=3, ports=8, rate=400.0))


def mount_table(data: bytes) -> None:
    """A mountinfo text, and what a probe answers."""
    mounts = storage.read_all_mounts(_text(data), STORAGE)
    mounts += storage.read_mounts(_text(data), "/pods", ["uid-1"], STORAGE)
    probed = storage.read_reply(data[:100])
    storage.judge([(mount, probed) for mount in mounts], frozenset(), STORAGE)


def gpu_snapshot(data: bytes) -> None:
    """What the NVML process answers."""
    with contextlib.suppress(BadWireError):
        once.gpus(from_json(Snapshot, _json(data)), 100.0, SIGNS)


def guard_spec(data: bytes) -> None:
    """The spec of a Guard, and its status as the API server has it."""
    value = _json(data)
    with contextlib.suppress(BadConfigError):
        parse_spec(value)
    json.dumps(status_to_json(parse_status(value)))


def checkpoint_name(data: bytes) -> None:
    """Names of folders and files below a checkpoint root; what is accepted is spelled in one way alone."""
    name = _text(data)
    for parse_name in (names.parse_incarnation, names.parse_checkpoint):
        assert (found := parse_name(name)) is None or str(found) == name
    assert (claim := names.parse_claim(name)) is None or names.claim_name(claim) == name
    assert (record := names.parse_record(name)) is None or names.record_name(record) == name
    names.parse_tmp(name)
    if names.is_data_file(name):
        assert "/" not in name
        assert name not in ("", ".", "..")


def lineage_record(data: bytes) -> None:
    """Every record that lies beside checkpoints; what was read is written so that it reads the same."""
    value = _json(data)
    claim = partial(Claim.from_json, Incarnation(3, 2))
    for read_record in (Record.from_json, claim, Manifest.from_json, Completed.from_json):
        with contextlib.suppress(BadWireError):
            found = read_record(value)
            assert read_record(json.loads(json.dumps(found.to_json()))) == found


def message(data: bytes) -> None:
    """Messages between the processes, and the agent's memory on its own disk."""
    with contextlib.suppress(BadWireError):
        told = decode(data)
        assert decode(encode(told)) == told
    with contextlib.suppress(BadWireError):
        memory = from_json(Memory, _json(data))
        assert from_json(Memory, json.loads(json.dumps(to_json(memory)))) == memory


def node_object(data: bytes) -> None:
    """A Node as the API server has it."""
    _bounded(conditions.read_node(_json(data)) or ())


def fault_table(data: bytes) -> None:
    """A person's own rows of the fault tables."""
    with contextlib.suppress(BadConfigError):
        parse([], _text(data))


def _lines() -> list[bytes]:
    logs = sorted((DATA / "kernel").glob("*.log"))
    return sorted({line for log in logs for line in log.read_bytes().splitlines() if line})


def _records() -> Iterable[bytes]:
    for number, line in enumerate(_lines()):
        text = line.partition(b"] ")[2] or line
        yield b"4,%d,%d,-;%s\n SUBSYSTEM=pci\n\x004,%d,9,-;%s\n" % (number, number, text, number + 2, text)


def _logs() -> Iterable[bytes]:
    yield from (log.read_bytes()[:4096] for log in sorted((DATA / "kernel").glob("*.log")))
    yield b"kern  :err   : [   12.345678] x\n[Mon May 25 12:34:56 2026] x\nNov 30 12:00:00 host kernel: x\n"
    yield b"2026-05-25T12:34:56+0000 host kernel: message repeated 5 times: [ x]\n"
    yield b"kern: warning: [2026-05-25T12:34:56Z]: x\n"


PLAN: Final = {"NotBefore": "21 Jan 2026 09:00:43 GMT", "NotAfter": "21 Jan 2026 09:17:23 GMT"}
EVENT: Final = {"EventId": "id", "EventStatus": "Scheduled", "EventType": "Preempt", "Resources": ["vm_0"]}
BODIES: Final = (
    '{"action": "terminate", "time": "2026-03-01T04:02:00Z"}',
    '{"noticeTime": "2026-03-01T04:02:00Z"}',
    json.dumps([PLAN | {"Code": "system-reboot", "Description": "x", "EventId": "e-1", "State": "active"}]),
    json.dumps({"DocumentIncarnation": 1, "Events": [EVENT | {"NotBefore": "Sun, 01 Mar 2026 04:02:00 GMT"}]}),
    "TRUE",
    "TERMINATE_ON_HOST_MAINTENANCE",
    "2026-03-01 12:02:00",
    "2026-03-01T04:02:00Z",
)


def _answers() -> Iterable[bytes]:
    for number in range(len(QUESTIONS)):
        yield from (bytes([number, 0]) + b"Sun, 01 Mar 2026 04:00:00 GMT\n" + body.encode() for body in BODIES)


def _machines() -> Iterable[bytes]:
    return (path.read_bytes() for path in sorted((DATA / "rdma" / "machines").glob("*.json")))


GPU: Final = {
    "index": 0,
    "pci": "0000:1b:00",
    "uuid": "GPU-0",
    "ecc": {"corrected": 1, "uncorrected": 1},
    "rows": {"pending": True, "failed": False, "banks_exhausted": 1},
    "heat": {"temperature": 90, "slowdown_at": 87, "watts": 70.0, "reasons": 0xE8},
    "fabric": {"state": 3, "status": 999, "health": 1},
    "links": [True, False],
    "link_errors": 3,
    "action": 1,
    "refused": [{"call": "nvmlDeviceGetTemperature", "code": 15}],
}
SPEC: Final = {
    "elastic": {"minMembers": 2},
    "checkpoint": {"path": "/x", "stageIntervalSeconds": 30, "flushIntervalSeconds": 120.5, "keep": 3},
    "restart": {"attempts": 20, "windowSeconds": 3600, "sameStepLimit": 3, "stallLimitSeconds": 900, "recreations": 10},
    "onGiveUp": "release",
}
MEMBER: Final = {"index": 0, "uid": "u", "pod": "p", "node": "n", "address": "10.0.0.1"}
RECORDS: Final = (
    {"version": 1, "incarnation": "3.2", "job_uid": "j", "leader_uid": "l", "nonce": "n", "world": [MEMBER]}
    | {"parent": "100@3.1"},
    {"version": 1, "leader_uid": "l", "nonce": "n"},
    {"version": 1, "checkpoint": "120@3.2", "job_uid": "j"},
    {"version": 1, "checkpoint": "120@3.2", "world_size": 2, "job_uid": "j", "leader_uid": "l", "written_by": "0.1.0"}
    | {"files": [{"name": "__0_0.distcp", "size": 123, "sha256": "0" * 64}]},
)
NOTICE: Final = {"id": "b/xid-79/0000:9b:00", "code": "xid-79", "detail": "x", "seconds_left": 3.5}
NODE: Final = {
    "metadata": {"name": "n", "deletionTimestamp": "x", "annotations": {"a": "b"}, "labels": {"a": "b"}},
    "spec": {"unschedulable": True, "taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]},
    "status": {"conditions": [{"type": "GPUDeviceLost", "status": "True", "message": "x"}]},
}
ROW: Final = {"code": "mine", "meaning": "m", "severity": "info", "scope": "node", "repair": "none", "source": "s"}


def _messages() -> Iterable[bytes]:
    rated = {"severity": Severity.FATAL.value, "scope": Scope.GPU.value, "repair": Repair.REBOOT.value}
    report = {"node": "n", "boot_id": "b", "verdict": Verdict.LOST.value, "notices": [NOTICE | rated]}
    yield _as_bytes({"type": AgentReport.__name__, **report})
    fault = {"code": "xid-79", "device": "d", "detail": "x", "deadline": 5.0, "clears": "quiet:600"} | rated
    standing = {"fault": fault, "first": 1.0, "last": 2.0, "count": 3, "processes": [7]}
    yield _as_bytes({"boot_id": "b", "position": 3, "gaps": 0, "faults": [standing]})


TARGETS: Final = {
    "kernel-line": Target(kernel_line, _lines),
    "kernel-records": Target(kernel_records, _records),
    "saved-log": Target(saved_log, _logs),
    "cloud-answer": Target(cloud_answer, _answers),
    "rdma-files": Target(rdma_files, _machines, is_json=True),
    "mount-table": Target(
        mount_table,
        lambda: (
            b"36 35 0:99 / /pods/uid-1/volumes/a\\040b rw - nfs4 server:/export rw\n",
            b"36 35 0:9 / /mnt rw shared:1 - fuse.cfs x ro\n",
            b"ok 100 1 100 50\n",
            b"error ESTALE\n",
        ),
    ),
    "gpu-snapshot": Target(gpu_snapshot, lambda: (_as_bytes({"gpus": [GPU], "driver": "550.54.15"}),), is_json=True),
    "guard-spec": Target(
        guard_spec,
        lambda: (_as_bytes(SPEC), _as_bytes({"groups": [{"index": 0, "phase": "Running", "world": [MEMBER]}]})),
        is_json=True,
    ),
    "checkpoint-name": Target(
        checkpoint_name,
        lambda: (b"120@3.2", b"3.2", b"3.2.json", b"3.2.claim", b"120@3.2.uid-1.nonce", b"__0_0.distcp"),
    ),
    "lineage-record": Target(lineage_record, lambda: map(_as_bytes, RECORDS), is_json=True),
    "message": Target(message, _messages, is_json=True),
    "node-object": Target(node_object, lambda: (_as_bytes(NODE),), is_json=True),
    "fault-table": Target(
        fault_table,
        lambda: (_as_bytes({"version": "mine", "rows": [{**ROW, "clears": "quiet:60", "ends": ["x"]}]}),),
        is_json=True,
    ),
}
