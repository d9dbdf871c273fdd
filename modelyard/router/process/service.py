"""A router as a process: its parts put together, its listener, and its end without losing a request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from modelyard.cluster import Cluster
from modelyard.objects import Key
from modelyard.ports import describe_listen_error, find_holder
from modelyard.router.process.configured import ConfigurationFile, Configured
from modelyard.router.process.connections import Acceptor, Handler, Listener
from modelyard.router.process.follow import Follower
from modelyard.router.process.front import Front
from modelyard.router.process.gauges import EnginePoller
from modelyard.router.process.limits import LocalLimits
from modelyard.router.process.telemetry import AccessLog, RouterMetrics
from modelyard.router.process.upstream import Upstream
from modelyard.router.process.wake_queue import WakeQueue
from modelyard.router.settings import RouterSettings
from modelyard.routing import Configuration, Decider, FleetChange, errors

if TYPE_CHECKING:
    from modelyard.router.process.ext_proc import EndpointPicker

log = logging.getLogger(__name__)

MOST_LINE = 16_384
MOST_HEADERS = 256
PORTS = "choose another --port or --metrics-port"
"""Remedy for a port that the router cannot listen on."""


class RouterError(Exception):
    """The router cannot run. The message says what to do."""


class RouterProcess:
    """The parts of one process. ``async with`` nothing: ``run`` is all there is to do with it."""

    def __init__(
        self,
        settings: RouterSettings,
        configuration: Configuration | None = None,
        limits: LocalLimits | None = None,
        write: Callable[[str], object] | None = None,
    ) -> None:
        self.settings = settings
        file = ConfigurationFile(Path(settings.configuration)) if settings.configuration else None
        self.decider = Decider(configuration)
        self.configured = Configured(file, limits or LocalLimits(), self._choose if file else lambda _: None)
        self.metrics = RouterMetrics(self.decider.fleet)
        self.wake_queue = WakeQueue(settings.max_waiting, self.metrics.waits)
        self.limits = self.configured.limits
        self.port, self.metrics_port = settings.port, settings.metrics_port
        self.ext_proc_port = settings.ext_proc_port or 0
        self.started = asyncio.Event()
        """Set once it listens."""
        self._log = AccessLog(settings.log, self.metrics, write)
        self._upstream = Upstream(settings, self.metrics)
        self.front = Front(
            self.decider, self._upstream, self.configured, self.wake_queue, self.metrics, self._log, settings
        )
        self.follower = Follower(self.decider.fleet, self.take, settings.namespaces, settings.controller_namespace)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Begin to leave: requests in progress are answered. A second time: now."""
        if self._stop.is_set():
            raise KeyboardInterrupt
        self._stop.set()

    async def run(self, cluster: Cluster | None) -> None:
        """Serve until ``stop``; without a cluster, what ``take`` is told.

        Raises ``RouterError`` when the address cannot be listened on.
        """
        _allow_many_connections()
        async with contextlib.AsyncExitStack() as ends:
            ends.push_async_callback(self._upstream.close)
            ends.push_async_callback(self.front.reader.close)
            await ends.enter_async_context(self.configured.running(self._under_way, self._elsewhere))
            await self._serve(cluster, ends)

    async def _serve(self, cluster: Cluster | None, ends: contextlib.AsyncExitStack) -> None:
        settings = self.settings
        found = [self._bound(port, ends) for port in (settings.port, settings.metrics_port)]
        self.port, self.metrics_port = (one.getsockname()[1] for one in found)
        listener, site = await self._site(self._handle, found[0], ends, self._tls())
        _, pages = await self._site(self._handle_page, found[1], ends, None)
        pages.start()
        picker = self._picker()
        poller = EnginePoller(
            self.decider.fleet,
            self._upstream.session,
            settings.poll_seconds,
            verify=settings.verify_pods,
            shares=self.front.shares,
        )
        writing = asyncio.create_task(self._log.run())
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        try:
            async with asyncio.TaskGroup() as group:
                parts = [group.create_task(poller.run()), group.create_task(self._upstream.watch())]
                if cluster is not None:
                    parts.append(group.create_task(self.follower.run(cluster)))
                if cluster is None or await self._synced():
                    # Not before it knows where to send what comes.
                    site.start()
                    if picker is not None:
                        await picker.start()
                        log.info("picking pods for gateways on port %d", self.ext_proc_port)
                    where = settings.host, self.port, self.metrics_port
                    log.info(
                        "routing on %s://%s:%d, metrics on port %d", "https" if settings.tls_cert else "http", *where
                    )
                    self.started.set()
                    await self._stop.wait()
                    await self._leave(site, listener, picker)
                for part in parts:
                    part.cancel()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def _picker(self) -> EndpointPicker | None:
        if self.settings.ext_proc_port is None:
            return None
        try:
            from modelyard.router.process.ext_proc import EndpointPicker
        except ImportError as error:
            raise RouterError(f"gateways cannot be answered ({error}): install modelyard[gateway]") from None
        picker = EndpointPicker(self.front, self.settings, lambda: self.unready)
        try:
            self.ext_proc_port = picker.bind()
        except OSError as error:
            holder = find_holder(self.settings.host, self.settings.ext_proc_port)
            why = f"{holder} listens on port {self.settings.ext_proc_port}; end it, or" if holder else f"{error};"
            raise RouterError(f"cannot listen for gateways: {why} choose another --ext-proc-port") from None
        return picker

    def _tls(self) -> ssl.SSLContext | None:
        cert, key = self.settings.tls_cert, self.settings.tls_key
        if not cert and not key:
            return None
        try:
            if not (cert and key):
                raise ValueError("certificate and key go together; give both or neither")
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(cert, key)
        except (OSError, ValueError) as error:
            raise RouterError(f"TLS by {cert or 'no certificate'} and {key or 'no key'}: {error}") from None
        return context

    def _bound(self, port: int, ends: contextlib.AsyncExitStack) -> socket.socket:
        host = self.settings.host
        found = ends.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Others of this router alone may have the port too.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, self.settings.workers > 1)
        try:
            found.bind((host, port))
        except (OSError, OverflowError) as error:
            raise RouterError(describe_listen_error(host, port, error, PORTS)) from None
        return found

    async def _site(
        self, handle: Handler, bound: socket.socket, ends: contextlib.AsyncExitStack, tls: ssl.SSLContext | None
    ) -> tuple[web.Server, Acceptor]:
        listener = Listener(
            handle,
            self.settings.max_idle,
            lambda: self.metrics.crowded().inc(),
            self.front.shares,
            handler_cancellation=True,
            keepalive_timeout=self.settings.idle_seconds,
            access_log=None,
            auto_decompress=False,
            max_line_size=MOST_LINE,
            max_field_size=MOST_LINE,
            max_headers=MOST_HEADERS,
        )
        runner = web.ServerRunner(listener, shutdown_timeout=1.0)
        await runner.setup()
        ends.push_async_callback(runner.cleanup)
        acceptor = Acceptor(listener, bound, tls)
        ends.push_async_callback(acceptor.close)
        return listener, acceptor

    async def _synced(self) -> bool:
        waits = [asyncio.create_task(one.wait()) for one in (self.follower.synced, self._stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        return not self._stop.is_set()

    async def _leave(self, site: Acceptor, listener: web.Server, picker: EndpointPicker | None) -> None:
        settings = self.settings
        log.info("leaving: %d requests in progress", self.front.capacity.places.used)
        self.front.leaving = True
        await asyncio.sleep(settings.leave_seconds)
        site.stop()
        listener.pre_shutdown()
        if picker is not None:
            await picker.stop(settings.drain_seconds)
        if not await self.front.idle(settings.drain_seconds):
            log.warning(
                "%d requests are broken off after %g s", self.front.capacity.places.used, settings.drain_seconds
            )

    def _choose(self, configuration: Configuration) -> None:
        self.decider.configuration = configuration

    def _under_way(self) -> Mapping[Key, int]:
        found: dict[Key, int] = {}
        for backend in self.decider.fleet.backends.values():
            for pod in backend.pods:
                if pod.outstanding:
                    found[pod.key] = found.get(pod.key, 0) + pod.outstanding
        return found

    def _elsewhere(self, counts: Mapping[Key, int]) -> None:
        for backend in self.decider.fleet.backends.values():
            for pod in backend.pods:
                pod.elsewhere = counts.get(pod.key, 0)

    def take(self, change: FleetChange) -> None:
        """The fleet has changed so."""
        for before, after in change.routes:
            route = after or before
            assert route is not None
            self.limits.configure(route.key, after)
        for name in change.closed:
            self.configured.user_queues.close(name)
        for server, pod in change.gone:
            self.decider.forget(server, pod)
        # Those of a server that is gone are told so.
        gone = [key for key in self.wake_queue.servers if key not in self.decider.fleet.backends]
        self.wake_queue.wake([*change.served, *gone])
        self.front.changed()
        self.metrics.fleet_changed()

    @property
    def unready(self) -> str | None:
        """Why no requests should be sent here."""
        if self.front.leaving:
            return "the router is leaving"
        return None if self.follower.synced.is_set() else self.follower.trouble

    def _handle(self, http: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        return self._handle_page(http) if http.raw_path in ("/healthz", "/readyz") else self.front(http)

    async def _handle_page(self, http: web.BaseRequest) -> web.StreamResponse:
        if http.raw_path == "/metrics":
            return web.Response(body=self.metrics.page(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
        if http.raw_path == "/healthz":
            return _json(200, b'{"message":"ok"}')
        if http.raw_path != "/readyz":
            return _json(404, errors.unknown_path(http.raw_path).body)
        if self.unready:
            return _json(503, b'{"message":"router is not ready"}')
        return _json(200, b'{"message":"router is ready"}')


def _json(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


def _allow_many_connections() -> None:
    """As many files as may be: each request has two connections."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def serve(router: RouterProcess, cluster: Cluster) -> None:
    """Run until SIGTERM or an interrupt."""
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, router.stop)
    await router.run(cluster)
