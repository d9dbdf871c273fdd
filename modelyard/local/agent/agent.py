"""The agent: one watch over all pods, a `PodRunner` for each that is bound to a Node of ours; run by `__main__`.

It also follows Services, claims, and the ConfigMaps that pods mount.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from modelyard.cluster import Cluster, ClusterError, ClusterSettings, Object
from modelyard.local import processes
from modelyard.local.agent import logs
from modelyard.local.agent.discovery import target_groups
from modelyard.local.agent.nodes import Addresses, NodeKeeper
from modelyard.local.agent.pods import PodRunner, PodServices
from modelyard.local.agent.records import ContainerRecord, PodRecord, RecordStore
from modelyard.local.agent.services import Services
from modelyard.local.agent.volumes import keep_claims
from modelyard.local.settings import AgentSettings
from modelyard.objects import CONFIG_MAPS, PODS, SERVICES, ResourceType

logger = logging.getLogger(__name__)

_RETRY = 1.0
_ORPHAN_GRACE = 5.0


@dataclass
class Health:
    """The agent's HTTP endpoints on loopback, for the supervisor and Prometheus.

    /healthz answers while it runs, /readyz once it knows its Nodes and pods, /discovery/pods lists scrape targets.
    """

    port: int
    discovery: Callable[[], list[Object]]
    ready = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve for the length of the `with`. Raises `OSError` when the port is taken."""
        application = web.Application()
        for path in ("/healthz", "/readyz", "/discovery/pods"):
            application.router.add_get(path, self._answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
            yield
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        if not self.ready and request.path != "/healthz":
            # Prometheus keeps the targets it has when it gets an error, which is better than an empty list.
            return web.Response(status=503, text="nodes or pods not known yet")
        return web.json_response(self.discovery()) if request.path == "/discovery/pods" else web.Response(text="ok")


class Agent:
    """Plays the kubelet for all Nodes."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._addresses = Addresses(settings.address_prefix)
        names = [f"{group.name}-{index}" for group in settings.nodes for index in range(group.count)]
        self._nodes = {name: self._addresses.node(index) for index, name in enumerate(names)}
        self._store = RecordStore(settings.records)
        self._records: dict[str, PodRecord] = {record.uid: record for record in self._store.all()}
        self._pods: dict[str, PodRunner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._objects: dict[str, Object] = {}
        self._services: Services | None = None
        self._health = Health(settings.health_port, lambda: target_groups(self._objects.values()))

    async def run(self) -> None:
        """Work until cancelled. Containers keep running after that; the next agent adopts them."""
        connection = ClusterSettings(kubeconfig=self._settings.kubeconfig, field_manager="modelyard-node-agent")
        # Probes go to loopback addresses, one short connection each, and never through a proxy.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        settings = self._settings
        async with (
            self._health.serving(),
            logs.serving(self._nodes.values(), settings.kubelet_port, settings.pki, self._container),
            Cluster.connect(connection) as cluster,
            aiohttp.ClientSession(connector=connector, trust_env=False) as session,
        ):
            services = PodServices(cluster, settings, self._store, self._addresses, session)
            keeper = NodeKeeper(cluster, settings.nodes, self._nodes, settings.kubelet_port, settings.heartbeat)
            await self._register(keeper)

            async def warn(service: Object, reason: str, message: str) -> None:
                await cluster.record_event(service, reason, message, "Warning", component="modelyard-node-agent")

            self._services = Services(settings.service_network, settings.names, self._objects, warn)
            beside = [
                asyncio.create_task(keeper.run(), name="heartbeat"),
                asyncio.create_task(keep_claims(cluster, settings.files), name="claims"),
                asyncio.create_task(self._services.run(), name="services"),
                asyncio.create_task(follow(cluster, SERVICES, self._services.handle), name="services' watch"),
                asyncio.create_task(follow(cluster, CONFIG_MAPS, self._config_map), name="config maps"),
            ]
            try:
                await self._watch(services)
            finally:
                tasks = [*beside, *self._tasks.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _container(self, namespace: str, pod: str, container: str) -> ContainerRecord | None:
        found = [one.record for one in self._pods.values() if one.described == f"{namespace}/{pod}"]
        return found[-1].containers.get(container) if found else None

    async def _register(self, keeper: NodeKeeper) -> None:
        while True:
            try:
                await keeper.register()
                return
            except ClusterError as error:
                logger.warning("nodes cannot be registered yet: %s", error)
                await asyncio.sleep(_RETRY)

    async def _watch(self, services: PodServices) -> None:
        while True:
            try:
                async with aclosing(services.cluster.watch(PODS)) as events:
                    async for event in events:
                        await self._handle(event.kind, event.object, services)
            except ClusterError as error:
                logger.error("the watch over pods ended: %s", error)
                await asyncio.sleep(_RETRY)

    async def _handle(self, kind: str, pod: Object, services: PodServices) -> None:
        if kind == "SYNC":
            await self._stop_orphans()
            self._health.ready = True
            return
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._objects.pop(uid, None)
        else:
            self._objects[uid] = pod
        if self._services is not None:
            self._services.changed()
        node = (pod.get("spec") or {}).get("nodeName")
        if node not in self._nodes:
            return
        known = self._pods.get(uid)
        if kind == "DELETED":
            if known is not None:
                known.vanished()
            return
        if known is None:
            known = PodRunner(pod, self._nodes[node], services, self._records.pop(uid, None))
            self._pods[uid] = known
            self._tasks[uid] = asyncio.create_task(self._live(uid, known), name=f"pod {known.described}")
        known.update(pod)

    def _config_map(self, kind: str, config_map: Object) -> None:
        if kind in ("ADDED", "MODIFIED"):
            metadata = config_map["metadata"]
            for pod in self._pods.values():
                pod.config_map_changed(metadata["namespace"], metadata["name"])

    async def _live(self, uid: str, pod: PodRunner) -> None:
        """Run a pod to its end; an unforeseen error is logged and the pod carried on with, not abandoned."""
        while True:
            try:
                await pod.run()
                break
            except Exception:
                logger.exception("pod %s: unforeseen error, trying again", pod.described)
                await asyncio.sleep(_RETRY)
        self._pods.pop(uid, None)
        self._tasks.pop(uid, None)

    async def _stop_orphans(self) -> None:
        """Stop what runs for pods that no longer exist: they were removed while no agent was running."""
        orphans, self._records = self._records, {}
        for record in orphans.values():
            alive = [identity for identity in record.processes() if identity.alive()]
            if alive:
                logger.warning("pod %s/%s no longer exists: stopping its processes", record.namespace, record.name)
                await asyncio.to_thread(processes.stop, alive, _ORPHAN_GRACE)
            await asyncio.to_thread(shutil.rmtree, self._settings.files / "pods" / record.uid, True)
            self._store.remove(record.uid)


async def follow(cluster: Cluster, kind: ResourceType, handle: Callable[[str, Object], None]) -> None:
    """Hand every event of a watch on, without end."""
    while True:
        try:
            async with aclosing(cluster.watch(kind)) as events:
                async for event in events:
                    if event.kind != "SYNC":
                        handle(event.kind, event.object)
        except ClusterError as error:
            logger.warning("%s cannot be followed: %s", kind.plural, error)
        await asyncio.sleep(_RETRY)
