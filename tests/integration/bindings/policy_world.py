"""Workloads on the real control plane whose pods' metrics endpoints a test serves, and whole ticks over their bindings.

Pods are the controller-manager's own; one is made Ready by a status patch, as a kubelet would do, with a loopback
address at which the test answers. The time that is decided at is the test's own, so that minutes need not pass.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from binding_decisions import decide_bindings
from fleet_fixture import eventually, ready_status
from metric_endpoints import Endpoints, Handler, fresh_address, page

from modelyard.autoscaling.bindings.claims import without_rivals
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.decision import BindingDecision
from modelyard.autoscaling.decisions.explain import row
from modelyard.autoscaling.fleet.binding_view import BindingView
from modelyard.autoscaling.fleet.fleet import Consumer, Fleet, Variant
from modelyard.autoscaling.fleet.kinds import BINDINGS, POLICIES
from modelyard.autoscaling.live.collect import Selection
from modelyard.autoscaling.live.collect_bindings import list_bindings, observe_bindings
from modelyard.autoscaling.live.policy_state import PolicyState
from modelyard.autoscaling.plans.binding_plans import binding_plans, policy_plans
from modelyard.cluster import Cluster, NotFound
from modelyard.metrics.prometheus.client import Prometheus, PrometheusError
from modelyard.metrics.prometheus.expressions import Expressions
from modelyard.objects import Key
from modelyard.objects.kinds import DEPLOYMENTS, PODS, STATEFUL_SETS
from modelyard.reconcile.kernel.carry_out import Outcome, carry_out
from modelyard.reconcile.kernel.fence import Fence
from modelyard.reconcile.kernel.mirror import Mirror
from modelyard.reconcile.kernel.tell import Said, tell
from modelyard.reconcile.plans.plan import Plan, Ref

KINDS = {"Deployment": DEPLOYMENTS, "StatefulSet": STATEFUL_SETS}
NO_PROMETHEUS = PrometheusError("no Prometheus in this test")


def waiting(count: float) -> Handler:
    """An engine with so many requests in its queue."""
    return page(
        f'# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{engine="0"}} {count}\n'
        '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 0\n'
    )


@dataclass
class Ticked:
    """What one tick saw, decided and did."""

    views: tuple[BindingView, ...]
    decisions: tuple[BindingDecision, ...]
    outcome: Outcome

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        return [row(record) for decision in self.decisions for record in decision.records]

    def view(self, name: str) -> BindingView:
        return next(view for view in self.views if view.key.name == name)

    def decision(self, name: str) -> BindingDecision:
        return next(decision for decision in self.decisions if decision.key.name == name)


@dataclass
class PolicyWorld:
    """One namespace with workloads, policies and bindings."""

    cluster: Cluster
    endpoints: Endpoints
    namespace: str
    settings: FleetSettings = field(default_factory=FleetSettings)
    prometheus: Prometheus | PrometheusError = NO_PROMETHEUS
    addresses: dict[str, str] = field(default_factory=dict)
    """pod: the address it got"""
    selectors: dict[str, str] = field(default_factory=dict)
    """workload: the labels of its pods, where they are not ``app`` and its name"""
    written: dict[Ref, float] = field(default_factory=dict)
    """when a status was last written"""

    async def deploy(self, name: str, replicas: int, load: float = 0, kind: str = "Deployment", **labels: str) -> None:
        """A workload, all of whose pods are Ready and report ``load`` waiting requests each."""
        selector = {"app": name}
        container = {"name": "engine", "image": "example.invalid/engine"}
        spec: dict[str, Any] = {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": {**selector, **labels}}, "spec": {"containers": [container]}},
        }
        if kind == "StatefulSet":
            spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
        body = {"metadata": {"name": name, "namespace": self.namespace}, "spec": spec}
        await self.cluster.create(KINDS[kind], body, self.namespace)
        await self.settle(name, replicas, load)

    def selector(self, workload: str) -> str:
        """Its pods."""
        return self.selectors.get(workload, f"app={workload}")

    async def pods(self, workload: str) -> list[dict[str, Any]]:
        """Its pods that are not going away."""
        listed = await self.cluster.list(PODS, self.namespace, self.selector(workload))
        return [pod for pod in listed.items if not pod["metadata"].get("deletionTimestamp")]

    async def settle(self, workload: str, replicas: int, load: float | None = None, ready: int | None = None) -> None:
        """Wait until it has that many pods; make the new ones Ready (``ready`` of all) and let all report ``load``."""

        async def there() -> list[dict[str, Any]] | None:
            pods = await self.pods(workload)
            return pods if len(pods) == replicas else None

        pods = await eventually(there, f"{replicas} pods of {workload}", 120) if replicas else []
        pods.sort(key=lambda pod: pod["metadata"]["name"] not in self.addresses)
        for pod in pods[: len(pods) if ready is None else ready]:
            name = pod["metadata"]["name"]
            if name not in self.addresses:
                ip = self.addresses[name] = fresh_address()
                await self.endpoints.add(waiting(load or 0), ip)
                status = ready_status(time.time(), ip)
                await self.cluster.merge_patch(PODS, name, status, self.namespace, subresource="status")
        if load is not None:
            await self.load(workload, load)
        wanted = {name for pod in pods if (name := pod["metadata"]["name"]) in self.addresses}
        await eventually(lambda: self._shown(workload, wanted), f"{wanted} are listed as Ready", 120)

    async def _shown(self, workload: str, wanted: set[str]) -> bool:
        """Whether the server's watch cache, from which pods are read, tells of exactly these Ready pods."""
        listed = await self.cluster.list(PODS, self.namespace, self.selector(workload), cached=True)
        return wanted == {
            pod["metadata"]["name"]
            for pod in listed.items
            if (pod.get("status") or {}).get("podIP") and not pod["metadata"].get("deletionTimestamp")
        }

    async def load(self, workload: str, count: float) -> None:
        """Every Ready pod of the workload has so many waiting requests from now on."""
        await self.show(workload, waiting(count))

    async def show(self, workload: str, handler: Handler) -> None:
        """What every Ready pod of the workload answers from now on."""
        for pod in await self.pods(workload):
            if (ip := self.addresses.get(pod["metadata"]["name"])) is not None:
                self.endpoints[ip] = handler

    async def policy(self, name: str = "queue", metric: str = "vllm:num_requests_waiting", **spec: Any) -> None:
        """A policy that holds the waiting requests of an instance at 10."""
        body = {
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"metrics": [{"metricName": metric, "targetValue": "10"}], **spec},
        }
        await self.cluster.create(POLICIES, body, self.namespace)

    def target(self, workload: str, kind: str | None = "Deployment", **more: Any) -> dict[str, Any]:
        """A binding's reference to a workload and its metrics."""
        reference = {"name": workload, **({"kind": kind, "apiVersion": "apps/v1"} if kind else {})}
        return {"targetRef": reference, "metricEndpoint": {"port": self.endpoints.port or 8100}, **more}

    async def bind(
        self,
        name: str,
        target: dict[str, Any] | None = None,
        policy: str = "queue",
        least: int = 1,
        most: int = 20,
        annotations: dict[str, str] | None = None,
    ) -> None:
        """A binding in scaling mode of the workload of its own name."""
        scaling = {"target": target or self.target(name), "minReplicas": least, "maxReplicas": most}
        await self.create_binding(name, {"policyRef": {"name": policy}, "scalingConfiguration": scaling}, annotations)

    async def create_binding(self, name: str, spec: dict[str, Any], annotations: dict[str, str] | None = None) -> None:
        """A binding with this spec."""
        body = {
            "metadata": {"name": name, "namespace": self.namespace, "annotations": annotations or {}},
            "spec": spec,
        }
        await self.cluster.create(BINDINGS, body, self.namespace)

    async def binding(self, name: str) -> dict[str, Any]:
        """The binding as stored."""
        return await self.cluster.get(BINDINGS, name, self.namespace)

    async def condition(self, name: str, kind: str) -> dict[str, Any]:
        """A condition of a binding, empty when it has none of that type."""
        conditions = ((await self.binding(name)).get("status") or {}).get("conditions") or ()
        return next((dict(one) for one in conditions if one["type"] == kind), {})

    async def replicas(self, workload: str, kind: str = "Deployment") -> int | None:
        """``spec.replicas``, ``None`` when the workload is not there."""
        try:
            return int((await self.cluster.get(KINDS[kind], workload, self.namespace))["spec"]["replicas"])
        except NotFound:
            return None

    async def look(self, state: PolicyState) -> tuple[BindingView, ...]:
        """Only collect."""
        selection = Selection((self.namespace,))
        async with Mirror(self.cluster) as mirror:
            listed = await list_bindings(mirror, self.settings, selection, state)
            async with Expressions(self.prometheus) as expressions:
                return await observe_bindings(mirror, expressions, self.settings, listed, state)

    async def tick(
        self,
        state: PolicyState,
        now: float,
        *,
        variants: tuple[Variant, ...] = (),
        consumers: tuple[Consumer, ...] = (),
        said: Said | None = None,
        fence: Fence | None = None,
    ) -> Ticked:
        """Collect, decide, actuate, report, as the loop does."""
        views = await self.look(state)
        views = without_rivals(views, Fleet(now, variants=variants, consumers=consumers))
        decisions, errors = decide_bindings(views, self.settings, now)
        assert not errors
        plans = [*self.plans(views, decisions, now), *policy_plans(state.listed_policies, now)]
        outcome = await carry_out(self.cluster, plans, fence or Fence())
        self.written |= dict.fromkeys(outcome.written, now)
        await tell(self.cluster, plans, outcome, said or Said(), now)
        return Ticked(views, decisions, outcome)

    def plans(self, views: Sequence[BindingView], decisions: Sequence[BindingDecision], now: float) -> list[Plan]:
        """What is to be written about bindings."""
        return binding_plans(views, decisions, now, self.settings.status_refresh, self.written)

    async def carry_out(
        self,
        views: Sequence[BindingView],
        decisions: Sequence[BindingDecision],
        now: float,
        fence: Fence | None = None,
    ) -> Outcome:
        """Write decisions about bindings, and nothing else."""
        return await carry_out(self.cluster, self.plans(views, decisions, now), fence or Fence())

    def ref(self, name: str) -> Ref:
        """How outcomes name a binding."""
        return Ref(BINDINGS.kind, Key(self.namespace, name))

    async def ticks(self, state: PolicyState, times: list[float]) -> list[int | None]:
        """Ticks at these times; the replicas that the first binding's first target was decided to have."""
        found = []
        for now in times:
            found.append((await self.tick(state, now)).decisions[0].records[0].target.replicas)
            await asyncio.sleep(0)
        return found
