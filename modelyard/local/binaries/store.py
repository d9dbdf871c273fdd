"""Our cache of programs, each installed whole or not at all, with a manifest of origins; and progress of long jobs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from modelyard.local import paths
from modelyard.local.paths import write_atomically
from modelyard.local.state import now

MANIFEST = "manifest.json"
_SCRATCH = "obtain-"
_TICK = 15.0


def install(name: str, program: Path, source: str) -> Path:
    """Move a finished program into the cache, from any file system, in one step; note its `source` in the manifest."""
    folder = paths.binaries_dir()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / name
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    os.close(descriptor)
    try:
        shutil.copyfile(program, temporary)
        Path(temporary).chmod(0o755)
        with Path(temporary).open("rb") as stream:
            os.fsync(stream.fileno())
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    manifest = read_manifest()
    manifest[name] = {"source": source, "sha256": digest, "installed": now().isoformat()}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n", mode=0o644)
    return target


def read_manifest() -> dict[str, dict[str, str]]:
    """Source, SHA-256 and time of each program in the cache."""
    try:
        found = json.loads((paths.binaries_dir() / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def exclusively(waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the cache's lock, so that one process obtains programs for all; `waiting` is called once if it is taken."""
    paths.cache_dir().mkdir(parents=True, exist_ok=True)
    descriptor = os.open(paths.cache_dir() / "obtain.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def scratch() -> Iterator[Path]:
    """Folder for downloads and builds, removed at the end. Removes those of others: only under `exclusively`."""
    for left in paths.cache_dir().glob(f"{_SCRATCH}*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=paths.cache_dir()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Stages:
    """Numbered stages of a job: `[2/7] building kube-apiserver`, every 15 s that it still does, and its seconds."""

    def __init__(self, progress: Callable[[str], None], total: int) -> None:
        self._progress = progress
        self._total = total
        self._number = 0

    @contextmanager
    def stage(self, what: str) -> Iterator[None]:
        self._number += 1
        label = f"[{self._number}/{self._total}] {what}"
        begun = time.monotonic()
        done = threading.Event()

        def tick() -> None:
            while not done.wait(_TICK):
                self._progress(f"{label} ... {time.monotonic() - begun:.0f} s")

        self._progress(label)
        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            done.set()
            ticker.join()
        self._progress(f"{label}: done in {time.monotonic() - begun:.0f} s")
