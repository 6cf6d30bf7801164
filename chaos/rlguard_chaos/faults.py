"""Breaking things for real: each fault of the vocabulary, on the lab or on any cluster where it can be done.

Pod faults go through `kubectl exec` and work anywhere. Node faults need hands on the node: the lab has them; on another
cluster the error says what is missing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from rlguard.errors import BadConfigError
from rlguard_chaos.experiment import Fault, Injection
from rlguard_chaos.judge import GroupSeen
from rlguard_chaos.kubectl import Kubectl
from rlguard_chaos.lab import Lab, fakes, ports

KILL_RANK: Final = """
import os, signal, sys
for entry in sorted(os.listdir('/proc'), key=lambda name: int(name) if name.isdigit() else 0):
    try:
        environ = open('/proc/%s/environ' % entry, 'rb').read().split(b'\\0')
    except OSError:
        continue
    if any(item.startswith(b'LOCAL_RANK=') for item in environ) and int(entry) != os.getpid():
        os.kill(int(entry), signal.SIGKILL)
        print('killed rank process', entry)
        sys.exit(0)
sys.exit('no training process with LOCAL_RANK in its environment runs in this container')
"""
"""Runs in the trainer container with the user's own Python."""

KILL_SIDECAR: Final = """
import os, signal, sys
for entry in os.listdir('/proc'):
    try:
        command = open('/proc/%s/cmdline' % entry, 'rb').read().split(b'\\0')
    except OSError:
        continue
    if b'rlguard_sidecar' in command and int(entry) != 1:
        os.kill(int(entry), signal.SIGKILL)
        print('killed sidecar process', entry)
        sys.exit(0)
sys.exit('no sidecar process found')
"""

FINISH_MARGIN: Final = 20
"""Steps from now until the end: every rank must still be before it when it reads the file."""


@dataclass(frozen=True, slots=True)
class Job:
    """What an experiment runs on: a group of a guarded job, and the container its training is in.

    `finish_file`: where (in the trainer container) the script looks for the step to end at.
    """

    name: str
    group: int = 0
    container: str = "trainer"
    finish_file: str = "/checkpoints/ppo-log/finish"


@dataclass(slots=True)
class Hands:
    """Performs injections; remembers the nodes that got a name, and deadlines of notices (Unix seconds)."""

    kubectl: Kubectl
    job: Job
    lab: Lab | None
    names: dict[str, str] = field(default_factory=dict)
    deadline: float | None = None

    async def inject(self, injection: Injection, group: GroupSeen) -> str:
        """Do it, and say in one line what was done. Raises BadConfigError when it cannot be done here."""
        targets = self._targets(injection, group)
        done = [await self._one(injection, target, group) for target in targets]
        if injection.named and targets:
            self.names[injection.named] = group.nodes[self._index(injection)]
        return "; ".join(done) or f"{injection.fault}: nothing to do, no node is {injection.target}"

    def _index(self, injection: Injection) -> int:
        return 0 if injection.target == "leader" else -1

    def _targets(self, injection: Injection, group: GroupSeen) -> list[str]:
        if injection.fault is Fault.FINISH_JOB:
            return [group.pods[0]]
        if injection.target == "avoided":
            return list(group.avoided)
        if injection.target in self.names:
            return [self.names[injection.target]]
        if injection.target not in ("leader", "worker"):
            raise BadConfigError(
                f"{injection.fault}: {injection.target!r} is neither leader, worker, avoided nor a name given before"
            )
        of_node = injection.fault in NODE_FAULTS
        return [(group.nodes if of_node else group.pods)[self._index(injection)]]

    async def _one(self, injection: Injection, target: str, group: GroupSeen) -> str:
        match injection.fault:
            case Fault.KILL_RANK:
                return f"{target}: {await self._exec(target, self.job.container, KILL_RANK)}"
            case Fault.KILL_SIDECAR:
                return f"{target}: {await self._exec(target, 'rlguard-sidecar', KILL_SIDECAR)}"
            case Fault.FINISH_JOB:
                return await self._finish(target, group)
            case _:
                return await asyncio.to_thread(self._node_fault, injection, target)

    async def _exec(self, pod: str, container: str, script: str) -> str:
        return (await self.kubectl.run("exec", pod, "-c", container, "--", "python3", "-c", script)).strip()

    async def _finish(self, pod: str, group: GroupSeen) -> str:
        end = (group.step or 0) + FINISH_MARGIN
        path = self.job.finish_file
        write = f"import os; open({path + '.new'!r}, 'w').write('{end}'); os.replace({path + '.new'!r}, {path!r})"
        await self._exec(pod, self.job.container, write)
        return f"the script was asked to end at step {end}"

    def _node_fault(self, injection: Injection, target: str) -> str:
        if self.lab is None:
            raise BadConfigError(
                f"{injection.fault}: needs hands on node {target}, which only the lab gives; "
                "on this cluster do it by your provider's means and watch with 'kubectl get guard NAME --watch'"
            )
        node = self.lab.node(target)
        match injection.fault:
            case fault if fault in RDMA_FAULTS:
                return _rdma_fault(injection, target)
            case Fault.KERNEL_LINE:
                fakes.write_kernel_line(target, injection.text)
                return f"kernel log of {target}: {injection.text}"
            case Fault.SPOT_NOTICE:
                return self._spot_notice(injection, target)
            case Fault.KILL_NODE:
                node.kill()
                return f"{target}: every process killed"
            case Fault.START_NODE:
                fakes.set_spot_notice(target, None)
                node.start()
                return f"{target}: booted anew"
            case _:
                node.kill()
                node.start()
                return f"{target}: rebooted"

    def _spot_notice(self, injection: Injection, target: str) -> str:
        seconds = injection.seconds or 120.0
        fakes.set_spot_notice(target, seconds)
        self.deadline = time.time() + seconds
        return f"{target}: to be reclaimed in {seconds:.0f} s"


def _rdma_fault(injection: Injection, node: str) -> str:
    root, number = ports.sysfs(node), injection.port
    if injection.fault is Fault.RDMA_GID_LOST:
        ports.lose_address(root, number)
        return f"{node}: RDMA port {number} has lost its IPv4 address"
    up = injection.fault is Fault.RDMA_PORT_UP
    if up and not ports.count(root):
        ports.lay_out(root)
    ports.set_port(root, number, up=up)
    return f"{node}: RDMA port {number} is {'up' if up else 'down'}"


RDMA_FAULTS: Final = frozenset({Fault.RDMA_PORT_DOWN, Fault.RDMA_PORT_UP, Fault.RDMA_GID_LOST})
NODE_FAULTS: Final = RDMA_FAULTS | {
    Fault.KERNEL_LINE,
    Fault.SPOT_NOTICE,
    Fault.KILL_NODE,
    Fault.START_NODE,
    Fault.REBOOT_NODE,
}
