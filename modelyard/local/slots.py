"""Ports and pod addresses of an instance; claimed by its supervisor.

A slot is a range of ports and a range of loopback addresses that belong together. A claimed slot is an advisory file
lock held by the supervisor, so several instances on one machine (and a test run beside them) never meet, and a dead
one leaves nothing behind. Ports lie below Linux's ephemeral range (32768 on): no outgoing connection can take the
port of a component while that is being restarted.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pydantic import BaseModel, ConfigDict

from modelyard.local.errors import LocalClusterError
from modelyard.local.settings import Component

_SLOTS = 200
_FIRST_PORT = 20000
_WIDTH = 20
_PORTS = 8
_FIRST_OCTET = 20


class Ports(BaseModel):
    """TCP ports of one instance, all on 127.0.0.1."""

    model_config = ConfigDict(frozen=True)

    base: int

    @property
    def etcd(self) -> int:
        """Etcd's client port."""
        return self.base

    @property
    def etcd_peer(self) -> int:
        """Etcd's peer port."""
        return self.base + 1

    @property
    def apiserver(self) -> int:
        """HTTPS port of the API server."""
        return self.base + 2

    @property
    def controller_manager(self) -> int:
        """HTTPS port of the controller-manager (health and metrics)."""
        return self.base + 3

    @property
    def scheduler(self) -> int:
        """HTTPS port of the scheduler (health and metrics)."""
        return self.base + 4

    @property
    def agent(self) -> int:
        """HTTP port of the node agent (health)."""
        return self.base + 5

    @property
    def prometheus(self) -> int:
        """HTTP port of Prometheus."""
        return self.base + 6

    def address(self, component: Component) -> str:
        """URL under which a component answers."""
        return {
            Component.ETCD: f"http://127.0.0.1:{self.etcd}",
            Component.APISERVER: f"https://127.0.0.1:{self.apiserver}",
            Component.CONTROLLER_MANAGER: f"https://127.0.0.1:{self.controller_manager}",
            Component.SCHEDULER: f"https://127.0.0.1:{self.scheduler}",
            Component.AGENT: f"http://127.0.0.1:{self.agent}",
            Component.PROMETHEUS: f"http://127.0.0.1:{self.prometheus}",
        }[component]


class Slot:
    """A claimed range. Use as a context manager, or `release` it."""

    def __init__(self, number: int, ports: Ports, lock: int) -> None:
        self.number = number
        self.ports = ports
        self._lock = lock

    @property
    def pod_prefix(self) -> str:
        """First two octets of the Node and pod addresses, e.g. `127.20`."""
        return f"127.{_FIRST_OCTET + self.number}"

    def release(self) -> None:
        """Give the slot back."""
        os.close(self._lock)

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _bindable(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        # As the servers do: connections of a predecessor in TIME_WAIT are no obstacle.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            return True
    return False


def _lock(number: int) -> int | None:
    folder = Path(tempfile.gettempdir()) / "modelyard-slots"
    with suppress(FileExistsError):
        folder.mkdir()
        # Shared by all users of the machine, as /tmp is.
        folder.chmod(0o1777)
    try:
        descriptor = os.open(folder / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def candidates(preferred: int) -> Iterable[int]:
    """All slot numbers, the preferred one first."""
    return ((preferred + offset) % _SLOTS for offset in range(_SLOTS))


def claim(preferred: int, base_port: int | None = None) -> Slot:
    """Claim a slot whose ports are free, the preferred one if possible.

    Args:
        preferred: slot number to try first (an instance asks for the one it had).
        base_port: first of the ports, when the user has chosen them; the slot then only gives the pod addresses.

    Raises:
        LocalClusterError: the chosen ports are taken, or no slot is free.
    """
    if base_port is not None:
        taken = [port for port in range(base_port, base_port + _PORTS) if not _bindable(port)]
        if taken:
            raise LocalClusterError(
                f"ports {', '.join(map(str, taken))} on 127.0.0.1 are in use; choose another --base-port or none"
            )
    for number in candidates(preferred):
        descriptor = _lock(number)
        if descriptor is None:
            continue
        base = _FIRST_PORT + _WIDTH * number if base_port is None else base_port
        if base_port is not None or all(_bindable(port) for port in range(base, base + _PORTS)):
            return Slot(number, Ports(base=base), descriptor)
        os.close(descriptor)
    raise LocalClusterError(
        f"no free port range of {_PORTS} between {_FIRST_PORT} and {_FIRST_PORT + _SLOTS * _WIDTH}: "
        "stop other local clusters (`modelyard local down --name ...`) or give --base-port"
    )
