"""A small disk, to be filled: only root may mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_THEIRS = "theirs"
_SIZE = "2m"


@contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """A disk of its own at this folder, until the end of the block."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        # Also where something is still open there.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Somebody else leaves no byte of its disk."""
    with suppress(OSError), (folder / _THEIRS).open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def free(folder: Path) -> None:
    """There is room again."""
    (folder / _THEIRS).unlink(missing_ok=True)
