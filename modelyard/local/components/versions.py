"""Which version a program is and which flags it knows; asked once per start, so that old and new servers both run."""

from __future__ import annotations

import mmap
import re
import subprocess
from functools import cache
from pathlib import Path

from modelyard.local.errors import LocalClusterError

Version = tuple[int, int, int]


def parse_version(text: str) -> Version | None:
    """The first `major.minor[.patch]` in a program's version output; None when there is none."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


@cache
def _output(program: str, flag: str) -> str:
    try:
        done = subprocess.run(
            [program, flag], capture_output=True, text=True, errors="replace", timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalClusterError(f"{program} {flag} cannot be run: {error}; remove or replace that program") from error
    return done.stdout + done.stderr


def version(program: str) -> Version:
    """Version of etcd, Prometheus or a Kubernetes server.

    Raises:
        LocalClusterError: the program does not run or does not tell its version.
    """
    found = parse_version(_output(program, "--version"))
    if found is None:
        raise LocalClusterError(f"{program} --version names no version; remove or replace that program")
    return found


def knows_flag(program: str, flag: str) -> bool:
    """Whether the program's help names a flag, such as `--unsafe-no-fsync`."""
    return re.search(rf"{re.escape(flag)}\b", _output(program, "--help")) is not None


@cache
def contains(program: str, text: bytes) -> bool:
    """Whether a program's file contains `text`; the names of the Go packages a program is built from stay in it."""
    with Path(program).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0


def printable(found: Version) -> str:
    """`(1, 20, 2)` as `1.20.2`."""
    return ".".join(map(str, found))
