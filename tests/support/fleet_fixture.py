"""A fleet on the real control plane whose engines' metrics a test can set: what the loop's integration tests stand on.

Deployments, ReplicaSets and pods are the controller-manager's own; a pod is made Ready by a status patch, as a kubelet
would do, and its series come from a metric source that a real Prometheus scrapes every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import TickDecision
from modelyard.autoscaling.fleet.fleet import Fleet
from modelyard.autoscaling.fleet.kinds import VARIANTS
from modelyard.autoscaling.live.controller import Controller
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.cluster import Cluster
from modelyard.metrics.prometheus.client import Prometheus, PrometheusSettings
from modelyard.objects import ResourceType
from modelyard.objects.kinds import DEPLOYMENTS, PODS
from modelyard.reconcile.kernel.carry_out import Outcome
from modelyard.reconcile.plans.report import TickReport

PEAK = 4
"""Seconds over which the loop of these tests looks for the highest value."""
_REPORTED: dict[str, set[str]] = {}
"""Pods of which Prometheus had what a test waited for, by namespace."""


def escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


Value = float | Callable[[float], float] | None


def steadily(per_second: float, start: float = 0.0) -> Callable[[float], float]:
    """A value that grows from now on; what it is at a reading of the monotonic clock."""
    begun = time.monotonic()
    return lambda now: start + per_second * (now - begun)


@dataclass
class Gauges:
    """What one pod's engine says. ``None``: the series is absent. NaN is served as NaN. A function is called for each
    page, with one time for all of it.

    ``more`` are further series by name; ``raw`` whole lines, for series with labels of their own.
    """

    model: str
    kv: Value = 0.3
    waiting: Value = 0.0
    running: Value = 1.0
    finished: Value = 100.0
    more: dict[str, Value] = field(default_factory=dict)
    raw: list[str | Callable[[float], str]] = field(default_factory=list)
    label: str = "model_name"
    """The label that names the model."""


class MetricSource:
    """An exposition endpoint for any number of pods, with their own namespace and pod labels."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], Gauges] = {}
        self.frozen: bytes | None = None
        """Serve this instead of rendering (large fleets that do not change)."""
        source = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = source.frozen or source.render().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def render(self) -> str:
        lines, now = [], time.monotonic()
        for name, attribute in (
            ("vllm:kv_cache_usage_perc", "kv"),
            ("vllm:num_requests_waiting", "waiting"),
            ("vllm:num_requests_running", "running"),
            ("vllm:request_success_total", "finished"),
        ):
            lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
            for (namespace, pod), gauges in list(self.pods.items()):
                lines += self._line(name, namespace, pod, gauges, getattr(gauges, attribute), now)
        for (namespace, pod), gauges in list(self.pods.items()):
            for name, value in gauges.more.items():
                lines += self._line(name, namespace, pod, gauges, value, now)
            lines += [line(now) if callable(line) else line for line in gauges.raw]
        return "\n".join(lines) + "\n"

    @staticmethod
    def _line(name: str, namespace: str, pod: str, gauges: Gauges, value: Value, now: float) -> list[str]:
        if value is None:
            return []
        number = value(now) if callable(value) else value
        model = f'{gauges.label}="{escape(gauges.model)}"'
        return [f'{name}{{namespace="{namespace}",pod="{pod}",{model},engine="0"}} {number}']

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def ready_status(since: float, ip: str = "127.0.0.1") -> dict[str, Any]:
    moment = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": moment}
                for kind in ("Initialized", "ContainersReady", "Ready")
            ],
        }
    }


@dataclass
class ServedModel:
    """Variants of models in one namespace, their pods and their metrics."""

    cluster: Cluster
    source: MetricSource
    namespace: str
    prometheus_url: str = ""
    models: dict[str, str] = field(default_factory=dict)
    """workload: model"""

    async def deploy(self, name: str, replicas: int, model: str = "llama", gpus: int = 1) -> None:
        """A Deployment, all of whose pods are Ready since an hour and report an easy load."""
        labels = {"app": name}
        container = {
            "name": "engine",
            "image": "example.invalid/engine",
            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        }
        await self.cluster.create(
            DEPLOYMENTS,
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
                },
            },
            self.namespace,
        )
        self.models[name] = model
        await self.settle(name, replicas)

    async def vary(
        self,
        name: str,
        target: str | None = None,
        model: str = "llama",
        cost: str = "10.0",
        accelerator: str | None = "H100",
        annotations: dict[str, str] | None = None,
        kind: str = "Deployment",
    ) -> None:
        """A VariantAutoscaling of the same name as its workload."""
        metadata: dict[str, Any] = {"name": name, "namespace": self.namespace, "annotations": annotations or {}}
        if accelerator:
            metadata["labels"] = {"inference.optimization/acceleratorName": accelerator}
        await self.cluster.create(
            VARIANTS,
            {
                "apiVersion": "llmd.ai/v1alpha1",
                "kind": "VariantAutoscaling",
                "metadata": metadata,
                "spec": {
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": kind, "name": target or name},
                    "modelID": model,
                    "variantCost": cost,
                },
            },
            self.namespace,
        )

    async def own(self, workload: str, kind: ResourceType, spec: dict[str, Any], **labels: str) -> None:
        """Make an object of this kind the controller of a Deployment."""
        body = {"metadata": {"name": f"of-{workload}", "namespace": self.namespace}, "spec": spec}
        made = await self.cluster.create(kind, body, self.namespace)
        reference = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "name": f"of-{workload}",
            "uid": made["metadata"]["uid"],
            "controller": True,
        }
        patch = {"metadata": {"labels": labels, "ownerReferences": [reference]}}
        await self.cluster.merge_patch(DEPLOYMENTS, workload, patch, self.namespace)

    async def pods(self, workload: str) -> list[dict[str, Any]]:
        listed = await self.cluster.list(PODS, self.namespace, f"app={workload}")
        return [pod for pod in listed.items if not pod["metadata"].get("deletionTimestamp")]

    async def settle(self, workload: str, replicas: int, age: float = 3600) -> list[str]:
        """Wait until the controller-manager has made it ``replicas`` pods; make them Ready and let them report."""
        async with asyncio.timeout(120):
            while True:
                pods = await self.pods(workload)
                if len(pods) == replicas:
                    break
                await asyncio.sleep(0.1)
        names = []
        for pod in pods:
            name = pod["metadata"]["name"]
            names.append(name)
            if not any(c["type"] == "Ready" for c in (pod.get("status") or {}).get("conditions") or ()):
                await self.cluster.merge_patch(
                    PODS, name, ready_status(time.time() - age), self.namespace, subresource="status"
                )
            self.source.pods.setdefault((self.namespace, name), Gauges(self.models[workload]))
        for key in [k for k in self.source.pods if k[0] == self.namespace and k[1].startswith(f"{workload}-")]:
            if key[1] not in names:
                del self.source.pods[key]
        async with asyncio.timeout(120):
            while True:
                status = (await self.cluster.get(DEPLOYMENTS, workload, self.namespace)).get("status") or {}
                if status.get("readyReplicas", 0) == replicas and status.get("replicas", 0) == replicas:
                    return sorted(names)
                await asyncio.sleep(0.1)

    def load(self, workload: str, **values: Value) -> None:
        """Set the gauges of every pod of a workload."""
        for (namespace, pod), gauges in self.source.pods.items():
            if namespace == self.namespace and pod.startswith(f"{workload}-"):
                for name, value in values.items():
                    setattr(gauges, name, value)

    async def reported(self) -> None:
        """Wait until Prometheus has scraped what the source says about this namespace now, and remembers nothing else.

        The loop of these tests looks at the highest value of ``PEAK`` seconds.
        """
        names = {"kv": "vllm:kv_cache_usage_perc", "waiting": "vllm:num_requests_waiting"}
        mine = {pod: gauges for (namespace, pod), gauges in self.source.pods.items() if namespace == self.namespace}
        begun = time.time()
        async with Prometheus(PrometheusSettings(base_url=self.prometheus_url, timeout=30)) as prometheus:

            async def same() -> bool:
                for attribute, metric in names.items():
                    wanted = {
                        pod: None if math.isnan(value) else value
                        for pod, gauges in mine.items()
                        if (value := getattr(gauges, attribute)) is not None
                    }
                    where = f'{metric}{{namespace="{self.namespace}"}}'
                    peaks = await prometheus.query(f"max_over_time({where}[{PEAK}s])", "a test")
                    found = {s.labels["pod"]: s.value for s in peaks}
                    scraped = await prometheus.query(f"timestamp({where})", "a test")
                    if found != wanted or any((s.value or 0) < begun for s in scraped):
                        return False
                # Of one sample there is no rate yet.
                counted = f'count_over_time(vllm:request_success_total{{namespace="{self.namespace}"}}[1m])'
                counts = {s.labels["pod"]: s.value or 0 for s in await prometheus.query(counted, "a test")}
                return all(counts.get(pod, 0) > 1 for pod, gauges in mine.items() if gauges.finished is not None)

            await eventually(same, f"Prometheus reports {mine}")
        _REPORTED[self.namespace] = {
            pod for pod, gauges in mine.items() if isinstance(gauges.kv, float) and not math.isnan(gauges.kv)
        }

    async def replicas(self, workload: str) -> int:
        return int((await self.cluster.get(DEPLOYMENTS, workload, self.namespace))["spec"]["replicas"])

    async def variant(self, name: str) -> dict[str, Any]:
        return await self.cluster.get(VARIANTS, name, self.namespace)

    async def condition(self, name: str, kind: str) -> dict[str, Any]:
        for condition in ((await self.variant(name)).get("status") or {}).get("conditions") or ():
            if condition["type"] == kind:
                return dict(condition)
        return {}


def quick(prometheus_url: str, namespace: str, **policy: Any) -> ControllerSettings:
    """Settings for tests: one namespace, short windows, no delays unless asked for."""
    fleet = FleetSettings(
        **{
            "peak_window": PEAK,
            "scale_down_delay": 0,
            "partial_limit": 0,
            "controller_namespace": f"{namespace}",
            **policy,
        }
    )
    return ControllerSettings(prometheus_url=prometheus_url, prometheus_timeout=20, namespaces=[namespace], fleet=fleet)


@dataclass(frozen=True)
class Ticked:
    """What the stages of one tick gave."""

    fleet: Fleet
    decision: TickDecision
    outcome: Outcome
    report: TickReport


async def run_tick(loop: Controller) -> Ticked:
    """All stages. It looks again where nothing was scraped meanwhile, as it may be on a busy machine."""
    async with asyncio.timeout(120):
        while _unseen(fleet := await loop.collect()):
            await asyncio.sleep(0.1)
    decision = loop.decide(fleet)
    done = await loop.actuate(fleet, decision)
    return Ticked(fleet, decision, done.outcome, await loop.report(decision, done))


def _unseen(fleet: Fleet) -> bool:
    """Return whether Prometheus answers without a pod that it knew of a moment ago."""
    seen = {(signal.namespace, signal.pod) for signal in fleet.signals.pods if signal.kv is not None}
    return fleet.signals.error is None and any(
        pod.key.name in _REPORTED.get(pod.key.namespace, ()) and (pod.key.namespace, pod.key.name) not in seen
        for pod in fleet.pods
    )


async def eventually(check: Callable[[], Any], what: str, seconds: float = 120) -> Any:
    """Wait until an (asynchronous) check gives something true; ask ever more rarely, as some list many objects."""
    deadline, pause = asyncio.get_running_loop().time() + seconds, 0.1
    while True:
        value = check()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        await asyncio.sleep(pause)
        pause = min(1.2 * pause, 0.5)
