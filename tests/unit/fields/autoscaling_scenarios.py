"""Rich autoscaling objects, and the decisions that follow: replicas over time, pages to read, statuses."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from binding_decisions import decide_binding
from field_mutations import InvalidObject, Scenario

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.binding_view import BindingView, TargetView
from modelyard.autoscaling.live.wants import LIVE_PODS
from modelyard.autoscaling.memory.bindings import BindingMemory
from modelyard.autoscaling.offline.fleet import fleet_from_files
from modelyard.autoscaling.offline.manifests import manifest
from modelyard.autoscaling.offline.snapshot import read_snapshot
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.plans.binding_plans import binding_plan
from modelyard.autoscaling.plans.variant_plans import variant_plans
from modelyard.autoscaling.reading import observe
from modelyard.autoscaling.reading.bindings import objects
from modelyard.autoscaling.reading.bindings.pods import TargetPods, target_pods
from modelyard.autoscaling.reading.bindings.values import Histories
from modelyard.autoscaling.reading.bindings.views import ListedBindings, binding_view, scrapes, target_plans
from modelyard.metrics.vocabulary.pages import Page, Scrape, parse
from modelyard.objects import Key, Workload, WorkloadId
from modelyard.reconcile.kernel.mirror import Store
from modelyard.reconcile.plans.plan import Plan

PLAN = Path(__file__).parents[3] / "config" / "samples" / "plan"
NOW = 1_800_000_000.0
GROUP = "registry.volcano.sh/v1alpha1"
SETTINGS = FleetSettings()
WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"


def _policy(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "load", "namespace": "shop", "uid": "p", "generation": 2}
    return {"apiVersion": GROUP, "kind": "AutoscalingPolicy", "metadata": metadata, "spec": spec}


POLICY = _policy(
    tolerancePercent=25,
    metrics=[{"metricName": WAITING, "targetValue": "10"}, {"metricName": RUNNING, "targetValue": "500m"}],
    behavior={
        "scaleUp": {
            "stablePolicy": {
                "instances": 3,
                "percent": 80,
                "period": "45s",
                "selectPolicy": "And",
                "stabilizationWindow": "30s",
            },
            "panicPolicy": {"percent": 60, "period": "30s", "panicThresholdPercent": 450, "panicModeHold": "2m"},
        },
        "scaleDown": {
            "instances": 9,
            "percent": 30,
            "period": "45s",
            "selectPolicy": "And",
            "stabilizationWindow": "1m",
        },
    },
)
LOADS = (*(20,) * 8, *(110,) * 8, *(700,) * 12, *(20,) * 50)
"""Waiting requests at each tick, all replicas together: slow growth, a jump, calm."""


def policy_outcome(obj: Mapping[str, Any]) -> list[str]:
    """Follow a policy for a while: the replicas of its workload at each tick of 15 s."""
    policy = objects.policy(obj)
    if policy.problem is not None:
        raise InvalidObject(policy.problem)
    memory, replicas, history = BindingMemory(), 2, []
    workload = WorkloadId("shop", "apps", "Deployment", "chat")
    for tick, load in enumerate(LOADS):
        instance = {WAITING: load / replicas, RUNNING: 2.5 / replicas}
        target = TargetView("chat", workload, 1, 60, current=replicas, ready=replicas, instances=(instance,) * replicas)
        view = BindingView(
            key=Key("shop", "chat"),
            uid="b",
            generation=1,
            resource_version="1",
            policy_name="load",
            optimizer=False,
            targets=(target,),
            policy=policy.view,
            memory=memory,
            problem=policy.problem,
        )
        decision = decide_binding(view, SETTINGS, NOW + 15 * tick)
        memory = decision.memory
        replicas = decision.record.writes.scale or replicas
        history.append(str(replicas))
    return history


def _binding(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "chat", "namespace": "shop", "uid": "b", "generation": 2, "annotations": {}}
    spec = {"policyRef": {"name": "load"}, **spec}
    return {"apiVersion": GROUP, "kind": "AutoscalingPolicyBinding", "metadata": metadata, "spec": spec}


def _target(name: str, port: int, **reference: str) -> dict[str, Any]:
    return {
        "targetRef": {"apiVersion": "example.com/v1", "kind": "Server", "name": name, **reference},
        "additionalMatchLabels": {"role": "decode"},
        "metricEndpoint": {"uri": "/stats", "port": port},
    }


_UNUSED = {"resourceVersion": "7", "fieldPath": "spec.roles"}
SCALING = _binding(
    scalingConfiguration={
        "target": _target("fast", 9000, namespace="models", uid="uid-fast", **_UNUSED),
        "minReplicas": 2,
        "maxReplicas": 5,
    }
)
OPTIMIZER = _binding(
    optimizerConfiguration={
        "params": [
            {"target": _target("large", 9000, **_UNUSED), "minReplicas": 0, "maxReplicas": 4, "cost": 100},
            {"target": _target("small", 9001), "minReplicas": 2, "maxReplicas": 9, "cost": 30},
            {
                "target": _target("fast", 9000, namespace="models", uid="uid-fast"),
                "minReplicas": 1,
                "maxReplicas": 2,
                "cost": 60,
            },
        ],
        "costExpansionRatePercent": 300,
    }
)
_PLACES = {"fast": ("models", "shop"), "large": ("shop",), "small": ("shop",)}
_ROLES = ("decode", "decode", "prefill")


def _workloads(replicas: int) -> dict[WorkloadId, Workload]:
    ids = [WorkloadId(space, "example.com", "Server", name) for name, spaces in _PLACES.items() for space in spaces]
    return {
        id_: Workload(id_, f"uid-{id_.name}", replicas, replicas, replicas, selector=f"app={id_.name}") for id_ in ids
    }


def _pods() -> Store[Any]:
    store = Store(LIVE_PODS)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for name, spaces in _PLACES.items():
        for space in spaces:
            for number, role in enumerate(_ROLES):
                metadata = {"name": f"{name}-{number}", "namespace": space, "labels": {"app": name, "role": role}}
                status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [ready]}
                store.put({"metadata": {**metadata, "uid": f"{space}-{name}-{number}"}, "status": status})
    return store


def _page(scrape: Scrape, waiting: int) -> Page | str:
    """Return what a pod shows: nothing but on its own port, and other numbers where it has another role."""
    endpoint = scrape.endpoint
    port = 9001 if endpoint.name.startswith("small") else 9000
    if (scrape.port, scrape.uri) != (port, "/stats"):
        return "connection refused"
    load = waiting + 90 * endpoint.name.endswith("2") + 7 * (endpoint.namespace == "models")
    return parse(f"{WAITING} {load}\n{RUNNING} 0\n".encode(), (WAITING, RUNNING), NOW)


def decide_on_binding(obj: Mapping[str, Any], replicas: int, waiting: int, now: float = NOW) -> Plan:
    """Decide on a binding whose targets all have ``replicas``, with so many requests waiting at each decode pod."""
    spec = objects.binding(obj)
    if spec.view.problem is not None:
        raise InvalidObject(spec.view.problem)
    policy = objects.policy(_policy(metrics=[{"metricName": WAITING, "targetValue": "10"}]))
    other = objects.policy({**POLICY, "metadata": {**POLICY["metadata"], "name": "strict"}})
    listed = ListedBindings((spec,), {spec.key: spec for spec in (policy, other)})
    pods, workloads = _pods(), _workloads(replicas)

    def find(target: objects.TargetSpec) -> tuple[Workload | None, str | None, TargetPods]:
        workload, problem = objects.resolve_workload(target, workloads, {}, {})
        if workload is None:
            return None, problem, TargetPods()
        return workload, None, target_pods(pods, workload, target.match_labels, None)

    plans = target_plans(spec, listed, find)
    wanted = scrapes([plans])
    measured = Histories().measure(wanted, {scrape: _page(scrape, waiting) for scrape in wanted}, ())
    view = binding_view(spec, listed, plans, {}, measured)
    return binding_plan(decide_binding(view, SETTINGS, now), view, now, 300.0, None)


def binding_outcome(obj: Mapping[str, Any]) -> list[str]:
    """Decide on a binding at some loads: what is scaled to how many replicas."""
    lines = []
    for replicas, waiting in ((1, 0), (3, 2), (3, 14), (4, 25), (3, 200)):
        plan = decide_on_binding(obj, replicas, waiting)
        scales = sorted(f"{scale.workload} in {scale.workload.group} to {scale.replicas}" for scale in plan.scales)
        fields = plan.status.fields if plan.status is not None else {}
        lines.append(f"{scales}, desired {fields.get('desiredReplicas')} of {fields.get('targets')}")
    return lines


def _manifests(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects of a sample by kind and name."""
    texts = [path.read_text("utf-8") for path in sorted(folder.glob("*.yaml"))]
    bodies = [body for text in texts for body in yaml.safe_load_all(text)]
    return {(body["kind"], body["metadata"]["name"]): body for body in bodies if body and "kind" in body}


def _plans(
    obj: Mapping[str, Any], folder: Path, extra: Sequence[Mapping[str, Any]] = (), *, is_busy: bool = False
) -> list[Plan]:
    if (problem := observe.variant(obj).problem) is not None:
        raise InvalidObject(problem)
    manifests = {**_manifests(folder), (obj["kind"], obj["metadata"]["name"]): obj}
    for body in extra:
        manifests[body["kind"], body["metadata"]["name"]] = body
    everything = [parsed for body in manifests.values() for parsed in manifest("test", copy.deepcopy(body))]
    snapshot = read_snapshot(folder / "metrics.yaml")
    if is_busy:
        groups = {
            f"Deployment/{body['metadata']['name']}": f"{body['kind']}/{body['metadata']['name']}" for body in extra
        }
        busy = {
            pod.pod: {"kv": 0.97, "workload": groups.get(pod.workload or "", pod.workload)} for pod in snapshot.pods
        }
        pods = [pod.model_copy(update=busy[pod.pod]) for pod in snapshot.pods]
        snapshot = snapshot.model_copy(update={"pods": pods})
    fleet = fleet_from_files(everything, snapshot, NOW, SETTINGS)
    return variant_plans(fleet, decide(fleet, SETTINGS), 300.0)


def _saturated() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The variant of the sample, moved to a LeaderWorkerSet, and that."""
    manifests = _manifests(PLAN)
    variant, workload = manifests["VariantAutoscaling", "llama-8b-h100"], manifests["Deployment", "llama-8b-h100"]
    group = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    variant["spec"]["scaleTargetRef"] |= group
    template = workload["spec"]["template"]
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}}
    return variant, [{**workload, **group, "spec": spec}]


SATURATION, _GROUPS = _saturated()
SLO = _manifests(PLAN / "slo")["VariantAutoscaling", "chat-h100"]
SLO["spec"]["acceleratorCount"] = 2
SLO["spec"]["variantID"] = SLO["spec"]["variantID"].replace("H100-1", "H100-2")


def _summaries(plans: Sequence[Plan]) -> Iterator[str]:
    for plan in plans:
        fields = {} if plan.status is None else plan.status.fields
        reasons = [condition.reason for condition in (plan.status.conditions if plan.status is not None else ())]
        notices = [notice.reason for notice in plan.notices if notice.reason != "FieldsIgnored"]
        yield f"{plan.subject.key}: {plan.scales and plan.scales[0].replicas} {fields} {reasons} {notices}"


def saturation_plans(obj: Mapping[str, Any]) -> list[Plan]:
    """Decide on the sample's variants in saturation form, whose pods are busy."""
    return _plans(obj, PLAN, _GROUPS, is_busy=True)


def slo_plans(obj: Mapping[str, Any]) -> list[Plan]:
    """Decide on the sample's variants in SLO form."""
    return _plans(obj, PLAN / "slo")


def saturation_outcome(obj: Mapping[str, Any]) -> list[str]:
    """Describe the decisions in saturation form: replicas, statuses, reasons."""
    return list(_summaries(saturation_plans(obj)))


def slo_outcome(obj: Mapping[str, Any]) -> list[str]:
    """Describe the decisions in SLO form: replicas, statuses, reasons."""
    return list(_summaries(slo_plans(obj)))


_POLICY_OTHERS = {
    "spec.metrics[].metricName": "queue",
    "spec.metrics[].targetValue": "5",
    "spec.behavior.scaleUp.panicPolicy.period": "0s",
}
_BINDING_OTHERS = {
    "spec.policyRef.name": "strict",
    "spec.scalingConfiguration.target.targetRef.name": "large",
    "spec.scalingConfiguration.target.targetRef.uid": "uid-before",
    "spec.scalingConfiguration.minReplicas": 1,
    "spec.scalingConfiguration.maxReplicas": 4,
    "spec.optimizerConfiguration.params[].target.targetRef.name": "other",
    "spec.optimizerConfiguration.params[].target.targetRef.uid": "uid-before",
    "spec.optimizerConfiguration.params[].minReplicas": 1,
    "spec.optimizerConfiguration.params[].maxReplicas": 3,
}
_VARIANT_OTHERS = {
    "spec.scaleTargetRef.kind": "StatefulSet",
    "spec.scaleTargetRef.name": "other",
    "spec.modelID": "other",
    "spec.variantID": "other-H100-2",
    "spec.accelerator": "A100",
    "spec.acceleratorCount": 1,
    "spec.sloClassRef.name": "other",
    "spec.sloClassRef.key": "other",
    "spec.variantProfile.perfParms.decodeParms": {"alpha": "25", "beta": "0.05"},
    "spec.variantProfile.perfParms.prefillParms": {"gamma": "600", "delta": "0.002"},
    "spec.variantProfile.maxBatchSize": 8,
}
AUTOSCALING = {
    "AutoscalingPolicy": (Scenario(POLICY, policy_outcome, _POLICY_OTHERS),),
    "AutoscalingPolicyBinding": tuple(Scenario(obj, binding_outcome, _BINDING_OTHERS) for obj in (SCALING, OPTIMIZER)),
    "VariantAutoscaling": (
        Scenario(SATURATION, saturation_outcome, _VARIANT_OTHERS),
        Scenario(SLO, slo_outcome, _VARIANT_OTHERS),
    ),
}
