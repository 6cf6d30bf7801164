"""The hook gives any spelling of torchrun the ordered world, and is not there when there is none."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlguard.launch import hook, install

REPO = Path(__file__).resolve().parents[3]
WORLD = '{"nnodes": 2, "node_rank": 1, "master_addr": "10.77.1.10", "master_port": 43211, "incarnation": "3.2"}'
LAUNCH = (
    "from torch.distributed.launcher.api import elastic_launch, Config; c = Config(); elastic_launch(c, 'x', extra=1)"
)
API = """
class Config:
    def __init__(self):
        self.min_nodes, self.max_nodes, self.nproc_per_node, self.max_restarts = 1, 4, 8, 3
        self.rdzv_backend, self.rdzv_endpoint, self.run_id = 'c10d', 'nowhere:29500', 'none'
        self.rdzv_configs = {'timeout': 900, 'join_timeout': 5}
class elastic_launch:
    def __init__(self, config, entrypoint, extra=None):
        print(sorted(vars(config).items()), entrypoint, extra)
"""


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install as the init container does."""
    target = tmp_path_factory.mktemp("lib")
    install.install(REPO / "rlguard", target)
    return target


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Make the user's site: a torch reduced to what the hook looks at."""
    package = tmp_path / "site" / "torch" / "distributed" / "launcher"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "api.py").write_text(API)
    return tmp_path / "site"


def run(program: str, lib: Path, site: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a launcher's child would."""
    path = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{lib}:{site}"}
    return subprocess.run(
        [sys.executable, "-c", program], env={**path, **environment}, capture_output=True, text=True, check=False
    )


def test_the_config_becomes_the_ordered_world(lib: Path, site: Path, tmp_path: Path) -> None:
    """Whatever the command asked for; the launcher is told who the agent is."""
    environment = {"RLGUARD_WORLD": WORLD, "RLGUARD_RUN": str(tmp_path), "RLGUARD_INCARNATION": "3.2"}
    result = run(f"import os; {LAUNCH}; print(os.getpid())", lib, site, **environment)
    *_, shown, pid = result.stdout.splitlines()
    assert shown == str(
        [
            ("max_nodes", 2),
            ("max_restarts", 0),
            ("min_nodes", 2),
            ("nproc_per_node", 8),
            ("rdzv_backend", "static"),
            ("rdzv_configs", {"rank": 1, "timeout": 900}),
            ("rdzv_endpoint", "10.77.1.10:43211"),
            ("run_id", "rlguard-3.2"),
        ]
    ) + (" x 1")
    assert (tmp_path / "hooked-3.2").read_text() == pid
    assert result.stderr == ""


def test_without_a_world_nothing_of_ours_is_loaded(lib: Path, site: Path) -> None:
    """Harmless and silent."""
    result = run(f"import sys; {LAUNCH}; print('rlguard' in sys.modules)", lib, site)
    assert "'c10d'" in result.stdout
    assert result.stdout.endswith("False\n")
    assert result.stderr == ""


def test_a_torchrun_inside_a_rank_is_its_own_affair(lib: Path, site: Path) -> None:
    """Two jobs must not share a port."""
    result = run(LAUNCH, lib, site, RLGUARD_WORLD=WORLD, RLGUARD_AGENT_PID="1")
    assert "'c10d'" in result.stdout


def test_a_rank_dies_with_its_agent(lib: Path, site: Path) -> None:
    """Stock torchrun, killed, leaves its ranks running."""
    agent = (
        "import os, subprocess, sys\n"
        "environment = {**os.environ, 'RLGUARD_AGENT_PID': str(os.getpid())}\n"
        "rank = subprocess.Popen([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)'],\n"
        "    env=environment, stdout=subprocess.PIPE)\n"
        "rank.stdout.readline(); print(rank.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    pid = int(run(agent, lib, site, RLGUARD_WORLD=WORLD).stdout)
    pidfd = _pidfd(pid)
    if pidfd is not None:
        assert select.select([pidfd], [], [], 10)[0]


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


@pytest.mark.parametrize("environment", [{}, {"RLGUARD_WORLD": WORLD}])
def test_the_users_own_sitecustomize_still_runs(lib: Path, site: Path, environment: dict[str, str]) -> None:
    """And can be imported by name."""
    (site / "sitecustomize.py").write_text("mine = 7")
    result = run("import sitecustomize; print(sitecustomize.mine)", lib, site, **environment)
    assert result.stdout == "7\n"
    assert result.stderr == ""


def test_a_broken_hook_is_said_and_the_program_runs(site: Path, tmp_path: Path) -> None:
    """Our failure never stops training."""
    broken = tmp_path / "broken"
    install.install(REPO / "rlguard", broken)
    (broken / "rlguard" / "launch" / "hook.py").write_text("raise RuntimeError('torn')")
    result = run(LAUNCH, broken, site, RLGUARD_WORLD=WORLD)
    assert "'c10d'" in result.stdout
    assert "running without its hook" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("address", "endpoint"), [("10.0.0.1", "10.0.0.1:7"), ("fd00::1", "[fd00::1]:7")])
def test_an_annotated_number_of_ranks_and_either_kind_of_address(address: str, endpoint: str) -> None:
    """Small machines run fewer ranks than the command says; a cluster may speak IPv6."""
    config = SimpleNamespace(nproc_per_node=8, rdzv_configs={})
    world = {"nnodes": 1, "node_rank": 0, "master_addr": address, "master_port": 7, "incarnation": "1.1"}
    hook.rewrite(config, world, "1")
    assert (config.nproc_per_node, config.rdzv_endpoint) == (1, endpoint)


def test_a_module_without_elastic_launch_is_left_alone() -> None:
    """A torch that has moved it runs in generic mode."""
    module = SimpleNamespace()
    hook.wrap(module)
    assert vars(module) == {}


def test_what_is_installed_is_the_users_part_alone(lib: Path) -> None:
    """And it can be installed over an older one."""
    install.install(REPO / "rlguard", lib)
    assert sorted(entry.name for entry in lib.iterdir() if entry.name != "__pycache__") == [
        "rlguard",
        "sitecustomize.py",
    ]
    assert sorted(e.name for e in (lib / "rlguard").iterdir() if e.name != "__pycache__") == [
        "__init__.py",
        "launch",
        "train",
    ]


def test_a_folder_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The init container's log says what to do."""
    (tmp_path / "file").touch()
    assert install.main([str(tmp_path / "file" / "lib")]) == 1
    assert "is it mounted and writable?" in capsys.readouterr().err
    assert install.main([]) == 2
