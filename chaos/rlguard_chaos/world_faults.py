"""What breaks in the simulated world."""

from __future__ import annotations

from functools import partial
from typing import Final

from rlguard.messages import Ranks
from rlguard.model import Notice, Repair, Scope, Severity
from rlguard_chaos.world import SimWorld


def kill_rank(world: SimWorld) -> None:
    """A training process is killed; the others fail or hang."""
    for pod in world.live():
        if pod.state.ranks is Ranks.RUNNING and world.chance(0.6):
            world.kill(pod)
            return


def hang(world: SimWorld) -> None:
    """Ranks stop making steps."""
    pod = world.random.choice(world.live() or [world.controller.pods[0]])
    world.hurt_pod(pod)
    pod.hung = True


def poison(world: SimWorld) -> None:
    """A step that always fails."""
    steps = [pod.step for pod in world.live() if pod.step is not None]
    if steps and world.chance(0.3):
        world.poison = max(steps) + world.random.randint(3, 9)


def crash_sidecar(world: SimWorld) -> None:
    """A sidecar's process dies and is restarted; ranks go on."""
    for pod in world.live():
        if pod.up and world.chance(0.5):
            pod.crash_process(world.random.uniform(0.2, 4.0))


def crash_coordinator(world: SimWorld) -> None:
    """The leader's sidecar process dies."""
    leader = world.controller.pods[0]
    if leader.up and not leader.gone:
        leader.crash_process(world.random.uniform(0.2, 4.0))


def cut_node(world: SimWorld) -> None:
    """A node is cut off from all others and the controller, not from the disk; then it heals."""
    pod = world.random.choice(world.live() or [world.controller.pods[0]])
    node = pod.node
    for other in world.pods:
        if other.alive:
            world.hurt_pod(other)
    world.cut.add(node)
    if world.chance(0.5):
        world.after(world.random.uniform(2.0, 60.0), lambda: world.kill(pod))

    def heal() -> None:
        world.cut.discard(node)
        for zombie in [pod for pod in world.pods if pod.node == node and pod.zombie and not pod.gone]:
            world.after(world.random.uniform(0.0, 5.0), partial(world.end, zombie))

    world.after(world.random.choice((3.0, 8.0, 25.0, 60.0)), heal)


def freeze_coordinator(world: SimWorld) -> None:
    """The leader's sidecar process does nothing for a while, then goes on with what it knew."""
    world.controller.pods[0].frozen_until = world.now + world.random.uniform(3.0, 40.0)


def lose_node(world: SimWorld) -> None:
    """A node is gone with all that is on it, and comes back empty."""
    pod = world.random.choice(world.live() or [world.controller.pods[0]])
    world.lost.add(pod.node)
    for other in [other for other in world.pods if other.node == pod.node and not other.gone]:
        world.end(other)
    world.after(world.random.uniform(30.0, 90.0), lambda: world.lost.discard(pod.node))


def tell_notice(world: SimWorld) -> None:
    """A fatal fault, or a deadline, on a node."""
    pod = world.random.choice(world.live() or [world.controller.pods[0]])
    left = world.random.choice((None, 60.0, 120.0))
    code = "spot-reclaim" if left else "xid-79"
    pod.notices = (Notice(world.name("notice"), code, Severity.FATAL, Scope.NODE, Repair.REPLACE, "", left),)
    world.note_trigger()


def lose_controller(world: SimWorld) -> None:
    """The controller is away for a while."""
    world.controller.switch(up=False)
    world.after(world.random.uniform(5.0, 60.0), lambda: world.controller.switch(up=True))


def fill_disk(world: SimWorld) -> None:
    """Nothing can be written for a while."""
    world.disk.full = True
    world.after(world.random.uniform(3.0, 20.0), lambda: setattr(world.disk, "full", False))


def blind_disk(world: SimWorld) -> None:
    """For a while the listing shows no checkpoints, and ranks die meanwhile."""
    world.disk.blind = True
    kill_rank(world)
    world.after(world.random.uniform(3.0, 20.0), lambda: setattr(world.disk, "blind", False))


def ask_to_save(world: SimWorld) -> None:
    """The controller wants to recreate the group."""
    if world.controller.up and not world.controller.recreating and world.controller.save_until is None:
        world.controller.save_until = world.now + 30.0


FAULTS: Final = (
    kill_rank,
    kill_rank,
    hang,
    poison,
    crash_sidecar,
    crash_coordinator,
    crash_coordinator,
    freeze_coordinator,
    cut_node,
    cut_node,
    lose_node,
    tell_notice,
    tell_notice,
    lose_controller,
    fill_disk,
    blind_disk,
    ask_to_save,
)
"""Each as likely as it stands here often."""
