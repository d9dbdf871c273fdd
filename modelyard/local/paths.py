"""Where the local cluster keeps things on disk, how it writes them, and what it raises.

Follows the XDG base directories. `MODELYARD_HOME` moves the state of every instance, `MODELYARD_CACHE` the binaries.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


class LocalClusterError(RuntimeError):
    """Something about the local cluster failed; the message names the part, what was tried and what to do next."""


class BinaryNotFound(LocalClusterError):
    """A program the cluster needs is neither on this machine nor obtainable."""


def _base(own: str, variable: str, fallback: str) -> Path:
    if found := os.environ.get(own):
        return Path(found).expanduser().absolute()
    value = os.environ.get(variable, "")
    # The XDG specification says to ignore relative paths.
    return (Path(value) if value.startswith("/") else Path.home() / fallback) / "modelyard"


def cache_dir() -> Path:
    """Folder of what can be obtained again: `MODELYARD_CACHE`, else `$XDG_CACHE_HOME/modelyard`."""
    return _base("MODELYARD_CACHE", "XDG_CACHE_HOME", ".cache")


def binaries_dir() -> Path:
    """Folder of the programs that Modelyard downloaded or built."""
    return cache_dir() / "bin"


def home_dir() -> Path:
    """Folder of all instances: `MODELYARD_HOME`, else `$XDG_STATE_HOME/modelyard`."""
    return _base("MODELYARD_HOME", "XDG_STATE_HOME", ".local/state")


def instance_dir(name: str, directory: Path | None) -> Path:
    """Folder of one instance. Raises `LocalClusterError`: `name` is no DNS label of at most 40 characters."""
    if directory is not None:
        return directory.expanduser().absolute()
    if not _NAME.fullmatch(name):
        raise LocalClusterError(
            f"local cluster name {name!r}: only a-z, 0-9 and '-' (inside), at most 40 characters; choose another --name"
        )
    return home_dir() / "local" / name


class InstancePaths:
    """The files of one instance, by what they are."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = root / "settings.json"
        self.state = root / "state.json"
        self.lock = root / "supervisor.lock"
        self.kubeconfig = root / "kubeconfig"
        self.kubeconfigs = root / "kubeconfigs"
        self.pki = root / "pki"
        self.logs = root / "logs"
        self.etcd = root / "etcd"
        self.agent = root / "agent"
        self.files = root / "files"
        self.agent_config = root / "agent.json"
        self.prometheus = root / "prometheus"
        self.prometheus_config = root / "prometheus.yml"

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"


def write_atomically(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace `path` by `text` in one step: readers see the old content or the new, whatever happens to the writer."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def tail(path: Path, lines: int = 15, limit: int = 64 * 1024) -> str:
    """The last `lines` lines of a log file (at most `limit` bytes of it); empty when there is no such file."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - limit))
            text = stream.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
