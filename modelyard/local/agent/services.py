"""Services of the local cluster: each ClusterIP and port answers on loopback, and names resolve.

What kube-proxy and the cluster's DNS do elsewhere. ClusterIPs are loopback addresses here (the API server's
`--service-cluster-ip-range`), so each port of a Service is a listener that hands connections to its ready pods, one
after the other; without ready pods nothing listens, and connections are refused. A connection stays with its pod until
one of its two ends closes it, whatever becomes of Service and readiness.

Names are written to two files: one in the form of /etc/hosts, one that curl reads by itself. A third has the Services
that do not answer, and why.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from modelyard.cluster import Object
from modelyard.local.paths import write_atomically
from modelyard.objects import condition
from modelyard.ports import find_holder

logger = logging.getLogger(__name__)

REFUSED: Final = "services-not-open"
"""File of a line for each port of a Service that cannot be had: which, and why."""
_DOMAIN = "cluster.local"
_SETTLE = 0.05
_RETRY = 5.0
_BACKLOG = 1024
_CONNECT = 5.0


class Address(NamedTuple):
    """An IP address and a TCP port."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"{self.ip}:{self.port}"


class Table(NamedTuple):
    """What Services and pods come to. `services` says whose each listener is, `ports` which ones a name has."""

    backends: dict[Address, tuple[Address, ...]]
    services: dict[Address, Object]
    hosts: dict[str, tuple[str, ...]]
    ports: dict[str, frozenset[int]]


def table(services: Iterable[Object], pods: Iterable[Object]) -> Table:
    """Which ClusterIP and port leads to which pods, and which name to which addresses. Pure."""
    found = Table({}, {}, {}, {})
    by_namespace: dict[str, list[Object]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        by_namespace.setdefault(pod["metadata"]["namespace"], []).append(pod)
    for service in services:
        spec, metadata = service["spec"], service["metadata"]
        name, namespace = str(metadata["name"]), str(metadata["namespace"])
        members = [pod for pod in by_namespace.get(namespace, ()) if _serves(spec, pod)]
        ports = [port for port in spec.get("ports") or [] if port.get("protocol", "TCP") == "TCP"]
        address = spec.get("clusterIP")
        if address and address != "None":
            _name(found, f"{name}.{namespace}.svc", [address], [int(port["port"]) for port in ports])
            for port in ports:
                if backends := tuple(_targets(port, members)):
                    found.backends[Address(address, int(port["port"]))] = backends
                    found.services[Address(address, int(port["port"]))] = service
        elif address == "None" and members:
            _name(found, f"{name}.{namespace}.svc", [_ip(pod) for pod in members], set().union(*map(_ports, members)))
            for pod in members:
                if pod["spec"].get("subdomain") == name and (host := pod["spec"].get("hostname")):
                    _name(found, f"{host}.{name}.{namespace}.svc", [_ip(pod)], _ports(pod))
    return found


def _name(into: Table, name: str, addresses: Iterable[str], ports: Iterable[int]) -> None:
    for full in (name, f"{name}.{_DOMAIN}"):
        into.hosts[full], into.ports[full] = tuple(addresses), frozenset(ports)


def _ip(pod: Object) -> str:
    """Empty where there is none; whatever else a status says would be written into files that programs believe."""
    text = str((pod.get("status") or {}).get("podIP") or "")
    with suppress(ValueError):
        return str(ipaddress.ip_address(text))
    return ""


def _ports(pod: Object) -> set[int]:
    return {int(port["containerPort"]) for one in pod["spec"]["containers"] for port in one.get("ports") or []}


def _serves(spec: Object, pod: Object) -> bool:
    selector, labels, status = spec.get("selector"), pod["metadata"].get("labels") or {}, pod.get("status") or {}
    if not selector or not _ip(pod) or status.get("phase") in ("Succeeded", "Failed"):
        return False
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    if spec.get("publishNotReadyAddresses"):
        return True
    return condition(status, "Ready").get("status") == "True" and not pod["metadata"].get("deletionTimestamp")


def _targets(port: Object, pods: Iterable[Object]) -> Iterator[Address]:
    target = port.get("targetPort") or port["port"]
    for pod in pods:
        if isinstance(target, int):
            yield Address(_ip(pod), target)
            continue
        declared = (one for container in pod["spec"]["containers"] for one in container.get("ports") or [])
        number = next((int(one["containerPort"]) for one in declared if one.get("name") == target), None)
        if number is not None:
            yield Address(_ip(pod), number)


def hosts_text(found: Table) -> str:
    """In the form of /etc/hosts, without a comment: libnss-wrapper takes none."""
    return "".join(f"{address} {name}\n" for name, many in sorted(found.hosts.items()) for address in many)


def curl_text(found: Table) -> str:
    """What curl reads from `.curlrc` in the folder that CURL_HOME names."""
    return "".join(
        f'resolve = "{name}:{port}:{",".join(found.hosts[name])}"\n'
        for name, ports in sorted(found.ports.items())
        for port in sorted(ports)
    )


class Services:
    """Keeps listeners and names as Services and pods have them."""

    def __init__(
        self,
        network: str,
        folder: Path,
        pods: Mapping[str, Object],
        warn: Callable[[Object, str, str], Awaitable[None]],
    ) -> None:
        """`network` has the ClusterIPs, `pods` are by uid; `warn` makes an Event of a Service: reason, message."""
        self._network = ipaddress.ip_network(network)
        self._folder = folder
        self._pods = pods
        self._warn = warn
        self._services: dict[str, Object] = {}
        self._listeners: dict[Address, _Listener] = {}
        self._warned: dict[Address, str] = {}
        self._written: dict[str, str] = {}
        self._dirty = asyncio.Event()

    def handle(self, kind: str, service: Object) -> None:
        if kind == "DELETED":
            self._services.pop(service["metadata"]["uid"], None)
        elif kind in ("ADDED", "MODIFIED"):
            self._services[service["metadata"]["uid"]] = service
        self.changed()

    def changed(self) -> None:
        self._dirty.set()

    async def run(self) -> None:
        """Work until cancelled; nothing listens then. An unforeseen error is logged, and it goes on."""
        try:
            while True:
                with suppress(TimeoutError):  # what could not be bound is tried again
                    async with asyncio.timeout(_RETRY if self._warned else None):
                        await self._dirty.wait()
                await asyncio.sleep(_SETTLE)
                self._dirty.clear()
                try:
                    await self._settle(table(self._services.values(), self._pods.values()))
                except Exception:
                    logger.exception("services: unforeseen error, trying again")
                    await asyncio.sleep(_RETRY)
                    self._dirty.set()
        finally:
            for listener in self._listeners.values():
                listener.close()

    async def _settle(self, wanted: Table) -> None:
        for address in self._listeners.keys() - wanted.backends.keys():
            self._listeners.pop(address).close()
        self._warned = {address: said for address, said in self._warned.items() if address in wanted.backends}
        for address, backends in wanted.backends.items():
            if address not in self._listeners:
                try:
                    if ipaddress.ip_address(address.ip) not in self._network:
                        raise OSError(errno.EADDRNOTAVAIL, "is not an address of this cluster")
                    self._listeners[address] = await _Listener.open(address)
                    self._warned.pop(address, None)
                except OSError as error:
                    await self._refuse(address, wanted.services[address], error)
                    continue
            self._listeners[address].backends = backends
        refused = "".join(f"{_called(wanted.services[one])}: {said}\n" for one, said in sorted(self._warned.items()))
        for name, text in (("hosts", hosts_text(wanted)), (".curlrc", curl_text(wanted)), (REFUSED, refused)):
            if self._written.get(name) != text:
                await asyncio.to_thread(write_atomically, self._folder / name, text)
                self._written[name] = text

    async def _refuse(self, address: Address, service: Object, error: OSError) -> None:
        holder = await asyncio.to_thread(find_holder, *address) or "the program"
        remedy = {
            errno.EACCES: f"ports below 1024 are for root: `sysctl net.ipv4.ip_unprivileged_port_start={address.port}`",
            errno.EADDRINUSE: f"end {holder}, which listens on port {address.port}, or choose another port",
            errno.EADDRNOTAVAIL: f"the ClusterIPs here are of {self._network}: delete the Service and create it again",
        }.get(error.errno or 0, "look at the agent's log")
        message = f"{address} does not answer: {error.strerror or error}; {remedy}"
        if self._warned.get(address) != message:
            self._warned[address] = message
            logger.warning("service %s: %s", _called(service), message)
            await self._warn(service, "PortNotOpen", message)


def _called(service: Object) -> str:
    return f"{service['metadata']['namespace']}/{service['metadata']['name']}"


class _Listener:
    def __init__(self) -> None:
        self.backends: tuple[Address, ...] = ()
        self._turn = itertools.count()
        self._server: asyncio.Server | None = None
        self._joining: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, address: Address) -> _Listener:
        """Raises `OSError`: the address cannot be had."""
        listener = cls()
        loop = asyncio.get_running_loop()
        listener._server = await loop.create_server(
            lambda: _Side(listener), address.ip, address.port, backlog=_BACKLOG, reuse_address=True
        )
        return listener

    def close(self) -> None:
        """No new connections; those that are there go on."""
        if self._server is not None:
            self._server.close()

    def join(self, client: _Side) -> None:
        task = asyncio.create_task(self._join(client))
        # The loop keeps only weak references to tasks.
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, client: _Side) -> None:
        """The next pod in turn; one that does not take the connection (it has just died) is passed over."""
        backends, turn = self.backends, next(self._turn)
        for number in range(len(backends)):
            backend = backends[(turn + number) % len(backends)]
            try:
                async with asyncio.timeout(_CONNECT):
                    await asyncio.get_running_loop().create_connection(lambda: _Side(None, client), *backend)
                return
            except (OSError, TimeoutError) as error:
                logger.info("%s does not take a connection: %s", backend, error)
        client.transport.abort()


class _Side(asyncio.Protocol):
    """One end of a connection that is passed on; each sends what it gets to its peer, as fast as that takes it."""

    transport: asyncio.Transport

    def __init__(self, listener: _Listener | None, peer: _Side | None = None) -> None:
        self._listener = listener
        self._peer = peer
        self._ended = self._gone = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self._listener is not None:
            # Before 3.11.4 Python begins to read after this call, paused or not: what came then was lost.
            asyncio.get_running_loop().call_soon(transport.pause_reading)
            self._listener.join(self)
        elif self._peer is not None:
            if self._peer._gone:
                transport.abort()
                return
            self._peer._peer = self
            self._peer.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._peer is not None and not self._peer._gone:
            self._peer.transport.write(data)

    def eof_received(self) -> bool:
        """One direction has ended; the other goes on until it ends as well."""
        self._ended = True
        if self._peer is None or self._peer._gone or self._peer._ended:
            return False
        self._peer.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        if self._peer is not None and not self._peer._gone:
            self._peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._peer is not None and not self._peer._gone:
            self._peer.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = True
        if self._peer is not None and not self._peer._gone:
            # An end that broke off must not look like one that ended well.
            (self._peer.transport.close if error is None else self._peer.transport.abort)()
