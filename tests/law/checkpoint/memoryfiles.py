# ruff: noqa: D102 # methods that stand in for those of Files and Store do what those say
"""A file system in memory that can stop at any operation and then show what a machine would find afterwards."""

from __future__ import annotations

import errno
import os
from enum import Enum
from typing import TYPE_CHECKING

from rlguard.io.files import Entry, Files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Crash(BaseException):
    """The process is gone: no clean-up code may run any further operation."""


class After(Enum):
    """What is found after the crash."""

    PROCESS_DIED = "all operations that were done"
    POWER_CUT = "names and contents that were synced, nothing else"
    POWER_CUT_NAMES_KEPT = "all names, contents only if synced"


class FileNode:
    """A file's content, now and durable."""

    def __init__(self) -> None:
        self.data = b""
        self.durable = b""


class DirNode:
    """A folder's entries, now and durable."""

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileNode | DirNode


class MemoryFiles(Files):
    """`before` runs before each operation, and in the middle of each write; it may raise Crash or wait."""

    def __init__(self, top: DirNode | None = None) -> None:
        self.top = top or DirNode()
        self.before: Callable[[str], None] = lambda _operation: None
        self.time = 0.0
        self._tokens = 0
        self._open: dict[int, tuple[FileNode, int]] = {}

    def after(self, how: After) -> MemoryFiles:
        """Another machine's view of what is left."""
        top = _left(self.top, how)
        assert isinstance(top, DirNode)
        return MemoryFiles(top)

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def token(self) -> str:
        self._tokens += 1
        return f"{id(self):x}{self._tokens:x}"

    def entry(self, path: Path) -> Entry | None:
        self.before("entry")
        try:
            node = self._find(path)
        except OSError:
            return None
        return Entry(is_dir=True, size=0) if isinstance(node, DirNode) else Entry(is_dir=False, size=len(node.data))

    def listdir(self, path: Path) -> list[str]:
        self.before("listdir")
        return list(self._dir(path).entries)

    def mkdir(self, path: Path) -> None:
        self.before("mkdir")
        self._add(path, DirNode())

    def create(self, path: Path) -> int:
        self.before("create")
        node = FileNode()
        self._add(path, node)
        return self._opened(node)

    def open(self, path: Path) -> int:
        self.before("open")
        node = self._find(path)
        if isinstance(node, DirNode):
            raise _error(errno.EISDIR, path)
        return self._opened(node)

    def read(self, descriptor: int, buffer: memoryview) -> int:
        node, offset = self._open[descriptor]
        piece = node.data[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        self._open[descriptor] = (node, offset + len(piece))
        return len(piece)

    def write(self, descriptor: int, data: memoryview) -> None:
        node, _ = self._open[descriptor]
        half = len(data) // 2
        for piece in (data[:half], data[half:]):
            self.before("write")
            node.data += bytes(piece)

    def fsync(self, descriptor: int) -> None:
        self.before("fsync")
        node, _ = self._open[descriptor]
        node.durable = node.data

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def sync_dir(self, path: Path) -> None:
        self.before("sync_dir")
        node = self._dir(path)
        node.durable = dict(node.entries)

    def link(self, source: Path, target: Path) -> None:
        self.before("link")
        self._add(target, self._find(source))

    def rename(self, source: Path, target: Path) -> None:
        self.before("rename")
        moved, parent = self._find(source), self._dir(target.parent)
        there = parent.entries.get(target.name)
        if isinstance(there, DirNode) and there.entries:
            raise _error(errno.ENOTEMPTY, target)
        if there is not None and isinstance(there, DirNode) != isinstance(moved, DirNode):
            raise _error(errno.ENOTDIR, target)
        del self._dir(source.parent).entries[source.name]
        parent.entries[target.name] = moved

    def unlink(self, path: Path) -> None:
        self.before("unlink")
        self._find(path)
        del self._dir(path.parent).entries[path.name]

    def rmdir(self, path: Path) -> None:
        self.before("rmdir")
        if self._dir(path).entries:
            raise _error(errno.ENOTEMPTY, path)
        del self._dir(path.parent).entries[path.name]

    def _opened(self, node: FileNode) -> int:
        descriptor = max(self._open, default=2) + 1
        self._open[descriptor] = (node, 0)
        return descriptor

    def _add(self, path: Path, node: Node) -> None:
        parent = self._dir(path.parent)
        if path.name in parent.entries:
            raise _error(errno.EEXIST, path)
        parent.entries[path.name] = node

    def _dir(self, path: Path) -> DirNode:
        node = self._find(path)
        if isinstance(node, FileNode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _find(self, path: Path) -> Node:
        node: Node = self.top
        for part in path.parts[1:]:
            if isinstance(node, FileNode):
                raise _error(errno.ENOTDIR, path)
            if part not in node.entries:
                raise _error(errno.ENOENT, path)
            node = node.entries[part]
        return node


def crash_at(files: MemoryFiles, number: int) -> Callable[[], int]:
    """Let the operation of that number, and all later ones, raise Crash. Returns a counter of operations."""
    count = 0

    def before(_operation: str) -> None:
        nonlocal count
        count += 1
        if count > number:
            raise Crash

    files.before = before
    return lambda: count


def _left(node: Node, how: After) -> Node:
    if isinstance(node, FileNode):
        left = FileNode()
        left.data = left.durable = node.data if how is After.PROCESS_DIED else node.durable
        return left
    folder = DirNode()
    for name, child in (node.durable if how is After.POWER_CUT else node.entries).items():
        folder.entries[name] = folder.durable[name] = _left(child, how)
    return folder


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
