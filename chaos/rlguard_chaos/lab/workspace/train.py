"""A training job that saves by itself, as a user's own script would: torch DDP on CPU, nothing of rlguard.

Takes the arguments of a DeepSpeed script and prints them. Rank 0 saves `<dir>/step-N.pt` (whole files only); every rank
resumes from the newest one and appends a line for each step to `<dir>/steps-rank<R>.jsonl`.
"""

# ruff: noqa: INP001  # a script of the user, no part of the package
from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 32
BATCH = 8


def parse() -> argparse.Namespace:
    """The arguments; unknown ones are an error, as in most scripts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--deepspeed_config")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--step-seconds", type=float, default=0.2)
    parser.add_argument("--dir", type=Path, default=Path("/checkpoints/tke"))
    return parser.parse_args()


def newest(folder: Path) -> Path | None:
    """The save with the highest step."""
    saves = sorted(folder.glob("step-*.pt"), key=lambda path: int(path.stem.partition("-")[2]))
    return saves[-1] if saves else None


def save(folder: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write one save under a temporary name, then rename it."""
    temporary = folder / f".step-{step}.{os.getpid()}"
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, temporary)
    temporary.rename(folder / f"step-{step}.pt")


def train(arguments: argparse.Namespace) -> None:
    """Train until killed or done."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first, found = 0, newest(arguments.dir)
    if found:
        state = torch.load(found, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    dist.barrier()  # no rank saves before every rank has chosen what to resume from
    with (arguments.dir / f"steps-rank{rank}.jsonl").open("a", buffering=1) as log:
        for step in range(first + 1, arguments.steps + 1):
            began = time.monotonic()
            data = torch.randn(BATCH, WIDTH)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(data), data)
            loss.backward()
            optimizer.step()
            line = {"t": time.time(), "step": step, "argv": sys.argv, "loss": loss.item()}
            line["environment"] = {key: value for key, value in os.environ.items() if key.startswith("RLGUARD_INCARN")}
            log.write(json.dumps(line) + "\n")
            if rank == 0 and step % arguments.save_every == 0:
                save(arguments.dir, step, model, optimizer)
            time.sleep(max(0.0, arguments.step_seconds - (time.monotonic() - began)))


def main() -> None:
    """Run one rank."""
    arguments = parse()
    sys.stdout.write(f"arguments: {sys.argv}\n")
    sys.stdout.flush()
    torch.set_num_threads(1)
    arguments.dir.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    try:
        train(arguments)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
