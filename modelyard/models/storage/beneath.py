"""A folder, held open, and names below it that are walked component by component and never through a symbolic link.

Names come from tenants and from sources, and what is on the disk may have been changed by whoever mounts it: a path
that was looked at and is then opened by its text can be another one by then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from modelyard.models.storage.errors import FetchError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Beneath:
    """What is below one folder. Names are relative, with '/', and have been checked (``parts``). Errors are OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._fd)

    @contextmanager
    def parent(self, name: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """The open folder that ``name`` is in, and its last part."""
        *above, last = name.split("/")
        here = os.dup(self._fd)
        try:
            for part in above:
                try:
                    inner = os.open(part, _FOLDER, dir_fd=here)
                except FileNotFoundError:
                    if not create:
                        raise
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=here)
                    inner = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = inner
            yield here, last
        finally:
            os.close(here)

    def open(self, name: str, flags: int, mode: int = 0o644) -> int:
        """A file, by descriptor; its folders are made where it may be made itself."""
        with self.parent(name, create=bool(flags & os.O_CREAT)) as (folder, last):
            return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)

    def lstat(self, name: str) -> os.stat_result | None:
        """What is there under this name, itself; None where nothing is, or where a folder on the way is none."""
        try:
            with self.parent(name) as (folder, last):
                return os.stat(last, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:  # A folder on the way is a symbolic link.
                return None
            raise

    def is_file(self, name: str, size: int) -> bool:
        found = self.lstat(name)
        return found is not None and stat.S_ISREG(found.st_mode) and found.st_size == size

    def write(self, name: str, content: bytes) -> None:
        """A small file, as a whole or not at all, and on the disk when this returns."""
        with self.parent(name, create=True) as (folder, last):
            temporary = f".{last}.{os.getpid()}.new"
            opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644, dir_fd=folder)
            try:
                with os.fdopen(opened, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            os.fsync(folder)

    def read(self, name: str) -> bytes | None:
        try:
            with os.fdopen(self.open(name, os.O_RDONLY), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def rename(self, old: str, new: str) -> None:
        """Within this folder; what is at ``new`` is replaced where the system does so."""
        with self.parent(old) as (source, before), self.parent(new, create=True) as (target, after):
            os.rename(before, after, src_dir_fd=source, dst_dir_fd=target)
            os.fsync(target)

    def hard_link(self, old: str, new: str) -> None:
        self.unlink(new)
        with self.parent(old) as (source, before), self.parent(new, create=True) as (target, after):
            os.link(before, after, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self.parent(name) as (folder, last):
            os.unlink(last, dir_fd=folder)

    def remove_tree(self, name: str) -> None:
        """A folder and all below it. Links in it are removed, not followed."""
        with contextlib.suppress(FileNotFoundError), self.parent(name) as (folder, last):
            shutil.rmtree(last, dir_fd=folder)

    def used(self, name: str) -> int:
        """Bytes of the disk that the files below a folder take."""
        found = 0
        with contextlib.suppress(OSError):  # What moves meanwhile is on its way to be no promise any more.
            opened = self.open(name, _FOLDER)
            try:
                for _, _, files, folder in os.fwalk(dir_fd=opened):
                    found += sum(os.stat(file, dir_fd=folder, follow_symlinks=False).st_blocks for file in files)
            finally:
                os.close(opened)
        return found * 512

    def names(self, name: str) -> list[str]:
        try:
            opened = self.open(name, _FOLDER)
        except FileNotFoundError:
            return []
        try:
            return sorted(os.listdir(opened))  # noqa: PTH208
        finally:
            os.close(opened)


def folders_above(names: Iterable[str]) -> set[str]:
    """All folders that files of these names are in."""
    found: set[str] = set()
    for name in names:
        folder = name.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def parts(name: str, what: str) -> list[str]:
    """The parts of a relative name that is fit for a disk; FetchError (HostileName) where it is not."""
    found = name.split("/")
    problem = ""
    if not name or any(part in ("", ".", "..") for part in found):
        problem = "is empty, absolute, or has an empty part, '.' or '..'"
    elif not name.isprintable() or "\\" in name:
        problem = "has control characters or a backslash"
    elif len(name.encode("utf-8", "replace")) > 1024 or any(len(p.encode("utf-8", "replace")) > 255 for p in found):
        problem = "is too long"
    if problem:
        raise FetchError("HostileName", f"{what} {name[:200]!r} {problem}; rename it at the source")
    return found
