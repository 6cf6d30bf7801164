"""What is to be kept, split in two: tensors that every rank holds alike, and everything else, rank by rank.

Modules and optimizers are taken as replicated (plain or DistributedDataParallel): one rank's tensors stand for all.
Optimizer state is keyed by parameter name, as in `torch.distributed.checkpoint.state_dict`; that module itself is not
used, because it takes an optimizer step to create missing state (torch 2.13), which changes Adam's step count.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import MutableMapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

Tree = dict[str, Any]
"""A nested dict with string keys, as `torch.distributed.checkpoint` flattens it."""


class Rng:
    """The random states of Python, numpy (when imported), torch and its CUDA devices (when used)."""

    def state_dict(self) -> Tree:
        """Take the states."""
        numpy = sys.modules.get("numpy")
        return {
            "python": random.getstate(),
            "numpy": numpy.random.get_state() if numpy else None,
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        }

    def load_state_dict(self, state: Tree) -> None:
        """Put them back; a library without a saved state is left alone."""
        random.setstate(state["python"])
        torch.set_rng_state(state["torch"])
        if state["numpy"] is not None:
            importlib.import_module("numpy").random.set_state(state["numpy"])
        if state["cuda"] is not None and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda"])


class State:
    """The parts a training loop named, each a module, an optimizer, a dict, or anything with a state dict.

    Raises TypeError for anything else, naming it.
    """

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts
        for name, part in parts.items():
            if not isinstance(part, MutableMapping) and not hasattr(part, "load_state_dict"):
                raise TypeError(f"Guard: {name!r} is a {type(part).__name__}: neither a dict nor has it a state_dict")
        self._refuse_sharded()

    def tensors(self) -> Tree:
        """Return the replicated tensors, not copied."""
        found: Tree = {}
        for name, part in self._parts.items():
            if isinstance(part, torch.nn.Module):
                found[name] = {k: v for k, v in _bare(part).state_dict().items() if isinstance(v, torch.Tensor)}
            elif isinstance(part, torch.optim.Optimizer):
                kept = {key: tree for key, tree in self._of_parameters(part, tensors=True).items() if tree}
                found[name] = {"state": kept} if kept else {}
        return {name: tree for name, tree in found.items() if tree}  # DCP would store an empty dict as an object

    def objects(self) -> Tree:
        """Return everything that is not in `tensors`, as it stands: to be saved before training goes on."""
        return {name: self._object(part) for name, part in self._parts.items()}

    def load(self, tensors: Tree, objects: Tree) -> list[str]:
        """Put both back in place; returns the parts that `objects` says nothing about, which stay as they are."""
        fresh = []
        for name, part in self._parts.items():
            saved = objects.get(name)
            if isinstance(part, torch.nn.Module):
                _bare(part).load_state_dict({**tensors.get(name, {}), **(saved or {})})
            elif saved is None:
                fresh.append(name)
            elif isinstance(part, torch.optim.Optimizer):
                self._load_optimizer(part, tensors.get(name, {}).get("state", {}), saved)
            elif isinstance(part, MutableMapping):
                part.clear()
                part.update(saved)
            else:
                part.load_state_dict(saved)
        return fresh

    def common(self, objects: Tree) -> Tree:
        """Return of another rank's objects only what every rank holds alike: not its random or environment states."""
        alike = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, MutableMapping)
        return {
            name: objects[name] for name, part in self._parts.items() if isinstance(part, alike) and name in objects
        }

    def _object(self, part: Any) -> Any:
        if isinstance(part, torch.nn.Module):
            return {k: v for k, v in _bare(part).state_dict().items() if not isinstance(v, torch.Tensor)}
        if isinstance(part, torch.optim.Optimizer):
            names = self._names(part)
            groups = [{**group, "params": [names[p] for p in group["params"]]} for group in part.param_groups]
            on_cpu = {
                (names[p], key)
                for p, state in part.state.items()
                for key, value in state.items()
                if isinstance(value, torch.Tensor) and value.device.type == "cpu"
            }
            return {"groups": groups, "state": self._of_parameters(part, tensors=False), "on_cpu": on_cpu}
        return dict(part) if isinstance(part, MutableMapping) else part.state_dict()

    def _of_parameters(self, optimizer: torch.optim.Optimizer, *, tensors: bool) -> Tree:
        names = self._names(optimizer)
        return {
            names[parameter]: {k: v for k, v in state.items() if isinstance(v, torch.Tensor) is tensors}
            for parameter, state in optimizer.state.items()
        }

    def _load_optimizer(self, optimizer: torch.optim.Optimizer, tensors: Tree, saved: Tree) -> None:
        names = self._names(optimizer)
        if [group["params"] for group in saved["groups"]] != [
            [names[p] for p in group["params"]] for group in optimizer.param_groups
        ]:
            raise ValueError("the optimizer's parameters are not those of the checkpoint")
        # Not through load_state_dict: it casts state to the parameter's type.
        for group, old in zip(optimizer.param_groups, saved["groups"], strict=True):
            group.update({key: value for key, value in old.items() if key != "params"})
        optimizer.state.clear()
        for parameter, name in names.items():
            kept = dict(saved["state"].get(name, {}))
            for key, value in tensors.get(name, {}).items():
                kept[key] = value if (name, key) in saved["on_cpu"] else value.to(parameter.device)
            if kept:
                optimizer.state[parameter] = kept

    def _names(self, optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, str]:
        """Name each parameter as its module does; by its place when no module of ours has it."""
        modules = {name: part for name, part in self._parts.items() if isinstance(part, torch.nn.Module)}
        known = {
            parameter: name if len(modules) == 1 else f"{module}.{name}"
            for module, part in modules.items()
            for name, parameter in _bare(part).named_parameters()
        }
        return {
            parameter: known.get(parameter, f"group{g}.{p}")
            for g, group in enumerate(optimizer.param_groups)
            for p, parameter in enumerate(group["params"])
        }

    def _refuse_sharded(self) -> None:
        for name, part in self._parts.items():
            values = part.parameters() if isinstance(part, torch.nn.Module) else ()
            if any(hasattr(value, "full_tensor") or hasattr(value, "local_shards") for value in values):
                raise TypeError(f"Guard: {name!r} is sharded; only replicated modules (plain or DDP) can be staged")


def _bare(module: torch.nn.Module) -> torch.nn.Module:
    """Take off what DistributedDataParallel and torch.compile put around a module."""
    ddp = isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel))
    wrapped = module.module if ddp else getattr(module, "_orig_mod", None)
    return _bare(wrapped) if isinstance(wrapped, torch.nn.Module) else module
