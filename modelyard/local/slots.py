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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from modelyard.local.paths import LocalClusterError
from modelyard.local.settings import Component

_SLOTS = 200
_FIRST_PORT = 20000
_WIDTH = 20
_PORTS = 8
_FIRST_OCTET = 20


class Ports:
    """TCP ports of one instance on 127.0.0.1, one after the other; HTTPS for the Kubernetes servers, else HTTP."""

    def __init__(self, base: int) -> None:
        self.base = base
        (
            self.etcd,
            self.etcd_peer,
            self.apiserver,
            self.controller_manager,
            self.scheduler,
            self.agent,
            self.prometheus,
            self.kubelet,
        ) = range(base, base + _PORTS)

    def address(self, component: Component) -> str:
        plain = component in (Component.ETCD, Component.AGENT, Component.PROMETHEUS)
        return f"{'http' if plain else 'https'}://127.0.0.1:{getattr(self, component.name.lower())}"


class PortSlot(NamedTuple):
    """A claimed range. `pod_prefix`: first two octets of the Node, pod and Service addresses, e.g. `127.20`."""

    number: int
    ports: Ports
    pod_prefix: str


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


@contextmanager
def claim(preferred: int, base_port: int | None = None) -> Iterator[PortSlot]:
    """Hold a slot whose ports are free, the preferred one (which the instance had before) if possible.

    With `base_port`, the first of the ports as the user chose it, the slot only gives the pod addresses. Raises
    `LocalClusterError` when the chosen ports are taken, or no slot is free.
    """
    if base_port is not None:
        taken = [port for port in range(base_port, base_port + _PORTS) if not _bindable(port)]
        if taken:
            raise LocalClusterError(
                f"ports {', '.join(map(str, taken))} on 127.0.0.1 are in use; choose another --base-port or none"
            )
    for offset in range(_SLOTS):
        number = (preferred + offset) % _SLOTS
        descriptor = _lock(number)
        if descriptor is None:
            continue
        try:
            base = _FIRST_PORT + _WIDTH * number if base_port is None else base_port
            if base_port is not None or all(_bindable(port) for port in range(base, base + _PORTS)):
                yield PortSlot(number, Ports(base), f"127.{_FIRST_OCTET + number}")
                return
        finally:
            os.close(descriptor)
    raise LocalClusterError(
        f"no free port range of {_PORTS} between {_FIRST_PORT} and {_FIRST_PORT + _SLOTS * _WIDTH}: "
        "stop other local clusters (`modelyard local down --name ...`) or give --base-port"
    )
