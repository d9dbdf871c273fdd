"""AutoscalingPolicyBindings in a replay: what a tick would see of them, and what the cluster would keep.

The views are put together by the loop's own parts (``modelyard.autoscaling.live.bindings``) from the simulated pods,
each looked at in the tick itself, as the loop reads metrics endpoints.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from modelyard.autoscaling.configuration import FleetSettings, fleet_handling, handling_of
from modelyard.autoscaling.decisions import BindingDecision
from modelyard.autoscaling.fleet import BINDINGS, POLICIES, BindingView, learn_startup
from modelyard.autoscaling.offline import Manifest, is_ours, nowhere
from modelyard.autoscaling.pipeline import binding_strategy
from modelyard.autoscaling.plans import binding_plans
from modelyard.autoscaling.reading.bindings import (
    BindingSpec,
    Histories,
    Instance,
    ListedBindings,
    TargetPlan,
    TargetPods,
    TargetSpec,
    binding_view,
    objects,
    scrapes,
    target_plans,
)
from modelyard.engine import EngineCore, samples
from modelyard.metrics.vocabulary import VLLM, Answers, Expression, MetricsEndpoint, Page, PageSample, Scrape
from modelyard.objects import NAMESPACES, Key, Pod, Workload, WorkloadId, parse
from modelyard.reconcile.plans import Ref
from modelyard.replay.policies.base import carried_out
from modelyard.replay.simulation import SimulatedFleet, SimulatedPod

NO_PROMQL: Final = "PromQL is not evaluated in a replay"
ADDRESS: Final = "127.0.0.1"
FAMILIES: Final = {name: family for family in VLLM.families for name in (family.base, family.name)}
"""The families that a simulated engine has, those of vLLM: a policy on any other finds it missing. A counter may be
named with or without ``_total``."""


class Bindings:
    """The bindings of some manifests over one replay. ``origin`` is the epoch second at which it begins.

    An expression that waits for a binding at zero (``modelyard.dev/wake-query``) is answered with the requests that
    wait at the router for its model; metrics from Prometheus have no answer.
    """

    def __init__(self, manifests: Sequence[Manifest], settings: FleetSettings, origin: float) -> None:
        self._settings = settings
        self._origin = origin
        self._bodies = {m.key: copy.deepcopy(m.body) for m in manifests if m.kind == BINDINGS.kind}
        self._namespaces = {m.key.name: parse.namespace(m.body) for m in manifests if m.kind == NAMESPACES.kind}
        read = {key: self._read(body) for key, body in sorted(self._bodies.items())}
        self._specs = {key: spec for key, spec in read.items() if is_ours(spec.view, settings)}
        policies = [objects.policy(m.body) for m in manifests if m.kind == POLICIES.kind]
        self._policies = {policy.key: policy for policy in policies}
        self._histories = Histories()
        self._startup: dict[WorkloadId, float] = {}
        self._written: dict[Ref, float] = {}

    def __bool__(self) -> bool:
        return bool(self._specs)

    def observe(
        self, now: float, fleet: SimulatedFleet, workloads: Mapping[WorkloadId, Workload], pods: Mapping[str, Pod]
    ) -> tuple[BindingView, ...]:
        """The bindings as ``collect`` would see them ``now`` (seconds from the trace's start); ``pods`` by name."""
        if not self._specs:
            return ()
        listed = ListedBindings(tuple(self._specs.values()), self._policies)
        alive = {spec.workload: fleet.pods_of(key) for key, spec in fleet.variants.items() if spec.workload is not None}
        plans = {key: self._plans(spec, listed, workloads, alive, pods) for key, spec in self._specs.items()}
        wanted = scrapes(plans.values())
        by_name = {pod.name: pod for some in alive.values() for pod in some}
        pages: dict[Scrape, Page | str] = {}
        for scrape, names in wanted.items():
            pod = by_name[scrape.endpoint.name]
            fleet.look(pod)
            pages[scrape] = page(pod.core, names, self._origin + now)
        default = fleet_handling(self._settings)
        from_start = [
            plans[key]
            for key, spec in self._specs.items()
            if binding_strategy(handling_of(spec.view.annotations, default).compatibility).histograms_from_start
        ]
        measured = self._histories.measure(wanted, pages, scrapes(from_start).keys())
        answers = self._answers(fleet, plans)
        return tuple(binding_view(spec, listed, plans[key], answers, measured) for key, spec in self._specs.items())

    def keep(self, views: Iterable[BindingView], decisions: Iterable[BindingDecision], now: float) -> None:
        """Memory and status as the loop would write them at ``now`` (epoch seconds), and the object read back."""
        for plan in binding_plans(views, decisions, now, self._settings.status_refresh, self._written):
            if plan.annotations or plan.status is not None:
                key = plan.subject.key
                self._bodies[key] = carried_out(self._bodies[key], plan, now)
                self._specs[key] = self._read(self._bodies[key])
            if plan.status is not None:
                self._written[plan.subject.ref] = now

    def _read(self, body: Mapping[str, Any]) -> BindingSpec:
        return objects.within_reach(objects.binding(body), self._namespaces)

    def _plans(
        self,
        binding: BindingSpec,
        listed: ListedBindings,
        workloads: Mapping[WorkloadId, Workload],
        alive: Mapping[WorkloadId, Sequence[SimulatedPod]],
        pods: Mapping[str, Pod],
    ) -> list[TargetPlan]:
        def find(spec: TargetSpec) -> tuple[Workload | None, str | None, TargetPods]:
            workload = next((workloads[id_] for id_ in spec.candidates if id_ in workloads), None)
            if workload is None:
                return None, nowhere(spec), TargetPods()
            return workload, None, self._pods_of(workload, alive.get(workload.id, ()), pods)

        return target_plans(binding, listed, find)

    def _pods_of(self, workload: Workload, alive: Sequence[SimulatedPod], pods: Mapping[str, Pod]) -> TargetPods:
        ready = [pod for pod in alive if pod.ready]
        startup = learn_startup(self._startup.get(workload.id), [pods[pod.name] for pod in ready])
        if startup is not None:
            self._startup[workload.id] = startup
        wanted = 1 if workload.spec_replicas is None else workload.spec_replicas
        waiting = sum(pod.active and not pod.ready for pod in alive)
        instances = tuple(Instance(pod.name, (MetricsEndpoint(pod.name, "", pod.name, ADDRESS),)) for pod in ready)
        return TargetPods(instances, min(waiting, max(0, wanted - len(ready))), startup)

    def _answers(self, fleet: SimulatedFleet, plans: Mapping[Key, Sequence[TargetPlan]]) -> Answers:
        models = {spec.workload: spec.model for spec in fleet.variants.values()}
        queues: dict[Expression, float | str] = {}
        for key, spec in self._specs.items():
            if spec.wake_query:
                mine = {models[p.workload.id] for p in plans[key] if p.workload is not None and p.workload.id in models}
                queues[spec.expression(spec.wake_query)] = float(sum(fleet.queued(model) for model in mine))
        return defaultdict(lambda: NO_PROMQL, queues)


def remarks(views: Iterable[BindingView], manifests: Iterable[Manifest]) -> Iterator[str]:
    """Metrics of these bindings' policies that a replay cannot measure, each with its remedy."""
    specs = {m.key: objects.binding(m.body) for m in manifests if m.kind == BINDINGS.kind}
    for view in views:
        if view.policy is None:
            continue
        asked = {metric for queries in specs[view.key].sources.values() for metric in queries}
        for metric in sorted(view.policy.targets):
            if metric in asked:
                yield f"AutoscalingPolicyBinding {view.key}: metric {metric} is missing here: {NO_PROMQL}"
            elif metric not in FAMILIES:
                yield (
                    f"AutoscalingPolicyBinding {view.key}: metric {metric} is missing here: the simulated engine has "
                    f"none of that name; it has {', '.join(family.base for family in VLLM.families)}"
                )


def page(core: EngineCore, names: Iterable[str], at: float) -> Page:
    """The families ``names`` of an engine as a page read ``at`` (epoch seconds); one it does not have is left out."""
    families = {family.name: family for name in sorted(set(names)) if (family := FAMILIES.get(name))}
    return Page(
        samples=[
            PageSample(name, labels, float(value), family.kind)
            for family in families.values()
            for name, labels, value in samples(core, family, {})
        ],
        at=at,
    )
