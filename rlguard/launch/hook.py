"""The hook in the user's torchrun: gives it the world that was ordered, whatever its own flags say.

It wraps `torch.distributed.launcher.api.elastic_launch`, which every spelling of torchrun passes through, when that
module is imported. A hook on `torch.distributed.run` would miss `python -m`, where it runs as `__main__`.
"""

from __future__ import annotations

import importlib.abc
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_TARGET: Final = "torch.distributed.launcher.api"
_AGENT: Final = "RLGUARD_AGENT_PID"


def install() -> None:
    """Hook this process if it was started by a launcher for a world; else do nothing."""
    if "RLGUARD_WORLD" not in os.environ:
        return
    agent = os.environ.get(_AGENT)
    if agent is None:
        sys.meta_path.insert(0, _Finder())
    elif agent == str(os.getppid()):  # a rank; what it starts, perhaps a torchrun of its own, is its own affair
        from rlguard.launch.processes import die_with  # noqa: PLC0415 # only ranks pay for it

        die_with(os.getppid())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the others would, with a loader that wraps it once loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TARGET:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target) if finder is not self else None
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)  # type: ignore[no-any-return] # a loader like any other

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        wrap(module)


def wrap(module: Any) -> None:
    """Make the module's `elastic_launch` take the ordered world. A module without it is left alone."""
    launch = getattr(module, "elastic_launch", None)
    if launch is None:
        return
    original = launch.__init__

    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        rewrite(config, json.loads(os.environ["RLGUARD_WORLD"]), os.environ.get("RLGUARD_NPROC_PER_NODE"))
        os.environ[_AGENT] = str(os.getpid())
        _announce()
        original(self, config, *args, **kwargs)

    launch.__init__ = init


def rewrite(config: Any, world: dict[str, Any], nproc_per_node: str | None) -> None:
    """Set a `LaunchConfig` to exactly this world: no search for peers, no restart of its own."""
    config.min_nodes = config.max_nodes = int(world["nnodes"])
    config.rdzv_backend = "static"
    address = str(world["master_addr"])
    host = f"[{address}]" if ":" in address else address
    config.rdzv_endpoint = f"{host}:{int(world['master_port'])}"
    config.rdzv_configs = {"rank": int(world["node_rank"]), "timeout": config.rdzv_configs.get("timeout", 900)}
    config.run_id = f"rlguard-{world['incarnation']}"
    config.max_restarts = 0
    if nproc_per_node:
        config.nproc_per_node = int(nproc_per_node)


def _announce() -> None:
    run = os.environ.get("RLGUARD_RUN")
    if not run:
        return
    name = f"hooked-{os.environ.get('RLGUARD_INCARNATION')}"
    temporary = Path(run) / f".{name}.{os.getpid()}"
    try:
        temporary.write_text(str(os.getpid()))
        temporary.replace(Path(run) / name)
    except OSError as error:
        print(f"rlguard: cannot tell the launcher of the hook in {run}: {error}", file=sys.stderr)  # noqa: T201 # no logger here
