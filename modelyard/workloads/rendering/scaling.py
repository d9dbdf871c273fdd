"""Who holds the replicas of a component: an HPA, KEDA, somebody else, or nobody; and its disruption budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from modelyard.metrics.vocabulary import Signal, names_of
from modelyard.objects import HPA_VERSIONS, PDB_VERSIONS, Namespace, TargetRef, describe_url_problem
from modelyard.workloads.rendering.components import KEDA, ServiceComponent
from modelyard.workloads.rendering.names import scaled_object
from modelyard.workloads.rendering.reach import ALLOW, CREDENTIALS, allowed
from modelyard.workloads.rendering.settings import KedaSettings
from modelyard.workloads.rendering.values import Abilities, Body, Note, Refusal

CLASS: Final = "ome.io/autoscalerClass"
_METRIC, _UTILIZATION = "ome.io/metrics", "ome.io/targetUtilizationPercentage"
_HPA, _KEDA, _EXTERNAL = "hpa", "keda", "external"
_BY_RESOURCE = ("cpu", "memory")
_UTILIZATION_DEFAULT, _THRESHOLD = 80, "10"
_THRESHOLD_NOTE, _OPERATOR = "autoscaling.keda.sh/threshold", "autoscaling.keda.sh/operator"
_SERVER, _QUERY = "autoscaling.keda.sh/prometheus.serverAddress", "autoscaling.keda.sh/prometheus.query"
_OPERATORS = ("GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")
_AUTH_MODES = frozenset(("basic", "tls", "bearer", "custom"))
_IN_FLIGHT = "|".join(names_of(Signal.RUNNING, Signal.WAITING))
_REQUESTS = "|".join(names_of(Signal.FINISHED))
_TOKENS = "|".join(names_of(Signal.OUTPUT_TOKENS))


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the replicas of a component are held: the scaler to apply, or ``replicas`` where nothing scales it."""

    scaler: Body | None = None
    replicas: int | None = None
    notes: tuple[Note, ...] = ()


def by_keda(one: ServiceComponent, service: Mapping[str, Any]) -> bool:
    """Whether a component asks for KEDA: by the annotation, else by ``enableKeda`` of its own or its service's."""
    chosen = one.metadata.get(CLASS, "")
    if chosen and chosen not in (_HPA, _KEDA, _EXTERNAL):
        problem = f"{chosen} is no class of autoscalers"
        raise Refusal("InvalidSpec", f"metadata.annotations[{CLASS}]", problem, "write hpa, keda or external")
    return chosen == _KEDA if chosen else bool(_keda_config(one, service).get("enableKeda"))


def without_replicas(one: ServiceComponent, service: Mapping[str, Any], elsewhere: bool) -> bool:
    """Whether what scales a component can start its first replica."""
    return elsewhere or by_keda(one, service) or one.metadata.get(CLASS) == _EXTERNAL


def scaled(
    one: ServiceComponent,
    workload: TargetRef,
    metadata: Body,
    service: Mapping[str, Any],
    elsewhere: bool,
    abilities: Abilities,
    keda: KedaSettings,
    namespace: Namespace,
) -> Scaling:
    """The scaler of a component's workload. ``elsewhere``: a VariantAutoscaling or binding scales it."""
    wanted = by_keda(one, service)
    if elsewhere or one.metadata.get(CLASS) == _EXTERNAL:
        return Scaling()
    served = abilities.version(KEDA[1], KEDA[0])
    if wanted and not served:
        problem = "asks for KEDA, whose ScaledObject is not served here"
        remedy = f"install KEDA, or write {CLASS}: hpa and leave enableKeda out"
        raise Refusal("KedaNotServed", f"metadata.annotations[{CLASS}]", problem, remedy)
    metric = one.spec.get("scaleMetric") or one.metadata.get(_METRIC) or ""
    if wanted or (served and metric and metric not in _BY_RESOURCE):
        return _scaled_object(one, workload, metadata, service, keda, namespace, metric)
    fixed = max(one.least, 1)
    if metric and metric not in _BY_RESOURCE:
        message = (
            f"{one.kind}: scaleMetric {metric} is scaled by KEDA, whose ScaledObject is not served here:"
            f" {fixed} running until KEDA is installed or a VariantAutoscaling scales it"
        )
        return Scaling(replicas=fixed, notes=(Note("ScalerNotServed", message, one.kind),))
    version = abilities.version("HorizontalPodAutoscaler", *HPA_VERSIONS)
    if not version:
        message = f"{one.kind}: HorizontalPodAutoscaler is served neither in v2 nor in v2beta2: {fixed} running"
        return Scaling(replicas=fixed, notes=(Note("ScalerNotServed", message, one.kind),))
    return Scaling(horizontal(version, workload, metadata, one, metric or "cpu"))


def horizontal(version: str, workload: TargetRef, metadata: Body, one: ServiceComponent, metric: str) -> Body:
    """The HorizontalPodAutoscaler of a component."""
    target = _utilization(one) or max(one.spec.get("scaleTarget") or 0, 0) or _UTILIZATION_DEFAULT
    resource = {"name": metric, "target": {"type": "Utilization", "averageUtilization": target}}
    return {
        "apiVersion": version,
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": {"apiVersion": workload.api_version, "kind": workload.kind, "name": workload.name},
            "minReplicas": max(one.least, 1),
            "maxReplicas": one.most,
            "metrics": [{"type": "Resource", "resource": resource}],
        },
    }


def _utilization(one: ServiceComponent) -> int:
    text = one.metadata.get(_UTILIZATION)
    if text is None:
        return 0
    if text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= 100:
        return int(text)
    where = f"metadata.annotations[{_UTILIZATION}]"
    raise Refusal("InvalidSpec", where, f"{text} is no whole number from 1 to 100", "write one")


def _keda_config(one: ServiceComponent, service: Mapping[str, Any]) -> Body:
    return {**(service.get("kedaConfig") or {}), **(one.spec.get("kedaConfig") or {})}


def _scaled_object(
    one: ServiceComponent,
    workload: TargetRef,
    metadata: Body,
    service: Mapping[str, Any],
    keda: KedaSettings,
    namespace: Namespace,
    metric: str,
) -> Scaling:
    config, notes = _keda_config(one, service), []
    where = f"{one.path}.kedaConfig"
    target = one.spec.get("scaleTarget")
    threshold = (
        one.metadata.get(_THRESHOLD_NOTE)
        or config.get("scalingThreshold")
        or (str(target) if target else "")
        or keda.scaling_threshold
        or _THRESHOLD
    )
    operator = one.metadata.get(_OPERATOR) or config.get("scalingOperator") or ""
    server = one.metadata.get(_SERVER) or config.get("promServerAddress") or keda.prom_server_address
    query = one.metadata.get(_QUERY) or config.get("customPromQuery") or keda.custom_prom_query
    if operator and operator not in _OPERATORS:
        problem, remedy = f"{operator} is no operator", f"write one of {', '.join(_OPERATORS)}"
        raise Refusal("InvalidSpec", f"{where}.scalingOperator", problem, remedy)
    if operator.startswith("Less"):
        message = f"{one.kind}: KEDA scales up as the query's value grows: scalingOperator {operator} has no effect"
        notes.append(Note("OperatorWithoutEffect", message, one.kind))
    if not _positive(threshold):
        problem, remedy = f"{threshold} is no number above 0", "write one, as text"
        raise Refusal("InvalidSpec", f"{where}.scalingThreshold", problem, remedy)
    if wrong := describe_url_problem(server):
        problem, _, remedy = wrong.partition("; ")
        raise Refusal("InvalidSpec", f"{where}.promServerAddress", problem, remedy)
    text = query.replace("%s", one.name) if query else default_query(one, metadata["namespace"], metric)
    trigger: Body = {
        "type": "prometheus",
        "metadata": {"serverAddress": server, "metricName": metric or "tps", "query": text, "threshold": threshold},
    }
    elsewhere = server != keda.prom_server_address
    _authenticated(trigger, config, keda, where, namespace, elsewhere)
    body = {
        "apiVersion": KEDA[0],
        "kind": KEDA[1],
        "metadata": {**metadata, "name": scaled_object(one.name)},
        "spec": {
            "scaleTargetRef": {"apiVersion": workload.api_version, "kind": workload.kind, "name": workload.name},
            "minReplicaCount": one.least,
            "maxReplicaCount": one.most,
            "triggers": [trigger],
        },
    }
    return Scaling(body, notes=tuple(notes))


def _authenticated(
    trigger: Body, config: Body, keda: KedaSettings, where: str, namespace: Namespace, elsewhere: bool
) -> None:
    """Add credentials to the trigger: the cluster's only where an administrator sends them, not ``elsewhere``."""
    own = config.get("authenticationRef")
    reference = own or keda.authentication_ref
    if not reference:
        return
    kind = reference.get("kind") or "TriggerAuthentication"
    if own and kind == "ClusterTriggerAuthentication" and CREDENTIALS not in allowed(namespace):
        problem = "sends credentials of the whole cluster to an address of the service's choice"
        remedy = f"use a TriggerAuthentication, or have {ALLOW}: {CREDENTIALS} put on Namespace {namespace.name}"
        raise Refusal("NotPermitted", f"{where}.authenticationRef.kind", problem, remedy)
    if not own and elsewhere:
        return
    trigger["authenticationRef"] = {"name": reference["name"], "kind": kind}
    if modes := (config.get("authModes") or keda.auth_modes):
        if unknown := {one.strip() for one in modes.split(",")} - _AUTH_MODES:
            problem, remedy = f"{', '.join(sorted(unknown))}: not known", "write basic, tls, bearer or custom"
            raise Refusal("InvalidSpec", f"{where}.authModes", problem, remedy)
        trigger["metadata"]["authModes"] = modes


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def default_query(one: ServiceComponent, namespace: str, metric: str) -> str:
    """Of all pods of a component: tokens or requests per second, else requests that run or wait."""
    pods = f'namespace="{namespace}",pod=~"{one.name}-.*"'
    if metric == "tps":
        return f'sum(rate({{__name__=~"{_TOKENS}",{pods}}}[1m]))'
    if metric == "rps":
        return f'sum(rate({{__name__=~"{_REQUESTS}",{pods}}}[1m]))'
    return f'sum({{__name__=~"{_IN_FLIGHT}",{pods}}})'


def disruption_budget(
    one: ServiceComponent, metadata: Body, selector: Mapping[str, str], abilities: Abilities
) -> Body | None:
    """How many pods an eviction may take at a time; ``None`` where no such kind is served."""
    version = abilities.version("PodDisruptionBudget", *PDB_VERSIONS)
    if not version:
        return None
    limits: Body = {name: one.spec[name] for name in ("minAvailable", "maxUnavailable") if name in one.spec}
    if len(limits) == 2:
        remedy = "write one of the two"
        raise Refusal("InvalidSpec", f"{one.path}.maxUnavailable", "is given beside minAvailable", remedy)
    spec: Body = {**(limits or {"maxUnavailable": 1}), "selector": {"matchLabels": dict(selector)}}
    return {"apiVersion": version, "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}
