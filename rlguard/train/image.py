"""A checkpoint file image that is written once by `torch.distributed.checkpoint` and then only overwritten in place.

For the same tensors the file has a constant layout: each tensor is a `torch.save` zip whose raw bytes are stored
uncompressed at a fixed place. So a later stage is one copy per tensor into the mapped file, and the folder stays one
that stock PyTorch loads (its loader does not check the zip's CRC; torch 2.13).
"""

from __future__ import annotations

import io
import mmap
import struct
import warnings
import zipfile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import torch.distributed.checkpoint as dcp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

METADATA: Final = ".metadata"
DATA: Final = "__0_0.distcp"
FILES: Final = (METADATA, DATA)
_LOCAL_HEADER: Final = struct.Struct("<26xHH")  # lengths of name and extra field; APPNOTE.TXT 4.3.7
_LAYOUT_ERROR: Final = "the checkpoint file of this torch has another layout than rlguard knows"


class Leaf(NamedTuple):
    """One tensor by its full name."""

    name: str
    tensor: torch.Tensor


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[Leaf]:
    """Walk a nested dict of tensors; names are joined with dots, as `torch.distributed.checkpoint` does."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield Leaf(f"{prefix}{key}", value)


class Image:
    """The tensors of one slot. Raises OSError, RuntimeError and what `torch.distributed.checkpoint` raises."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shape: list[tuple[Any, ...]] = []
        self._views: dict[str, torch.Tensor] = {}

    def write(self, tree: dict[str, Any]) -> None:
        """Bring the files to these values: in place when nothing but values changed since the last time."""
        found = list(leaves(tree))
        shape = [(leaf.name, leaf.tensor.dtype, leaf.tensor.shape) for leaf in found]
        if not self._views or shape != self._shape:
            self._create(tree, found)
            self._shape = shape
        else:
            for leaf in found:
                if leaf.tensor.numel():
                    self._views[leaf.name].copy_(_raw(leaf.tensor))

    def _create(self, tree: dict[str, Any], found: list[Leaf]) -> None:
        self._views = {}
        for name in FILES:
            (self._folder / name).unlink(missing_ok=True)
        writer = dcp.FileSystemWriter(self._folder, sync_files=False, thread_count=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about saving without a process group, which is meant
            dcp.save(tree, storage_writer=writer, no_dist=True)
        with (self._folder / DATA).open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        views = self._locate(mapped)
        # The layout is found, not assumed: one look over all bytes, which also faults the mapping in.
        for leaf in found:
            if leaf.tensor.numel() and not torch.equal(views[leaf.name], _raw(leaf.tensor).cpu()):
                raise RuntimeError(f"{_LAYOUT_ERROR} (at {leaf.name})")
        self._views = views

    def _locate(self, mapped: mmap.mmap) -> dict[str, torch.Tensor]:
        metadata = dcp.FileSystemReader(self._folder).read_metadata()
        views = {}
        for index, info in metadata.storage_data.items():
            start, length = _raw_place(mapped[info.offset : info.offset + info.length])
            if length:
                views[index.fqn] = torch.frombuffer(mapped, dtype=torch.uint8, count=length, offset=info.offset + start)
        return views


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _raw_place(item: bytes) -> tuple[int, int]:
    """Find a stored tensor's raw bytes in its zip: (start, length), length 0 for an empty tensor."""
    with zipfile.ZipFile(io.BytesIO(item)) as archive:
        data = [entry for entry in archive.infolist() if entry.filename.endswith("/data/0")]
    if len(data) != 1 or data[0].compress_type != zipfile.ZIP_STORED:
        raise RuntimeError(_LAYOUT_ERROR)
    name, extra = _LOCAL_HEADER.unpack_from(item, data[0].header_offset)
    return data[0].header_offset + _LOCAL_HEADER.size + name + extra, data[0].file_size


def load(folder: Path) -> dict[str, Any]:
    """Read all tensors of a checkpoint folder, on the CPU, as a nested dict.

    Raises OSError or `dcp.api.CheckpointException` (no Exception, torch 2.13) when it is not whole.
    """
    metadata = dcp.FileSystemReader(folder).read_metadata()
    flat = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, dcp.metadata.TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about loading without a process group, which is meant
        dcp.load(flat, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    return _nested(flat, metadata.planner_data)


def _nested(flat: dict[str, torch.Tensor], paths: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, tensor in flat.items():
        *above, last = paths[name]
        place = tree
        for key in above:
            place = place.setdefault(key, {})
        place[last] = tensor
    return tree
