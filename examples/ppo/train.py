"""PPO on CartPole with DistributedDataParallel: what a user's training script looks like with rlguard in it.

Started by torchrun, on any number of nodes. With rlguard in the image's path it survives whatever kills its processes
and goes on bit for bit as if nothing had happened; without, it is a plain PPO loop.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import time
from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    import rlguard.train
except ImportError:
    rlguard = None  # type: ignore[assignment] # the plain loop

GAMMA, LAMBDA, CLIP, ENTROPY, VALUE = 0.99, 0.95, 0.2, 0.01, 0.5
EPOCHS, MINIBATCHES = 4, 4


class Policy(nn.Module):
    """Actor and critic: 4 observations -> 2 action logits and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits (n, 2) and values (n,)."""
        return self.actor(observations), self.critic(observations).squeeze(-1)


class Environments:
    """Several CartPoles of one rank, and everything that decides how they go on."""

    def __init__(self, count: int, seed: int) -> None:
        self.vector = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(count)])
        self.observations, _ = self.vector.reset(seed=[seed + i for i in range(count)])
        self.running = np.zeros(count)  # return of the episode under way
        self.returns: deque[float] = deque(maxlen=20)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Step all; returns rewards and whether each episode ended, both (count,)."""
        self.observations, rewards, terminated, truncated, _ = self.vector.step(actions)
        ended = terminated | truncated
        self.running += rewards
        self.returns.extend(self.running[ended].tolist())
        self.running[ended] = 0.0
        return rewards, ended

    def state_dict(self) -> dict[str, Any]:
        """Take the state of each environment, of its time limit and of its random generator."""
        return {
            "envs": [self._one(env) for env in self.vector.envs],
            "resets": self.vector._autoreset_envs.copy(),  # noqa: SLF001 # gymnasium has no public way to it
            "observations": self.observations.copy(),
            "running": self.running.copy(),
            "returns": list(self.returns),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`; the number of environments must be the same."""
        for env, saved in zip(self.vector.envs, state["envs"], strict=True):
            env.unwrapped.state = saved["state"]
            env.unwrapped.steps_beyond_terminated = saved["beyond"]
            env.unwrapped.np_random.bit_generator.state = saved["random"]
            env._elapsed_steps = saved["elapsed"]  # noqa: SLF001 # the time limit is the outermost wrapper
        self.vector._autoreset_envs = state["resets"].copy()  # noqa: SLF001 # as above
        self.observations = state["observations"].copy()
        self.running = state["running"].copy()
        self.returns = deque(state["returns"], maxlen=20)

    @staticmethod
    def _one(env: Any) -> dict[str, Any]:
        inner = env.unwrapped
        return {
            "state": np.array(inner.state),
            "beyond": inner.steps_beyond_terminated,
            "random": inner.np_random.bit_generator.state,
            "elapsed": env._elapsed_steps,  # noqa: SLF001 # the time limit is the outermost wrapper
        }


class Rollout(NamedTuple):
    """What one rank saw: each (samples, ...)."""

    observations: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


@torch.no_grad()
def collect(policy: nn.Module, envs: Environments, horizon: int) -> Rollout:
    """Play `horizon` steps in each environment."""
    seen: list[tuple[torch.Tensor, ...]] = []
    for _ in range(horizon):
        observations = torch.as_tensor(envs.observations)
        logits, values = policy(observations)
        chance = torch.distributions.Categorical(logits=logits)
        actions = chance.sample()
        rewards, ended = envs.step(actions.numpy())
        outcome = torch.as_tensor(rewards, dtype=torch.float32), torch.as_tensor(ended, dtype=torch.float32)
        seen.append((observations, actions, chance.log_prob(actions), values, *outcome))
    _, last = policy(torch.as_tensor(envs.observations))
    observations, actions, log_probs, values, rewards, ended = (
        torch.stack(column) for column in zip(*seen, strict=True)
    )
    advantages = advantage(rewards, values, ended, last)
    columns = (observations, actions, log_probs, advantages, advantages + values)
    return Rollout(*(column.flatten(0, 1) for column in columns))


def advantage(rewards: torch.Tensor, values: torch.Tensor, ended: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Generalised advantage estimate, (horizon, envs) like its inputs; `last` is the value after the end, (envs,)."""
    result = torch.zeros_like(rewards)
    running = torch.zeros_like(last)
    for t in reversed(range(len(rewards))):
        following = values[t + 1] if t + 1 < len(rewards) else last
        delta = rewards[t] + GAMMA * following * (1 - ended[t]) - values[t]
        running = delta + GAMMA * LAMBDA * (1 - ended[t]) * running
        result[t] = running
    return result


def update(policy: nn.Module, optimizer: torch.optim.Optimizer, rollout: Rollout) -> None:
    """One PPO update; gradients are averaged over all ranks by DistributedDataParallel."""
    samples = len(rollout.actions)
    for _ in range(EPOCHS):
        for picked in torch.randperm(samples).chunk(MINIBATCHES):
            batch = Rollout(*(column[picked] for column in rollout))
            optimizer.zero_grad()
            loss(policy, batch).backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()


def loss(policy: nn.Module, batch: Rollout) -> torch.Tensor:
    """Clipped surrogate, value error and entropy bonus."""
    logits, values = policy(batch.observations)
    chance = torch.distributions.Categorical(logits=logits)
    ratio = (chance.log_prob(batch.actions) - batch.log_probs).exp()
    gain = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    surrogate = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
    error = (values - batch.returns).pow(2).mean()
    return VALUE * error - surrogate - ENTROPY * chance.entropy().mean()


def digest(policy: nn.Module, optimizer: torch.optim.Optimizer, envs: Environments) -> str:
    """Hash everything that decides how this rank would go on."""
    sha = hashlib.sha256()
    for tensor in policy.state_dict().values():
        sha.update(tensor.numpy().tobytes())
    for state in optimizer.state.values():
        for name, value in sorted(state.items()):
            sha.update(name.encode() + value.numpy().tobytes())
    sha.update(torch.get_rng_state().numpy().tobytes())
    sha.update(repr((random.getstate(), np.random.get_state())).encode())  # noqa: NPY002 # the global one is the state
    kept = envs.state_dict()
    for value in (kept["resets"], kept["observations"], kept["running"]):
        sha.update(value.tobytes())
    sha.update(repr([(one["state"].tobytes(), *list(one.values())[1:]) for one in kept["envs"]]).encode())
    return sha.hexdigest()


class StepLog:
    """One JSON line per step and rank, appended: what anyone can count lost steps and gaps from."""

    def __init__(self, folder: Path | None, rank: int, world: int) -> None:
        self._about = {"world": world, "incarnation": os.environ.get("RLGUARD_INCARNATION")}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._path = folder and folder / f"steps-rank{rank}.jsonl"

    def add(self, step: int, mean: float, policy: nn.Module) -> None:
        """Append a finished step, with the mean return of the last episodes and a hash of the weights."""
        if self._path is None:
            return
        sha = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in policy.state_dict().values()))
        line = {"t": time.time(), "step": step, "return": round(mean, 2), **self._about, "sha": sha.hexdigest()[:16]}
        with contextlib.suppress(OSError), self._path.open("a") as file:  # a full disk costs the log, not the run
            file.write(json.dumps(line) + "\n")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="PPO updates in all")
    parser.add_argument("--envs", type=int, default=4, help="environments per rank")
    parser.add_argument("--horizon", type=int, default=128, help="environment steps per update")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--min-step-seconds", type=float, default=0.0, help="no update is faster than this")
    parser.add_argument("--log-dir", type=Path, help="folder of the step logs")
    parser.add_argument("--finish-file", type=Path, help="a file that may name an earlier last step, even later on")
    parser.add_argument("--digest", type=Path, help="where to write each rank's final hash: FILE.rank<R>")
    return parser.parse_args()


def last_step(options: argparse.Namespace) -> int:
    """Return the step to end at; whoever writes the file names one that no rank has reached yet."""
    try:
        return min(options.steps, int(options.finish_file.read_text()))
    except (AttributeError, OSError, ValueError):  # no such option, no file, half a file
        return int(options.steps)


def seed_all(seed: int) -> None:
    """Seed every global generator."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 # the global one is what a program may use unawares
    torch.manual_seed(seed)


def train(options: argparse.Namespace) -> None:
    """Train to the last step, from wherever this start is to go on."""
    rank, world = dist.get_rank(), dist.get_world_size()
    seed_all(options.seed)  # the same weights on every rank
    policy = Policy()
    wrapped = DistributedDataParallel(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=options.lr)
    seed_all(options.seed + 1000 * (rank + 1))
    envs = Environments(options.envs, options.seed + 1000 * (rank + 1))
    counters = {"samples": 0}

    guard, step = None, 0
    if rlguard is None:
        print("running without rlguard", flush=True)
    else:
        guard = rlguard.train.Guard(
            {"model": wrapped, "optimizer": optimizer, "rng": rlguard.train.Rng(), "envs": envs, "counters": counters}
        )
        step = guard.resume()

    log = StepLog(options.log_dir, rank, world)
    while step < last_step(options):
        started = time.monotonic()
        rollout = collect(policy, envs, options.horizon)
        update(wrapped, optimizer, rollout)
        counters["samples"] += len(rollout.actions)
        step += 1
        time.sleep(max(0.0, options.min_step_seconds - (time.monotonic() - started)))
        mean = float(np.mean(envs.returns)) if envs.returns else 0.0
        log.add(step, mean, policy)
        if rank == 0:
            print(f"step {step} return {mean:.1f} samples {counters['samples']} world {world}", flush=True)
        if guard is not None:
            guard.step(step)

    if options.digest is not None:
        options.digest.with_name(f"{options.digest.name}.rank{rank}").write_text(digest(policy, optimizer, envs))
    if guard is not None:
        guard.close()


def main() -> None:
    """Set up, train, take down."""
    torch.set_num_threads(1)  # the order of additions, and so the last bit, must not depend on the machine's load
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    train(parse())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
