"""Brings the files of one listing to the disk: ranges in parallel, in place, resumed, verified, visible as a whole.

Files are written under ``partial/<digest>`` and become visible by one rename, with their manifest. A journal there
says which parts are on the disk: it is written after the bytes, so it never says too much while the machine runs, and
after a restart of the machine (another boot id) what it says is checked against the disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelyard.models.download.disk_space import DiskReservation
from modelyard.models.download.journal import PartsJournal
from modelyard.models.download.pace import Pace, WatchedThreads, one_by_one
from modelyard.models.download.store import EXPECTED, FileManifest, Kept, NodeStore, storage_error
from modelyard.models.sources import Chunk, Listing, ModelSource, RangesIgnored, SourceFile
from modelyard.models.storage import FetchError, time_limit, unavailable

TRIES = 3
"""How often a file that arrives with another checksum is fetched."""
TOGETHER = 8
"""Consecutive parts of one request, if there is enough for all threads: a request costs more than another part."""
_AS_IT_IS = mmap.MAP_PRIVATE | mmap.MAP_POPULATE


@dataclass(slots=True)
class _Work:
    index: int
    file: SourceFile
    done: set[int] = field(default_factory=set)
    fd: int = -1
    hashed: int = 0
    hashing: bool = False
    left: int = 0
    tries: int = 1
    was_read: bool = False
    """Whether the source has sent a byte of it to this process."""
    began: float = 0.0
    """When it was opened, in seconds of waiting for the source."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    writing: threading.Lock = field(default_factory=threading.Lock)
    """One write to a file at a time: so the kernel has it, too, where waiting for it costs processor time."""
    whole: threading.Lock = field(default_factory=threading.Lock)
    sums: list[Any] = field(default_factory=list)

    def restart(self) -> None:
        self.hashed = 0
        self.sums = [hashlib.sha256()]
        if self.file.git_sha1:
            self.sums.append(hashlib.sha1(b"blob %d\0" % self.file.size, usedforsecurity=False))


class Download:
    """Fetches ``wanted`` of the files of an entry and publishes it. The caller has the entry's lock."""

    def __init__(
        self,
        store: NodeStore,
        source: ModelSource,
        digest: str,
        listing: Listing,
        files: Sequence[SourceFile],
        pace: Pace,
        wanted: set[str] | None = None,
        model: str = "",
    ) -> None:
        self.store, self.source, self.digest, self.listing, self.pace = store, source, digest, listing, pace
        self.files = files
        self.wanted = wanted
        self.unread: tuple[SourceFile, ...] = ()
        """Files of which no byte came from the source."""
        self._folder = f"partial/{digest}"
        self._reservation = DiskReservation(store, digest, model, pace)

    def run(self, phase: Callable[[str], None]) -> FileManifest:
        """To the end. FetchError; OSError is told as DiskPressure or StorageError."""
        try:
            return self._run(phase)
        except OSError as error:
            raise storage_error(error, str(self.store.root)) from error

    def _run(self, phase: Callable[[str], None]) -> FileManifest:
        self.journal = PartsJournal(self.store, self._folder, self.pace.limits.part_size)
        self._size = self.journal.part_size
        self._adopt()
        if self.wanted is None:
            self._borrow()
        work = [
            _Work(index, file, self.journal.parts.get(index, set()))
            for index, file in enumerate(self.files)
            if index not in self.journal.files and (self.wanted is None or file.name in self.wanted)
        ]
        self._count(work)
        self._reservation.claim([(item.file, self._to_come(item)) for item in work], self.files)
        self.journal.begin()
        phase("Downloading")
        try:
            self._pull(work)
        finally:
            self.journal.close()
        read = {item.index for item in work if item.was_read}
        self.unread = tuple(file for index, file in enumerate(self.files) if index not in read)
        phase("Finalizing")
        return self._publish()

    def _adopt(self) -> None:
        journal = self.journal
        for index in list(journal.files):
            name = self._name(self.files[index]) if index < len(self.files) else ""
            there = bool(name) and self.store.home.is_file(name, self.files[index].size)
            if not there or (not journal.same_boot and self.store.hash_of(name) != journal.files[index]):
                del journal.files[index]
                journal.parts.pop(index, None)
        for index in list(journal.parts):
            known = index < len(self.files) and index not in journal.files and journal.same_boot
            if not known or not self.store.home.is_file(self._name(self.files[index]), self.files[index].size):
                del journal.parts[index]

    def _borrow(self) -> None:
        """Only of the same source: that it lists a checksum proves no right to files of another one."""
        known: dict[tuple[object, ...], tuple[str, str]] = {}
        for digest in self.store.home.names("entries"):
            manifest = self.store.manifest(digest)
            if manifest is not None and manifest.source == self.listing.source:
                for kept in manifest.files:
                    found = f"entries/{digest}/files/{kept.name}", kept.sha256
                    known[kept.sha256, kept.size] = known[kept.name, kept.size, kept.etag] = found
        for index, file in enumerate(self.files):
            if index in self.journal.files or index in self.journal.parts or not (file.sha256 or file.etag):
                continue
            there = known.get((file.sha256, file.size) if file.sha256 else (file.name, file.size, file.etag))
            if there is not None and self.store.hash_of(there[0]) == there[1]:
                with contextlib.suppress(OSError):
                    self.store.home.hard_link(there[0], self._name(file))
                    self.journal.files[index] = there[1]

    def _count(self, work: Sequence[_Work]) -> None:
        total, files = sum(file.size for file in self.files), len(self.files)
        there = total - sum(one.file.size for one in work)
        there += sum(self._length(one.file, part) for one in work for part in one.done)
        self.pace.count(files=files - len(work), size=there)

    def _to_come(self, work: _Work) -> int:
        """Bytes that the disk has still to give for a file; parts that will be written again have theirs already."""
        status = self.store.home.lstat(self._name(work.file))
        allocated = status.st_blocks * 512 if status is not None else 0
        done = sum(self._length(work.file, part) for part in work.done)
        return max(0, work.file.size - max(done, allocated))

    def _pull(self, work: Sequence[_Work]) -> None:
        parallel = self.pace.limits.parallel
        parts = sum(self._parts_of(one.file) - len(one.done) for one in work)
        self._together = max(1, min(TOGETHER, parts // (2 * parallel)))
        total = sum(file.size for file in self.files)

        def supervise() -> None:
            self._check_files(work)
            self._reservation.renew(lambda: total - self.pace.bytes)

        pull = one_by_one(self._requests(work), lambda item: self._fetch(*item))
        threads = WatchedThreads(self.pace, min(parallel, parts + len(work)), pull)
        try:
            threads.run(supervise)
        finally:
            # A thread that still waits for the network keeps its descriptors: their numbers must not become others'.
            if threads.ended:
                for one in work:
                    if one.fd >= 0:
                        os.close(one.fd)

    def _check_files(self, work: Sequence[_Work]) -> None:
        limits, now = self.pace.limits, self.pace.waited()
        if not limits.required_rate:
            return
        for item in work:
            allowed = time_limit(item.file.size, 1, limits.required_rate, limits.window, limits.parallel)
            if item.fd >= 0 and now - item.began > allowed:
                raise FetchError(
                    "SourceTooSlow",
                    f"{item.file.name}: not complete after {allowed:.0f} s of waiting for the source; use a faster"
                    " source, or have an administrator lower minimumRate",
                    retryable=True,
                )

    def _requests(self, work: Sequence[_Work]) -> Iterator[tuple[_Work, range]]:
        for one in work:
            one.fd = self.store.home.open(self._name(one.file), os.O_RDWR | os.O_CREAT)
            one.began = self.pace.waited()
            if os.fstat(one.fd).st_size != one.file.size:
                os.ftruncate(one.fd, one.file.size)
            for parts in self._missing(one):
                yield one, parts

    def _missing(self, work: _Work) -> list[range]:
        """The parts of a file that are not there, as they are asked for; none, to finish it, where there is no such."""
        work.restart()
        missing = [part for part in range(self._parts_of(work.file)) if part not in work.done]
        found = []
        for _, following in itertools.groupby(enumerate(missing), lambda one: one[1] - one[0]):
            parts = [part for _, part in following]
            found += [range(at, min(at + self._together, parts[-1] + 1)) for at in parts[:: self._together]]
        work.left = max(1, len(found))
        return found or [range(0)]

    def _fetch(self, work: _Work, parts: range) -> None:
        if not work.done.issuperset(parts):
            try:
                self._read(work, parts)
            except RangesIgnored:
                self._read_whole(work)
        self._hash(work)
        with work.lock:
            work.left -= 1
            last = work.left == 0
        if last:
            self._finish(work)

    def _read(self, work: _Work, parts: range) -> None:
        start, length = parts.start * self._size, sum(self._length(work.file, part) for part in parts)
        got, attempt = 0, 0
        with work.lock:
            mine = not work.hashing and work.hashed == start
            work.hashing = work.hashing or mine
        try:
            while got < length:
                before = got
                try:
                    self.pace.begin()
                    asked = length - got
                    for chunk in self.pace.watch(self.source.read(work.file, start + got, asked)):
                        size = len(chunk)
                        work.was_read = True
                        if size > length - got:
                            raise _more(work.file)
                        with work.writing:
                            _write(work.fd, chunk, start + got)
                        if mine:
                            for one in work.sums:
                                one.update(chunk)
                            work.hashed += size
                        got += size
                        self.pace.took(size)
                        while parts and (got >= length or got >= (parts.start + 1) * self._size - start):
                            with work.lock:
                                work.done.add(parts.start)
                            if self._parts_of(work.file) > 1:
                                self.journal.note("p", work.index, parts.start)
                            parts = parts[1:]
                        if got < length:
                            self.pace.throttle()
                    if got < length:
                        raise unavailable(f"{work.file.name}: ended early")
                    self.pace.answered(asked)
                except RangesIgnored:
                    self.pace.count(size=-(got % self._size))
                    raise
                except FetchError as error:
                    attempt = 0 if got > before else attempt + 1
                    self.pace.retry(error, attempt)
        finally:
            if mine:
                with work.lock:
                    work.hashing = False

    def _read_whole(self, work: _Work) -> None:
        """From a server that knows no ranges: by one thread, and from the first byte after each interruption."""
        parts = set(range(self._parts_of(work.file)))
        with work.whole:
            if parts <= work.done:
                return
            while True:  # Whoever hashes a part is let finish.
                with work.lock:
                    if not work.hashing:
                        work.hashing = True
                        break
                self.pace.pause(0.01)
            self.pace.count(size=-sum(self._length(work.file, part) for part in work.done))
            work.done.clear()
            work.restart()
            attempt = 0
            while not parts <= work.done:
                got = 0
                try:
                    self.pace.begin()
                    for chunk in self.pace.watch(self.source.read(work.file, 0, work.file.size)):
                        work.was_read = True
                        if len(chunk) > work.file.size - got:
                            raise _more(work.file)
                        _write(work.fd, chunk, got)
                        got += len(chunk)
                        self.pace.took(len(chunk))
                        self.pace.throttle()
                    if got < work.file.size:
                        raise unavailable(f"{work.file.name}: ended early")
                    self.pace.answered(got)
                    with work.lock:
                        work.done |= parts
                        work.hashing = False
                except FetchError as error:
                    self.pace.count(size=-got)
                    attempt += 1
                    self.pace.retry(error, attempt)

    def _hash(self, work: _Work) -> None:
        while True:
            with work.lock:
                part = work.hashed // self._size
                if work.hashing or work.hashed >= work.file.size or part not in work.done:
                    return
                work.hashing = True
            try:
                end = min(work.file.size, (part + 1) * self._size)
                skip = work.hashed % mmap.ALLOCATIONGRANULARITY
                start = work.hashed - skip
                # Mapped: a copy would cost as much as receiving it did. (Cut short from now on, it ends this process.)
                with (
                    mmap.mmap(work.fd, end - start, _AS_IT_IS, mmap.PROT_READ, offset=start) as mapped,
                    memoryview(mapped)[skip:] as view,
                ):
                    for one in work.sums:
                        one.update(view)
                work.hashed = end
            except ValueError as error:
                raise FetchError("StorageError", f"{work.file.name}: cut short on the disk", retryable=True) from error
            finally:
                with work.lock:
                    work.hashing = False

    def _finish(self, work: _Work) -> None:
        file = work.file
        self._hash(work)
        sums = [one.hexdigest() for one in work.sums]
        expected = [file.sha256 or sums[0], *([file.git_sha1] if file.git_sha1 else [])]
        if work.hashed != file.size or sums != expected:
            self.journal.note("x", work.index)
            if work.tries >= TRIES:
                raise FetchError(
                    "Corrupt",
                    f"{file.name}: {file.size} bytes with SHA-256 {sums[0]} arrived {TRIES} times, the source lists "
                    f"{file.sha256 or file.git_sha1}; the copy at the source, or a proxy on the way, is damaged",
                    retryable=True,
                )
            work.tries += 1
            self.pace.count(size=-file.size)
            work.done.clear()
            for parts in self._missing(work):
                self._fetch(work, parts)
            return
        os.close(work.fd)
        work.fd = -1
        self.journal.files[work.index] = sums[0]
        self.journal.note("f", work.index, sums[0])
        self.pace.count(files=1)

    def _publish(self) -> FileManifest:
        home, entry = self.store.home, f"entries/{self.digest}"
        sums = self.journal.files
        old = self.store.manifest(self.digest)
        known = {file.name: file for file in old.files} if old else {}
        files = tuple(
            Kept(file.name, file.size, sums[index], file.etag) if index in sums else known[file.name]
            for index, file in enumerate(self.files)
        )
        body = FileManifest(self.listing.source, self.listing.revision, files).dump()
        if old is not None:
            _sync(self.store.root)
            for index in sums:
                home.rename(self._name(self.files[index]), f"{entry}/files/{self.files[index].name}")
            home.write(f"{entry}/manifest.json", body)
            self.store.note_damaged(self.digest, set())
            home.remove_tree(self._folder)
        else:
            home.write(f"{self._folder}/manifest.json", body)
            _sync(self.store.root)
            if home.lstat(entry) is not None:  # Without a manifest: what somebody has made of it is no entry.
                home.rename(entry, f"trash/{self.digest}.{time.time_ns()}")
            home.rename(self._folder, entry)
            for name in ("journal", EXPECTED):
                home.unlink(f"{entry}/{name}")
        found = self.store.manifest(self.digest)
        assert found is not None
        return found

    def _name(self, file: SourceFile) -> str:
        return f"{self._folder}/files/{file.name}"

    def _parts_of(self, file: SourceFile) -> int:
        return -(-file.size // self._size)

    def _length(self, file: SourceFile, part: int) -> int:
        return min(self._size, file.size - part * self._size)


def _write(fd: int, chunk: Chunk, offset: int) -> None:
    view = memoryview(chunk)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _more(file: SourceFile) -> FetchError:
    return FetchError("SourceChanged", f"{file.name}: more bytes than the {file.size} listed", retryable=True)


def _sync(folder: Path) -> None:
    """All that was written to this file system is on its disk. One call, however many files; errors are told."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(opened) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(opened)
