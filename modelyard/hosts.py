"""Names of Services for clients of ours that are not inside the cluster, and for pods of a local one.

A cluster without DNS of its own (`modelyard local up`) keeps a file of its Services' names, in the form of /etc/hosts:
beside its kubeconfig, and named by a variable in its pods. Every other name is looked up as usual.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import ThreadedResolver
from aiohttp.abc import ResolveResult

HOSTS_VARIABLE = "MODELYARD_HOSTS"
_SUFFIXES = (".svc", ".svc.cluster.local")
_SEARCHED = ".svc.cluster.local"


class HostsFile:
    """The names in one file; read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._names: dict[str, list[str]] = {}

    @classmethod
    def found(cls, kubeconfig: Path | None = None) -> HostsFile | None:
        """The file that the variable names, else the one beside the kubeconfig in use; None where there is none."""
        if named := os.environ.get(HOSTS_VARIABLE):
            return cls(Path(named))
        beside = kubeconfig or Path(os.environ.get("KUBECONFIG", "").partition(os.pathsep)[0] or "/nowhere/kubeconfig")
        path = beside.expanduser().with_name("hosts")
        # Not anybody's file of that name.
        return cls(path) if path.is_file() and path.parent != Path("/etc") else None

    def addresses(self, host: str) -> list[str]:
        """Of a Service's name, in any of the forms in which pods may write it; empty where it is none."""
        name = host.rstrip(".").lower()
        names = self._read()
        forms = (name,) if name.endswith(_SUFFIXES) else (name + _SEARCHED,)
        return next((names[form] for form in forms if form in names), [])

    def located(self, url: str) -> str:
        """A URL with a Service's address in place of its name, for programs that only ask the system; else as it is."""
        parts = urlsplit(url)
        if not (addresses := self.addresses(parts.hostname or "")):
            return url
        port = f":{parts.port}" if parts.port else ""
        return parts._replace(netloc=f"{addresses[0]}{port}").geturl()

    def _read(self) -> Mapping[str, list[str]]:
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
            if stamp != self._stamp:
                self._names = _parsed(self._path.read_text("utf-8"))
                self._stamp = stamp
        except (OSError, UnicodeDecodeError):
            self._names, self._stamp = {}, None
        return self._names


def _parsed(text: str) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for line in text.splitlines():
        address, *aliases = line.partition("#")[0].split() or [""]
        for alias in aliases:
            names.setdefault(alias.lower(), []).append(address)
    return names


class ServiceResolver(ThreadedResolver):
    """For an `aiohttp.TCPConnector`: Services by the file, all else by the system."""

    def __init__(self, hosts: HostsFile | None) -> None:
        super().__init__()
        self._hosts = hosts

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """As the base class has it. Raises `OSError`."""
        if self._hosts is not None and (addresses := self._hosts.addresses(host)):
            return [
                ResolveResult(
                    hostname=host, host=one, port=port, family=socket.AF_INET, proto=0, flags=socket.AI_NUMERICHOST
                )
                for one in addresses
            ]
        return await super().resolve(host, port, family)
