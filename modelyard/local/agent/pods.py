"""One pod on one of our Nodes: its containers, its status, its end; run by `agent`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from modelyard.backoff import Backoff
from modelyard.cluster import Cluster, ClusterError, Conflict, NotFound, Object
from modelyard.hosts import HOSTS_VARIABLE
from modelyard.local.agent.containers import ContainerPlace, ContainerRunner
from modelyard.local.agent.launch import CannotRun, Inside, Launch, PodPlace, downward, plan, resolve
from modelyard.local.agent.nodes import Addresses
from modelyard.local.agent.records import ContainerRecord, PodRecord, RecordStore
from modelyard.local.agent.service_accounts import ACCOUNT_PATH, KUBECONFIG
from modelyard.local.agent.status import ContainerView, pod_status
from modelyard.local.agent.volumes import CannotMount, PodVolumes
from modelyard.local.settings import AgentSettings
from modelyard.local.state import now
from modelyard.objects import PODS

logger = logging.getLogger(__name__)

_RETRIES = Backoff(0.2, longest=5.0)
# A pod that was deleted with force has no time left; the kubelet gives it this much.
_FORCED_GRACE = 2.0


@dataclass(frozen=True)
class PodServices:
    """What all pods of an agent share."""

    cluster: Cluster
    settings: AgentSettings
    records: RecordStore
    addresses: Addresses
    session: aiohttp.ClientSession


class PodRunner:
    """The life of one pod, from its binding to a Node to its removal."""

    def __init__(self, pod: Object, host_address: str, services: PodServices, record: PodRecord | None) -> None:
        self._pod = pod
        self._services = services
        self._host_address = host_address
        self._dirty = asyncio.Event()
        self._deleted = asyncio.Event()
        self._vanished = False
        self._background: set[asyncio.Task[None]] = set()
        self._restart_policy = str(pod["spec"].get("restartPolicy", "Always"))
        self.record = record or PodRecord(
            uid=pod["metadata"]["uid"],
            namespace=pod["metadata"]["namespace"],
            name=pod["metadata"]["name"],
            node=pod["spec"]["nodeName"],
            started_at=now(),
        )
        if not self.record.address or not services.addresses.claim(self.record.address):
            self.record.address = services.addresses.take()
        self._place = PodPlace(self.record.address, host_address, self.record.node)
        settings = services.settings
        self._volumes = PodVolumes(
            *(services.cluster, settings.files, settings.kubeconfig, pod),
            lambda path: downward(self._pod, path, self._place),
        )
        init_policy = "Never" if self._restart_policy == "Never" else "OnFailure"
        self._init = [self._container(spec, init_policy) for spec in pod["spec"].get("initContainers") or []]
        self._main = [self._container(spec, self._restart_policy) for spec in pod["spec"]["containers"]]
        if record is not None:
            self._adopt()

    @property
    def described(self) -> str:
        return f"{self.record.namespace}/{self.record.name}"

    def config_map_changed(self, namespace: str, name: str) -> None:
        """A ConfigMap is not what it was: running containers that mount it get its new content, as from a kubelet."""
        if namespace == self.record.namespace and self._volumes.mounts("configMap", name):
            self._in_background(self._refresh())

    async def _refresh(self) -> None:
        for container in self._main:
            if container.running:
                try:
                    await self._volumes.mount(container.spec, anew=False)
                except (CannotMount, OSError, ValueError) as error:
                    logger.warning("pod %s: volumes cannot be refreshed: %s", self.described, error)

    def update(self, pod: Object) -> None:
        if _revision(pod) < _revision(self._pod):
            # From before our own last write of the status, which is on its way.
            return
        self._pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._deleted.set()
        self._dirty.set()

    def vanished(self) -> None:
        self._vanished = True
        self._deleted.set()

    async def run(self) -> None:
        phase = (self._pod.get("status") or {}).get("phase")
        if phase in ("Succeeded", "Failed") and not self.record.processes():
            # Finished under an earlier agent: nothing to run, only its deletion to await.
            await self._deleted.wait()
            await self._remove()
            return
        self._services.records.save(self.record)
        self._dirty.set()
        reporter = asyncio.create_task(self._report_changes(), name=f"status of {self.described}")
        work = asyncio.create_task(self._work(), name=f"containers of {self.described}")
        deletion = asyncio.create_task(self._deleted.wait())
        try:
            # A failure of the work must surface here, not wait for a deletion that may never come.
            await asyncio.wait({work, deletion}, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and not self._deleted.is_set():
                work.result()
                await deletion
            containers = [*self._init, *self._main]
            for container in containers:
                container.refuse_traffic()
            self._dirty.set()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            grace = self._grace()
            await asyncio.gather(*(container.stop(grace) for container in containers))
        finally:
            for task in (reporter, work, deletion):
                task.cancel()
            await asyncio.gather(reporter, work, deletion, return_exceptions=True)
        if not self._vanished:
            await self._report_until_done()
        await self._remove()

    def _grace(self) -> float:
        if self._vanished:
            return _FORCED_GRACE
        grace = self._pod["metadata"].get("deletionGracePeriodSeconds")
        if grace is None:
            grace = self._pod["spec"].get("terminationGracePeriodSeconds", 30)
        return float(grace)

    async def _work(self) -> None:
        for container in self._init:
            if not container.succeeded:
                await container.run()
            if not container.succeeded:
                # Failed for good; the status says so.
                return
        await asyncio.gather(*(container.run() for container in self._main))

    async def _remove(self) -> None:
        """Take the object out of the API and forget the pod; whoever sees that it is gone finds no files of it."""
        await asyncio.to_thread(self._volumes.remove)
        failures = 0
        while not self._vanished:
            try:
                await self._services.cluster.delete(
                    PODS, self.record.name, self.record.namespace, grace_seconds=0, uid=self.record.uid
                )
                break
            except Conflict:
                # Another pod has this name by now: ours is gone.
                break
            except ClusterError as error:
                logger.warning("pod %s cannot be removed yet: %s", self.described, error)
                failures += 1
                await asyncio.sleep(_RETRIES.delay(failures))
        self._services.records.remove(self.record.uid)
        self._services.addresses.free(self.record.address)

    def _container(self, spec: Object, restart_policy: str) -> ContainerRunner:
        name = str(spec["name"])
        record = self.record.containers.setdefault(name, ContainerRecord())
        folder = self._services.settings.logs / f"{self.record.namespace}_{self.record.name}_{self.record.uid}"
        place = ContainerPlace(
            address=self.record.address,
            log=folder / f"{name}.log",
            session=self._services.session,
            backoff_scale=self._services.settings.backoff_scale,
            launch=self._launch,
            changed=self._changed,
            event=self._event,
            last_words=self._volumes.last_words,
        )
        return ContainerRunner(spec, restart_policy, record, place)

    def _adopt(self) -> None:
        known = {entry["name"]: entry for entry in (self._pod.get("status") or {}).get("containerStatuses") or []}
        for container in [*self._init, *self._main]:
            last = known.get(container.name) or {}
            container.adopt(started=bool(last.get("started")), ready=bool(last.get("ready")))

    async def _launch(self, spec: Object, anew: bool) -> Launch:
        try:
            paths = await self._volumes.mount(spec, anew=anew)
        except (CannotMount, OSError, ValueError) as error:  # the last: a name that no file system has
            raise CannotRun("ContainerCreating", str(error), permanent=False) from error
        containers = self._pod["spec"]["containers"]
        ports = frozenset(int(port["containerPort"]) for one in containers for port in one.get("ports") or [])
        inside = Inside(self.record.address, paths, ports)
        env = await resolve(self._services.cluster, self._pod, spec, self._place, inside)
        names = self._services.settings.names
        found = {HOSTS_VARIABLE: str(names / "hosts"), "CURL_HOME": str(names)}
        if account := paths.get(ACCOUNT_PATH):
            found["KUBECONFIG"] = str(account / KUBECONFIG)
        return plan(spec, found | env, inside, self.record.name)

    def _changed(self) -> None:
        if not self._vanished:
            self._services.records.save(self.record)
        self._dirty.set()

    def _event(self, kind: str, reason: str, message: str) -> None:
        if self._vanished:
            return
        self._in_background(
            self._services.cluster.record_event(self._pod, reason, message, kind, component="modelyard-node-agent")
        )

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        # The loop keeps only weak references to tasks.
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _views(self, containers: Sequence[ContainerRunner], policy: str, *, init: bool) -> list[ContainerView]:
        def restarts(container: ContainerRunner) -> bool:
            if self._deleted.is_set() or policy == "Never":
                return False
            return policy == "Always" or not container.succeeded

        initialized = all(container.succeeded for container in self._init)
        return [
            ContainerView(
                name=container.name,
                image=str(container.spec.get("image", "")),
                record=container.record,
                waiting=container.waiting if init or initialized else ("PodInitializing", ""),
                started=container.started,
                ready=container.ready,
                restarts=restarts(container),
                init=init,
            )
            for container in containers
        ]

    def _status(self) -> Object:
        return pod_status(
            self._pod,
            self._views(self._init, "OnFailure", init=True),
            self._views(self._main, self._restart_policy, init=False),
            address=self.record.address,
            host_address=self._host_address,
            started_at=self.record.started_at,
            moment=now(),
        )

    async def _report_changes(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._report_until_done()

    async def _report_until_done(self) -> None:
        failures = 0
        while not self._vanished:
            status = self._status()
            if _says(self._pod.get("status") or {}, status):
                return
            patch = {"metadata": {"uid": self.record.uid}, "status": status}
            try:
                stored = await self._services.cluster.merge_patch(
                    PODS, self.record.name, patch, self.record.namespace, subresource="status"
                )
            except (NotFound, Conflict):
                # Gone, or another pod of the same name: the watch will say so.
                return
            except ClusterError as error:
                logger.warning("status of pod %s cannot be written yet: %s", self.described, error)
                failures += 1
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRIES.delay(failures)):
                        await self._dirty.wait()
                self._dirty.clear()
                continue
            if _revision(stored) >= _revision(self._pod):
                self._pod = stored
            return


def _says(present: object, wanted: object) -> bool:
    """Whether `present` holds all of `wanted`; the server leaves out nulls and empty maps and may add defaults."""
    if isinstance(wanted, dict):
        there = present if isinstance(present, dict) else {}
        return all(_says(there.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(present, list) and len(present) == len(wanted) and all(map(_says, present, wanted))
    return present == wanted


def _revision(pod: Object) -> int:
    """Resource versions of one object grow; 0 where a server writes them otherwise."""
    text = str(pod["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
