"""The checkpoint root on the shared file system: claim, record, write, commit, verify (rules C1 to C8).

Synchronous and standard library only: it runs in a child process that can be killed when the file system hangs
(`storechild`). Every operation may be killed at any point and called again. All refusals are StoreError.
"""

from __future__ import annotations

import errno
import json
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rlguard.checkpoint import names
from rlguard.checkpoint.lineage import is_void, next_incarnation
from rlguard.checkpoint.names import TmpName
from rlguard.checkpoint.outcomes import CommitResult, Committed, Scan, Verification, Void, Whole
from rlguard.checkpoint.records import Claim, Completed, Manifest, Record
from rlguard.errors import BadWireError, FencedError, StoreError, StoreState
from rlguard.io.files import Files, naming, refused
from rlguard.io.storecopy import copy_new, verified
from rlguard.io.storescan import claimed_in, read_claim, read_json, scan_root
from rlguard.model import Incarnation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from rlguard.io.storecopy import Held
    from rlguard.messages import FileEntry
    from rlguard.model import CheckpointId

CLAIM_TRIES: Final = 100
"""Attempts that may turn out taken under our eyes before something is wrong."""

POLL_S: Final = 0.1
"""Seconds between two looks for another node's files."""

_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})


def _no_progress() -> None:
    pass


class Store:
    """One group's checkpoint root. `progress` is called after each chunk and look, to tell slow from hung."""

    def __init__(self, root: Path, files: Files | None = None, progress: Callable[[], None] = _no_progress) -> None:
        self.root = root
        self.files = files or Files()
        self.progress = progress

    # --- names ---

    def path_of(self, checkpoint: CheckpointId) -> Path:
        """Where a committed checkpoint lies."""
        return self.root / names.STEPS / str(checkpoint)

    def path_of_tmp(self, tmp: TmpName) -> Path:
        """Where one try is written."""
        return self.root / names.TMP / str(tmp)

    # --- lineage ---

    def scan(self) -> Scan:
        """Read all there is; what is not ours is ignored, what is ours and bad is listed in `problems`."""
        with self.telling():
            return scan_root(self.files, self.root)

    def claim(self, claim: Claim) -> None:
        """C1: take an incarnation. Claiming again with the same nonce is done already.

        Raises FencedError, naming the other, when somebody else has it.
        """
        with self.telling():
            self.prepare()
            path = self._lineage(names.claim_name(claim.incarnation))
            if not self._publish_file(path, claim.to_json()):
                other = read_claim(self.files, self.root, claim.incarnation)
                if other != claim:
                    raise FencedError(f"{claim.incarnation} is taken by {_who(other)}; take another incarnation")

    def claim_next(self, generation: int, leader_uid: str, nonce: str) -> Claim:
        """C1: claim the next free attempt of `generation`. Called again with the nonce of the newest: done already.

        Raises FencedError when a newer generation has begun, or when another leader pod holds this one: then only
        the controller can give a new generation.
        """
        with self.telling():
            lost: set[Incarnation] = set()  # by name, as a stale listing may go on hiding them
            for _ in range(CLAIM_TRIES):
                claim = self._next_claim(self._claimed() | lost, Claim(Incarnation(generation, 0), leader_uid, nonce))
                try:
                    self.claim(claim)
                except FencedError:
                    lost.add(claim.incarnation)
                else:
                    return claim
        raise StoreError(f"{self.root}: {CLAIM_TRIES} attempts of generation {generation} were taken under our eyes")

    def record(self, record: Record) -> None:
        """C2: write the record of an incarnation that was claimed before. The same record again is done already.

        Raises FencedError when the claim is not ours, when a newer one exists, or when another record is there.
        """
        own = record.incarnation
        with self.telling():
            claim = read_claim(self.files, self.root, own)
            if claim is None or (claim.leader_uid, claim.nonce) != (record.leader_uid, record.nonce):
                raise FencedError(f"{own} was not claimed by this coordinator but by {_who(claim)}: claim, then record")
            newer = is_void(self._claimed(), own)
            if newer is not None:
                raise FencedError(f"{own} is over: {newer} has been claimed; stop the ranks")
            path = self._lineage(names.record_name(own))
            if not self._publish_file(path, record.to_json()) and self._read_record(path) != record:
                raise FencedError(f"{path}: another record of {own} is there; take the next attempt")

    # --- checkpoints ---

    def begin(self, checkpoint: CheckpointId, pod_uid: str, nonce: str) -> TmpName:
        """C5: make the folder of one new try. The committer calls it and tells the members the name.

        Raises StoreError when the name was used before.
        """
        tmp = TmpName(checkpoint, pod_uid, nonce)
        if names.parse_tmp(str(tmp)) != tmp:
            raise BadWireError(f"pod UID and nonce must be letters, digits and dashes: {pod_uid!r}, {nonce!r}")
        with self.telling():
            self.prepare()
            self.files.mkdir(self.path_of_tmp(tmp))
            self.files.sync_dir(self.root / names.TMP)
        return tmp

    def put_file(
        self, tmp: TmpName, name: str, source: Path, size: int | None = None, held: Held | None = None
    ) -> FileEntry:
        """C5, C6: copy `source` into the try as a new file, durable when this returns.

        `size`: exactly so many bytes (default: the whole file). `held`: the slot header that must stand in the
        source's folder before the first and after the last byte (M2). Raises TornReadError, leaving no file, if not.
        """
        if not names.is_data_file(name):
            raise BadWireError(f"not a file name of a checkpoint: {name!r}")
        with self.telling():
            folder = self.path_of_tmp(tmp)
            entry = copy_new(self.files, source, folder / name, self.progress, size, held)
            self.files.sync_dir(folder)
        return entry

    def commit(self, tmp: TmpName, manifest: Manifest, wait_s: float = 60.0) -> CommitResult:
        """C2, C5, C6: make a try the committed checkpoint, once all files of all nodes show (at most `wait_s`).

        May be called again after a kill at any point. Raises StoreError with state NOT_VISIBLE when files stay away.
        """
        if manifest.checkpoint != tmp.checkpoint:
            raise BadWireError(f"the manifest is of {manifest.checkpoint}, the folder of {tmp.checkpoint}")
        with self.telling():
            if not isinstance(self.verify(tmp.checkpoint, deep=True), Whole):
                self._await_files(tmp, manifest, wait_s)
                self._write_manifest(tmp, manifest)
                self._move_into_place(tmp)
            self.files.sync_dir(self.root / names.STEPS)
            self.remove_tree(self.path_of_tmp(tmp))  # still there only if an earlier try made it unnecessary
            self.files.sync_dir(self.root / names.TMP)
            newer = is_void(self._claimed(), tmp.checkpoint.incarnation)
        return Committed(tmp.checkpoint) if newer is None else Void(tmp.checkpoint, newer)

    def discard(self, tmp: TmpName) -> None:
        """Give up one's own try and free its space."""
        with self.telling():
            self.remove_tree(self.path_of_tmp(tmp))

    def verify(self, checkpoint: CheckpointId, *, deep: bool) -> Verification:
        """C3: is a committed checkpoint what its manifest says: names and sizes, with `deep` also every byte."""
        with self.telling():
            return verified(self.files, self.path_of(checkpoint), checkpoint, self.progress, deep=deep)

    def restore(self, checkpoint: CheckpointId) -> None:
        """C7: move a pruned checkpoint back from trash before it is read. Raises StoreError if it is not there."""
        with self.telling():
            lies_in = scan_root(self.files, self.root).trashed.get(checkpoint)
            if lies_in is None:
                raise StoreError(f"{self.root}: {checkpoint} is not in trash", StoreState.MISSING)
            folder = self.root / names.TRASH / str(lies_in)
            self.files.rename(folder / str(checkpoint), self.path_of(checkpoint))
            self.files.sync_dir(self.root / names.STEPS)
            self.files.sync_dir(folder)

    # --- marks ---

    def complete(self, own: Incarnation, completed: Completed) -> None:
        """C10: write `completed.json`. Raises FencedError when `own` is not the newest claim."""
        with self.telling():
            self.prepare()
            newer = is_void(self._claimed(), own)
            if newer is not None:
                raise FencedError(f"{own} cannot complete the job: {newer} has been claimed")
            self._replace_file(self.root / names.COMPLETED, _dump(completed.to_json()))

    def incident(self, incident: str, contents: Mapping[str, bytes]) -> Path:
        """Write files into the folder of one incident; several members may, each under its own file names."""
        for name in (incident, *contents):
            if not names.is_data_file(name):
                raise BadWireError(f"not a plain name for an incident or its file: {name!r}")
        folder = self.root / names.INCIDENTS / incident
        with self.telling():
            self.make_folder(folder)
            for name, content in contents.items():
                self._replace_file(folder / name, content)
        return folder

    # --- parts, also used by pruning ---

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Turn every OSError into a StoreError."""
        try:
            yield
        except OSError as error:
            raise refused(error, self.root) from error

    def prepare(self) -> None:
        """Make the root's folders where they are missing."""
        for name in (names.LINEAGE, names.STEPS, names.TMP, names.TRASH, names.INCIDENTS):
            self.make_folder(self.root / name)
        self.files.sync_dir(self.root)

    def make_folder(self, path: Path) -> None:
        """Make a folder and its missing parents, durably."""
        if self.files.entry(path) is not None:
            return
        if path.parent != path:
            self.make_folder(path.parent)
        try:
            self.files.mkdir(path)
        except FileExistsError:  # another member was faster
            return
        self.files.sync_dir(path.parent)

    def remove_tree(self, path: Path) -> None:
        """Unlink a folder with all it holds, or a file; nothing there is fine."""
        entry = self.files.entry(path)
        if entry is None:
            return
        if not entry.is_dir:
            self.files.unlink(path)
            return
        for name in self.files.listdir(path):
            self.remove_tree(path / name)
            self.progress()
        self.files.rmdir(path)

    def _lineage(self, name: str) -> Path:
        return self.root / names.LINEAGE / name

    def _claimed(self) -> frozenset[Incarnation]:
        return claimed_in(self.files, self.root)

    def _next_claim(self, taken: Iterable[Incarnation], wanted: Claim) -> Claim:
        free = next_incarnation(taken, wanted.incarnation.generation)
        newest = free._replace(attempt=free.attempt - 1)
        holder = read_claim(self.files, self.root, newest)
        if holder is not None and holder.leader_uid != wanted.leader_uid:
            raise FencedError(f"generation {free.generation} is led by {_who(holder)}: only a new one may start")
        return replace(wanted, incarnation=newest if holder is not None and holder.nonce == wanted.nonce else free)

    def _read_record(self, path: Path) -> Record | None:
        try:
            return Record.from_json(read_json(self.files, path))
        except BadWireError:
            return None

    def _publish_file(self, path: Path, content: dict[str, Any]) -> bool:
        """C1: the file appears whole or not at all. False when the name is taken."""
        temporary = path.parent / f".{path.name}.{self.files.token()}"
        self._write_new(temporary, _dump(content))
        try:
            self.files.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            self.files.unlink(temporary)
            self.files.sync_dir(path.parent)
        return True

    def _replace_file(self, path: Path, content: bytes) -> None:
        temporary = path.parent / f".{path.name}.{self.files.token()}"
        self._write_new(temporary, content)
        self.files.rename(temporary, path)
        self.files.sync_dir(path.parent)

    def _write_new(self, path: Path, content: bytes) -> None:
        descriptor = self.files.create(path)
        try:
            with naming(path):
                try:
                    self.files.write(descriptor, memoryview(content))
                    self.files.fsync(descriptor)
                finally:
                    self.files.close(descriptor)
        except OSError:
            with suppress(OSError):
                self.files.unlink(path)
            raise

    def _await_files(self, tmp: TmpName, manifest: Manifest, wait_s: float) -> None:
        """C6: other nodes' files are looked up by name until they show with their full size."""
        deadline = self.files.now() + wait_s
        while missing := [entry for entry in manifest.files if not self._shows(tmp, entry)]:
            if self.files.now() >= deadline:
                some = ", ".join(entry.name for entry in missing[:3])
                raise StoreError(
                    f"{self.path_of_tmp(tmp)}: {len(missing)} of {len(manifest.files)} files ({some}) do not show "
                    f"after {wait_s:g} s: check that all members mount the same volume",
                    StoreState.NOT_VISIBLE,
                )
            self.progress()
            self.files.sleep(POLL_S)

    def _shows(self, tmp: TmpName, entry: FileEntry) -> bool:
        found = self.files.entry(self.path_of_tmp(tmp) / entry.name)
        return found is not None and not found.is_dir and found.size == entry.size

    def _write_manifest(self, tmp: TmpName, manifest: Manifest) -> None:
        folder = self.path_of_tmp(tmp)
        self.remove_tree(folder / names.MANIFEST)  # of a killed call; a new inode, nobody writes on in it
        self._write_new(folder / names.MANIFEST, _dump(manifest.to_json()))
        self.files.sync_dir(folder)

    def _move_into_place(self, tmp: TmpName) -> None:
        """C5: a name that a whole checkpoint has is committed; anything else that has it is set aside."""
        if self._renamed(tmp) or isinstance(self.verify(tmp.checkpoint, deep=True), Whole):
            return
        aside = self.root / names.TRASH / str(tmp.checkpoint.incarnation)
        self.make_folder(aside)
        self.files.rename(self.path_of(tmp.checkpoint), aside / str(tmp))
        self.files.sync_dir(aside)
        if not self._renamed(tmp):
            raise StoreError(f"{self.path_of(tmp.checkpoint)}: somebody else keeps writing this name; stop it")

    def _renamed(self, tmp: TmpName) -> bool:
        try:
            self.files.rename(self.path_of_tmp(tmp), self.path_of(tmp.checkpoint))
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
        return True


def _dump(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, sort_keys=True) + "\n").encode()


def _who(claim: Claim | None) -> str:
    return "an unreadable claim" if claim is None else f"leader {claim.leader_uid} (nonce {claim.nonce})"
