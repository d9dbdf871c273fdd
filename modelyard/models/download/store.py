"""The files of a node: complete copies by content, models as links to them, and who refers to what, all on disk.

    ROOT/.modelyard/entries/<digest>/files/…, manifest.json   complete, verified; visible only as a whole
    ROOT/.modelyard/partial/<digest>/files/…, journal         being fetched
    ROOT/.modelyard/models/<key>.json                         a model: its path, its entry, what it still holds
    ROOT/<path>                                               a relative link to an entry's files

A digest is of source, revision and the chosen files, so models of one revision share a copy. An entry is referred to by
the records of models, and counting references is reading these: nothing can drift. What no record names is removed,
which happens under the store's lock, as does every change of a record or link.

A running pod keeps the files that it has mounted. The caller says which paths are mounted and since when (``InUse``):
when a model moves to another entry, the old one is held until no pod that old mounts the path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from modelyard.models.sources import Listing, SourceFile
from modelyard.models.storage import Beneath, FetchError, overlap, parts

HOME = ".modelyard"
EXPECTED = "expected"
"""Beside a partial entry's files: the bytes and inodes that it has reserved."""
_STALE = 60.0
"""Seconds after which a reservation that was not renewed does not count: its process is stopped or stuck."""
_LINK = re.compile(r"(?:\.\./)*" + re.escape(HOME) + r"/entries/[0-9a-f]{64}/files")

InUse = Mapping[str, float | None]
"""Absolute paths that running pods mount, with the earliest start of these pods (Unix time), where it is known."""


@dataclass(frozen=True, slots=True)
class Held:
    """An entry that a pod may still see at a path, because it was linked there until ``since``."""

    entry: str
    path: str
    since: float


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The files of a model on this node. ``path`` is relative to the root; ``wanted`` an entry that is being fetched.

    ``rules`` stands for the choice of files (empty in records of earlier versions), ``weights`` explains it. ``uid`` is
    that of the object: one of the same name that was created later has proved no right to these files.
    """

    model: str
    path: str
    uri: str
    entry: str | None = None
    wanted: str | None = None
    held: tuple[Held, ...] = ()
    rules: str = ""
    weights: str = ""
    uid: str = ""

    def has_content_of(self, other: ModelRecord) -> bool:
        """The other record is of the same object, and asks for the same files at the same path, as far as this says."""
        same = (self.uid, self.uri, self.path) == (other.uid, other.uri, other.path)
        return same and self.rules in ("", other.rules)


@dataclass(frozen=True, slots=True)
class Kept:
    """A file of an entry, as its manifest has it."""

    name: str
    size: int
    sha256: str
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class FileManifest:
    """Every file of an entry: the proof that it is complete."""

    source: str
    revision: str
    files: tuple[Kept, ...]
    sha256: str = field(default="", compare=False)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def dump(self) -> bytes:
        """As it is on disk; the same for the same files, whenever they came."""
        body = {"version": 1, "source": self.source, "revision": self.revision, "files": self.files}
        return orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)


def digest_of(listing: Listing, chosen: Sequence[SourceFile], model: str = "") -> str:
    """Return the name of the entry of these files. Models with the same content share it.

    A file that has neither a checksum nor an ETag could be another one of the same name and size. An entry with such a
    file is the model's own: no request could prove a right to it.
    """
    content: list[object] = [listing.source, listing.revision, [(file.name, file.size) for file in chosen]]
    if any(file.size and not (file.sha256 or file.git_sha1 or file.etag) for file in chosen):
        content.append(model)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class NodeStore:
    """The store of one models root. Several processes may use one; OSError is told as FetchError (StorageError)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            (root / HOME).mkdir(mode=0o755, exist_ok=True)
            self.disk = Beneath(root)
            self.home = Beneath(root / HOME)
            for name in ("entries", "partial", "models", "locks", "trash"):
                (root / HOME / name).mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise storage_error(error, f"the models root {root}") from error

    def __enter__(self) -> NodeStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.home.close()
        self.disk.close()

    # Paths

    def relative(self, path: str, below: str | None = None) -> str:
        """A model's path, relative to the root; PathRefused where it is not below ``below`` and the root."""
        pure = PurePosixPath(path)
        for limit in (str(self.root), *([below] if below else [])):
            if not pure.is_absolute() or ".." in pure.parts or PurePosixPath(limit) not in pure.parents:
                raise FetchError("PathRefused", f"path {path[:200]!r} is not below {limit}; write a path below it")
        relative = str(pure.relative_to(self.root))
        try:
            first = parts(relative, "path")[0]
        except FetchError as error:
            raise FetchError("PathRefused", str(error)) from error
        if first == HOME:
            raise FetchError("PathRefused", f"path {path[:200]!r} is in the store itself; write another one")
        return relative

    # Locks

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with the records and links."""
        opened = self.home.open("lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield
        finally:
            os.close(opened)

    @contextmanager
    def entry_locked(self, digest: str, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
        """Alone with an entry, after waiting for whoever has it; with no ``waiting``, False instead of a wait."""
        name = f"locks/{digest}"
        while True:
            opened = self.home.open(name, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(opened)
                if waiting is None:
                    yield False
                    return
                waiting()
                continue
            there = self.home.lstat(name)
            if there is not None and there.st_ino == os.fstat(opened).st_ino:
                break
            os.close(opened)  # It was collected between the two calls.
        try:
            yield True
        finally:
            os.close(opened)

    # Records

    def record(self, model: str) -> ModelRecord | None:
        body = self.home.read(f"models/{_key(model)}.json")
        try:
            found = json.loads(body) if body else None
            return found and ModelRecord(**{**found, "held": tuple(Held(**held) for held in found["held"])})
        except (ValueError, TypeError, KeyError) as error:
            raise FetchError(
                "StorageError", f"{self.root / HOME}/models/{model}.json cannot be read ({error}); remove it"
            ) from error

    def records(self) -> list[ModelRecord]:
        names = (name.removesuffix(".json") for name in self.home.names("models") if name.endswith(".json"))
        return [record for name in names if not name.startswith(".") and (record := self.record(name)) is not None]

    def write(self, record: ModelRecord) -> None:
        """Under the lock."""
        self.home.write(f"models/{_key(record.model)}.json", json.dumps(asdict(record)).encode())

    # Entries

    def manifest(self, digest: str) -> FileManifest | None:
        body = self.home.read(f"entries/{digest}/manifest.json")
        if body is None:
            return None
        try:
            found: dict[str, Any] = orjson.loads(body)
            files = tuple(Kept(**file) for file in found["files"])
            return FileManifest(found["source"], found["revision"], files, hashlib.sha256(body).hexdigest())
        except (ValueError, TypeError, KeyError):
            return None

    def missing(self, digest: str, manifest: FileManifest) -> set[str]:
        """Names of an entry's files that are not there or not as large as they should be, or noted as damaged."""
        noted = self.home.read(f"entries/{digest}/damaged.json")
        gone = {
            file.name
            for file in manifest.files
            if not self.home.is_file(f"entries/{digest}/files/{file.name}", file.size)
        }
        return gone | ({str(name) for name in orjson.loads(noted)} if noted else set())

    def promise(self, digest: str, size: int, inodes: int) -> None:
        """Reserve bytes and inodes for a partial entry, in place of what it had reserved before. Under the lock."""
        self.home.write(f"partial/{digest}/{EXPECTED}", b"%d %d" % (size, inodes))

    def promise_of(self, digest: str) -> tuple[int, int]:
        """Return the bytes and inodes that a partial entry has reserved; none where the reservation was not renewed."""
        name = f"partial/{digest}/{EXPECTED}"
        body, status = self.home.read(name), self.home.lstat(name)
        if body is None or status is None or time.time() - status.st_mtime > _STALE:
            return 0, 0
        with self.entry_locked(digest) as idle:
            if idle:
                return 0, 0
        try:
            size, inodes = map(int, body.split())
        except ValueError:  # of an earlier version
            return 0, 0
        return size, inodes

    def promised(self, but: str) -> tuple[int, int]:
        """Return what all downloads on this disk have reserved, except that of one entry. Under the lock."""
        reserved = [self.promise_of(digest) for digest in set(self.home.names("partial")) - {but}]
        return sum(size for size, _ in reserved), sum(inodes for _, inodes in reserved)

    def note_damaged(self, digest: str, names: set[str]) -> None:
        """So that the next fetch brings these anew."""
        if names:
            self.home.write(f"entries/{digest}/damaged.json", orjson.dumps(sorted(names)))
        else:
            self.home.unlink(f"entries/{digest}/damaged.json")

    def hash_of(self, name: str) -> str | None:
        """SHA-256 of a file of the store; None where it is no regular file."""
        try:
            opened = self.home.open(name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        with os.fdopen(opened, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                return None
            return hashlib.file_digest(file, "sha256").hexdigest()

    # Links

    def check_path(self, record: ModelRecord) -> None:
        """PathOccupied or PathRefused where this model's link cannot be made. Under the lock."""
        for other in self.records():
            if other.model != record.model and other.path == record.path and other.uri != record.uri:
                raise FetchError(
                    "PathOccupied",
                    f"path {self.root / record.path} is that of {other.model}; give one another spec.storage.path",
                )
            nested = f"{other.path}/".startswith(f"{record.path}/") or f"{record.path}/".startswith(f"{other.path}/")
            if other.path != record.path and nested:
                raise FetchError(
                    "PathOccupied",
                    f"path {self.root / record.path}: {other.model} is at {self.root / other.path}, and no"
                    " model can be in another; give one another spec.storage.path",
                )
        try:
            with self.disk.parent(record.path, create=True) as (folder, last):
                self._own_link(folder, last, record.path)
        except OSError as error:
            raise FetchError(
                "PathRefused",
                f"path {self.root / record.path}: a folder on the way is a link or a file ({error.strerror})",
            ) from error

    def link(self, record: ModelRecord, in_use: InUse, now: float) -> None:
        """The model's path leads to ``record.wanted`` from now on; what it led to is held for pods that mount it."""
        assert record.wanted is not None
        self.check_path(record)
        before = self.record(record.model)
        held = before.held if before else ()
        if before and before.entry and (before.entry, before.path) != (record.wanted, record.path):
            held = (*held, Held(before.entry, before.path, now))
        done = replace(record, entry=record.wanted, wanted=None, held=held)
        target = f"{'../' * record.path.count('/')}{HOME}/entries/{record.wanted}/files"
        with self.disk.parent(record.path, create=True) as (folder, last):
            if self._own_link(folder, last, record.path) != target:
                temporary = f".{last[:100]}.{os.getpid()}.new"
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                os.symlink(target, temporary, dir_fd=folder)
                os.rename(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
        self.write(done)
        self._release(done, in_use)

    def disown(self, record: ModelRecord, uid: str, in_use: InUse, now: float) -> None:
        """Take the files from a record whose object was replaced by one with this uid. Under the lock.

        The link goes at once, and the new object has no entry. Files that a pod has mounted are held.
        """
        held = record.held
        if record.entry is not None and any(overlap(str(self.root / record.path), used) for used in in_use):
            held = (*held, Held(record.entry, record.path, now))
        self._unlink(record.path, record.model)
        self.write(replace(record, uid=uid, entry=None, wanted=None, held=held))

    def give_up(self, model: str, wanted: str) -> None:
        """Let go of an entry that a model wants and may not have: it keeps no copy of others' on the disk."""
        with self.locked():
            record = self.record(model)
            if record is None or record.wanted != wanted:
                return
            if record.entry is None and not record.held:
                self.home.unlink(f"models/{_key(model)}.json")
            else:
                self.write(replace(record, wanted=None))
        self.collect()

    def remove(self, model: str, in_use: InUse) -> bool:
        """The model's link and record, under the lock; InUse where a pod mounts its path. Whether it was there."""
        record = self.record(model)
        if record is None:
            return False
        paths = {record.path, *(held.path for held in record.held)}
        for path in paths:
            if any(overlap(str(self.root / path), used) for used in in_use):
                raise FetchError(
                    "InUse",
                    f"{self.root / path} is mounted by a running pod; its files stay until it is gone",
                    retryable=True,
                )
        for path in paths:
            self._unlink(path, model)
        self.home.unlink(f"models/{_key(model)}.json")
        return True

    def _own_link(self, folder: int, last: str, path: str) -> str | None:
        """Where the link at a path leads; None where nothing is. An empty folder (made by a mount) gives way."""
        try:
            found = os.stat(last, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(last, dir_fd=folder)
            if _LINK.fullmatch(target):
                return target
        elif stat.S_ISDIR(found.st_mode):
            with contextlib.suppress(OSError):
                os.rmdir(last, dir_fd=folder)
                return None
        raise FetchError(
            "PathOccupied",
            f"{self.root / path} is there and was not made by this store; move it away or choose another path",
        )

    def _unlink(self, path: str, model: str) -> None:
        if any(other.path == path for other in self.records() if other.model != model):
            return
        with contextlib.suppress(OSError, FetchError), self.disk.parent(path) as (folder, last):
            if self._own_link(folder, last, path) is not None:
                os.unlink(last, dir_fd=folder)

    def _release(self, record: ModelRecord, in_use: InUse) -> None:
        def is_seen(one: Held) -> bool:
            started = (start for used, start in in_use.items() if overlap(str(self.root / one.path), used))
            return any(start is None or start <= one.since for start in started)

        held = tuple(filter(is_seen, record.held))
        for path in {one.path for one in record.held} - {one.path for one in held} - {record.path}:
            self._unlink(path, record.model)
        if held != record.held:
            self.write(replace(record, held=held))

    def collect(self) -> None:
        """Removes what no record names. Takes the lock; what another process is fetching is left to it."""
        with self.locked():
            kept = {
                digest
                for record in self.records()
                for digest in (record.entry, record.wanted, *(held.entry for held in record.held))
            }
            there = {name for kind in ("entries", "partial", "locks") for name in self.home.names(kind)}
            for digest in there - kept:
                with self.entry_locked(digest) as mine:
                    if not mine:
                        continue
                    for kind in ("entries", "partial"):
                        if self.home.lstat(f"{kind}/{digest}") is not None:
                            self.home.rename(f"{kind}/{digest}", f"trash/{digest}.{time.time_ns()}")
                    self.home.unlink(f"locks/{digest}")
        for name in self.home.names("trash"):
            self.home.remove_tree(f"trash/{name}")


def storage_error(error: OSError, what: str) -> FetchError:
    """What the disk says."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return FetchError(
            "DiskPressure", f"{what}: {error.strerror}; free space on the node or add some", retryable=True
        )
    return FetchError("StorageError", f"{what}: {error.strerror or error}", retryable=True)


def _key(model: str) -> str:
    return model if len(model) <= 200 else f"{hashlib.sha256(model.encode()).hexdigest()[:16]}-{model[-180:]}"
