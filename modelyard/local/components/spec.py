"""What the supervisor needs to know of a component and a component of its cluster; health checks over HTTP; versions.

Which version a program is and which flags it knows is asked once per start, so that old and new servers both run.
"""

from __future__ import annotations

import mmap
import re
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import urllib3

from modelyard.local.paths import InstancePaths, LocalClusterError
from modelyard.local.settings import Component, StackSettings
from modelyard.local.slots import Ports


@dataclass(frozen=True)
class ClusterContext:
    """One instance: its settings, files and ports."""

    settings: StackSettings
    paths: InstancePaths
    ports: Ports
    pod_prefix: str

    @property
    def service_network(self) -> str:
        """Addresses of Services: the upper half of what is this cluster's, so that they can be listened on."""
        return f"{self.pod_prefix}.128.0/17"

    def program(self, name: str) -> str:
        return self.settings.binaries[name]

    def extra(self, component: Component) -> list[str]:
        return self.settings.extra_args.get(component, [])


@dataclass(frozen=True)
class ComponentSpec:
    """How to start one component and tell whether it is ready."""

    component: Component
    argv: list[str]
    ready: Callable[[], None]
    """Returns when ready; raises `NotReady` or `OSError` otherwise. Blocking, a few seconds at most."""
    env: dict[str, str] = field(default_factory=dict)
    version: str = ""
    grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL when stopping."""


_TIMEOUT = 3.0


class NotReady(Exception):
    """The component answered that it is not ready."""


@cache
def _pool(ca: Path | None, client: tuple[Path, Path] | None) -> urllib3.PoolManager:
    context = ssl.create_default_context(cafile=ca)
    if client is not None:
        context.load_cert_chain(*client)
    return urllib3.PoolManager(ssl_context=context, timeout=_TIMEOUT, retries=False)


def http_ok(
    url: str, ca: Path | None = None, *, client: tuple[Path, Path] | None = None, contains: str = ""
) -> Callable[[], None]:
    """Check that `url` answers 200 with `contains` in its text; `ca` verifies it, `client` is a certificate and key."""

    def check() -> None:
        try:
            answer = _pool(ca, client).request("GET", url)
        except urllib3.exceptions.HTTPError as error:
            raise NotReady(f"{url}: {error}") from error
        text = answer.data.decode("utf-8", "replace")
        if answer.status != 200:
            raise NotReady(f"{url}: HTTP {answer.status} {text[-200:].strip()}".rstrip())
        if contains not in text:
            raise NotReady(f"{url}: answered without {contains!r}: {text[:200]}")

    return check


def both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    """A check that passes when two checks do."""

    def check() -> None:
        first()
        second()

    return check


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
    """Version of etcd, Prometheus or a Kubernetes server. Raises `LocalClusterError`: it does not run or say."""
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
