"""The images of the lab: nothing but empty folders, names and search paths; all content is mounted from the machine.

So code changes are live, no image is built, and what a user's image lacks (rlguard) it truly lacks on its search path.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlguard_chaos.lab import layout
from rlguard_chaos.lab.host import call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
EMPTY_FOLDERS = "tmp var var/tmp run root opt proc sys dev mnt home etc"
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ssl", "/etc/alternatives")


def binds() -> Sequence[Path]:
    """Folders of the machine that every container sees, read-only, at the same path."""
    environments = [layout.product_environment(), layout.user_environment()]
    kept: list[Path] = []
    for folder in [*map(Path, SYSTEM_FOLDERS), layout.CHECKOUT, *environments, *map(_interpreter, environments)]:
        if folder.exists() and not any(folder.is_relative_to(k) for k in kept):
            kept.append(folder)
    return kept


def _interpreter(environment: Path) -> Path:
    """The Python installation that a virtual environment links to."""
    return (environment / "bin" / "python3").resolve().parents[1]


def write_archive(pause: Path) -> None:
    """Write the one archive with all images that a node imports."""
    base = _layer([*_folders(binds())], FILES, {}, pause)
    links = {"workspace/ppo": layout.CHECKOUT / "examples" / "ppo"}
    links |= {f"workspace/{path.name}": path for path in sorted(layout.WORKSPACE.iterdir())}
    user = _layer(["workspace"], {}, links, None)
    images = {layout.PAUSE_IMAGE: _config([base], SYSTEM_PATH, "/", ["/pause"])}
    images[f"docker.io/{layout.PRODUCT_IMAGE}"] = _config([base], _path(layout.product_environment()), "/", ["/bin/sh"])
    for name in layout.USER_IMAGES:
        full = name if "." in name.split("/")[0] else f"docker.io/{name}"
        images[full] = _config([base, user], _path(layout.user_environment()), "/workspace", ["/bin/sh"])
    _write(images, [base, user])


def compile_checkout() -> None:
    """Put bytecode beside the sources, as an image has it: containers see them read-only and could not."""
    python = layout.product_environment() / "bin" / "python3"
    folders = [layout.CHECKOUT / name for name in ("rlguard", "agent", "sidecar", "controller", "examples")]
    call(python, "-m", "compileall", "-q", *folders)


def write_base_spec(ctr: Path) -> None:
    """Write the runtime specification that every container starts from: the usual one and the binds."""
    spec = json.loads(call(ctr, "oci", "spec"))
    mounts = [mount for mount in spec["mounts"] if mount["destination"] != "/run"]
    for folder in binds():
        bind = {"destination": str(folder), "type": "bind", "source": str(folder.resolve()), "options": ["rbind", "ro"]}
        mounts.append(bind)
    spec["mounts"] = mounts
    layout.BASE_SPEC.write_text(json.dumps(spec))


def _path(environment: Path) -> str:
    return f"{environment}/bin:{SYSTEM_PATH}"


def _folders(targets: Sequence[Path]) -> Sequence[str]:
    found = set(EMPTY_FOLDERS.split())
    for target in targets:
        parts = target.parts[1:]
        found |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}
    return sorted(found)


def _layer(folders: Sequence[str], files: Mapping[str, str], links: Mapping[str, Path], pause: Path | None) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name in {"tmp", "var/tmp"} else 0o755
            tar.addfile(entry)
        for name, text in files.items():
            _add(tar, name, text.encode())
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, str(target)
            tar.addfile(entry)
        if pause:
            _add(tar, "pause", pause.read_bytes(), mode=0o755)
    return data.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _config(layers: Sequence[bytes], path: str, folder: str, command: Sequence[str]) -> dict[str, Any]:
    machine = platform.machine()
    return {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Env": [f"PATH={path}"], "Cmd": list(command), "WorkingDir": folder},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}" for layer in layers]},
    }


def _write(images: Mapping[str, dict[str, Any]], layers: Sequence[bytes]) -> None:
    """In the format of `docker save`."""
    manifest = []
    with tarfile.open(layout.IMAGE_ARCHIVE, "w") as tar:
        for layer in layers:
            _add(tar, f"{_digest(layer)}.tar", layer)
        written = set()
        for name, config in images.items():
            data = json.dumps(config).encode()
            file = f"{_digest(data)}.json"
            if file not in written:
                _add(tar, file, data)
            written.add(file)
            used = [digest.removeprefix("sha256:") + ".tar" for digest in config["rootfs"]["diff_ids"]]
            manifest.append({"Config": file, "RepoTags": [name], "Layers": used})
        _add(tar, "manifest.json", json.dumps(manifest).encode())
