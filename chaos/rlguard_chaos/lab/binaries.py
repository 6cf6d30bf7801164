"""The programs of the lab: built once from pinned Go modules into a cache, or taken from a folder of ready ones.

Every module under `modules/` is a go.mod with `tool` directives and its go.sum, nothing else. The cache folder is named
by the hash of those files and of how they are built, so another version never meets an old binary. LWS brings its CRD
and webhook manifests in its module's folder; they are kept beside the binaries, so that `up` needs no Go afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rlguard.errors import BadConfigError
from rlguard_chaos.lab import layout
from rlguard_chaos.lab.host import LabError, call, require_programs

if TYPE_CHECKING:
    from collections.abc import Iterator

KUBERNETES = "v1.36.3"
MAJOR, MINOR, _ = KUBERNETES.lstrip("v").split(".")
VERSION = "k8s.io/component-base/version"
LINK = f"-s -w -X {VERSION}.gitVersion={KUBERNETES} -X {VERSION}.gitMajor={MAJOR} -X {VERSION}.gitMinor={MINOR}"
"""Without a version the API server reports v0.0.0, which clients refuse."""

CONTAINERD_TAGS = "no_btrfs,no_devmapper,no_zfs"
MODULES = layout.PACKAGE / "modules"
MANIFESTS = ("config/crd/bases", "config/webhook/manifests.yaml")
OLDEST_GO = (1, 21)
"""The first that fetches the toolchain a go.mod asks for."""

FORMAT = 2
"""Of the cache folder; to be raised when what else is in it changes."""

ENVIRONMENT = "RLGUARD_LAB_BINARIES"


@dataclass(frozen=True)
class Binary:
    """One program: its file name, the module folder, the Go package, the build tags."""

    name: str
    module: str
    package: str
    tags: str = ""


def _containerd(name: str) -> Binary:
    return Binary(name, "containerd", f"github.com/containerd/containerd/v2/cmd/{name}", CONTAINERD_TAGS)


def _plugin(path: str) -> Binary:
    return Binary(path.rpartition("/")[2], "containerd", f"github.com/containernetworking/plugins/plugins/{path}")


def _kubernetes(name: str) -> Binary:
    return Binary(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}")


BINARIES = (
    Binary("pause", "pause", "."),
    Binary("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    *map(_containerd, ("containerd", "containerd-shim-runc-v2", "ctr")),
    *map(_plugin, ("main/bridge", "main/loopback", "ipam/host-local")),
    *map(
        _kubernetes, ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
    ),
    Binary("lws-manager", "lws", "sigs.k8s.io/lws/cmd"),
    Binary("coredns", "coredns", "github.com/coredns/coredns"),
    Binary("helm", "helm", "helm.sh/helm/v4/cmd/helm"),
)


def provide(folder: str | None = None) -> Path:
    """The folder with every program: the one named, else RLGUARD_LAB_BINARIES, else the cache, built when absent.

    Raises BadConfigError for a folder that lacks some, LabError when a build fails.
    """
    chosen = folder or os.environ.get(ENVIRONMENT)
    if chosen:
        return _ready(Path(chosen).absolute())
    cached = cache_folder()
    if not cached.exists():
        _build_all(cached)
    return cached


def cache_folder() -> Path:
    """Where the programs of exactly these modules and flags belong."""
    digest = hashlib.sha256(f"{FORMAT} {BINARIES} {LINK} {platform.machine()}".encode())
    for path in sorted(MODULES.glob("*/*")):
        digest.update(f"{path.relative_to(MODULES)}\n".encode() + path.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "rlguard" / "lab" / digest.hexdigest()[:16]


def _ready(folder: Path) -> Path:
    names = [*(binary.name for binary in BINARIES), *(Path(path).name for path in MANIFESTS)]
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise BadConfigError(
            f"{folder} lacks {', '.join(missing)}; the lab needs all of {', '.join(names)} "
            "(bases and manifests.yaml are LWS's config/crd/bases and config/webhook/manifests.yaml)"
        )
    return folder


def _build_all(target: Path) -> None:
    _require_go()
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(target.parent)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    unfinished.mkdir()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[doing]}"))
    with Progress(*columns, TimeElapsedColumn()) as progress:
        row = progress.add_task("building the lab's programs (once)", total=len(BINARIES), doing="")
        for binary in BINARIES:
            for done, package in enumerate(_build(binary, unfinished)):
                progress.update(row, doing=f"{binary.name}: {done + 1} packages, {package}"[:70])
            progress.update(row, advance=1, doing=binary.name)
    _copy_manifests(unfinished)
    with contextlib.suppress(OSError):  # another build was first: its folder holds the same
        unfinished.rename(target)
    shutil.rmtree(unfinished, ignore_errors=True)


def _require_go() -> None:
    require_programs("go")
    version = call("go", "env", "GOVERSION").strip()
    found = re.match(r"go(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < OLDEST_GO:
        raise BadConfigError(
            f"the Go on this machine is {version}; the lab's programs need 1.21 or newer (it fetches the exact one "
            f"itself): install it from https://go.dev/dl, or name a folder of ready programs in {ENVIRONMENT}"
        )


def _remove_unfinished(folder: Path) -> None:
    for left in folder.glob(".*.*"):
        pid = left.name.rpartition(".")[2]
        if not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)


def _build(binary: Binary, folder: Path) -> Iterator[str]:
    """Build one program; yields each package as the compiler reaches it."""
    command = ["go", "build", "-v", "-trimpath", "-ldflags", LINK, "-tags", binary.tags]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
    process = subprocess.Popen(  # noqa: S603  # a list, no shell
        [*command, "-o", str(folder / binary.name), binary.package],
        cwd=MODULES / binary.module,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        lines = []
        for line in process.stderr or ():
            lines.append(line.strip())
            yield lines[-1]
        if process.wait():
            raise LabError(f"building {binary.name} failed:\n" + "\n".join(lines[-15:]))


def _copy_manifests(folder: Path) -> None:
    lws = Path(call("go", "-C", MODULES / "lws", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/lws").strip())
    definitions, webhooks = (lws / path for path in MANIFESTS)
    shutil.copyfile(webhooks, folder / webhooks.name)
    (folder / definitions.name).mkdir()
    for file in definitions.glob("*.yaml"):
        definition = without_descriptions(yaml.safe_load(file.read_text()))
        (folder / definitions.name / file.name).write_text(json.dumps(definition))


def without_descriptions(schema: Any) -> Any:
    """The same schema without its prose, which is most of it: a start is seconds faster."""
    if isinstance(schema, list):
        return [without_descriptions(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: part for key, part in schema.items() if key != "description" or not isinstance(part, str)}
    return {key: without_descriptions(part) for key, part in kept.items()}
