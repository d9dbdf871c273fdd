"""AutoscalingPolicies and AutoscalingPolicyBindings as the API sends them, turned into plain values.

Pure. An object that breaks its own rules is kept, with what is wrong in ``problem``: a resource that was stored before
a rule existed must be reported, not lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modelyard.autoscaling.bindings import CAPACITY, DEFAULT_PORT, DEFAULT_URI, OPTIMIZER, policy_view
from modelyard.autoscaling.configuration import ACTUATION, COMPATIBILITY
from modelyard.autoscaling.fleet import BindingView, PolicyView, Workloads
from modelyard.autoscaling.memory import POLICY_STATE, BindingMemory
from modelyard.metrics.vocabulary import Expression
from modelyard.objects import (
    Key,
    Namespace,
    Object,
    TargetRef,
    Workload,
    WorkloadId,
    conditions,
    epoch,
    few,
    key_of,
    listed,
    parse_document,
    parse_go_duration,
    shown,
    stored_status,
)
from modelyard.reconcile.plans import NOT_PERMITTED, parse_memory, refusal
from modelyard.resources import (
    ROLE_RATIO,
    SCALE_TO_ZERO_GRACE,
    WAKE_QUERY,
    AutoscalingPolicy,
    AutoscalingPolicyBinding,
    ResourceInvalid,
)
from modelyard.resources.field_effects import warning

SOURCES = "modelyard.dev/metric-sources"
"""Metrics read from Prometheus instead of from the pods: a JSON or YAML map of metric name to PromQL. In optimizer
mode a target's name may hold a map of its own; plain entries are totals of the whole binding."""

READ = (ACTUATION, COMPATIBILITY, OPTIMIZER, CAPACITY, ROLE_RATIO)
"""Annotations that are kept of a binding, besides its memory and what is made of those above."""
ANY_KIND = "ModelInfer"
ALIASES = frozenset({ANY_KIND, "ModelServing"})
"""Kinds that stand for whatever serves under that name, or as that backend (MODEL-BACKEND) of a Model; an absent kind
does as well."""
ROLE = "modelinfer.volcano.sh/role"
"""Label of a backend's pods: by ``additionalMatchLabels`` a target is the workload of one role."""
_MODEL, _BACKEND = "registry.volcano.sh/model-name", "registry.volcano.sh/backend-name"
DEFAULT_GRACE = 30.0
_GROUPS = {"LeaderWorkerSet": "leaderworkerset.x-k8s.io"}
Backends = Mapping[Key, Sequence[Workload]]
_SERVES = (("leaderworkerset.x-k8s.io", "LeaderWorkerSet"), ("apps", "Deployment"), ("apps", "StatefulSet"))


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A target as its binding names it. A ``workload.kind`` of ``ALIASES`` has to be looked up: see ``candidates``."""

    name: str
    workload: WorkloadId
    uid: str
    match_labels: Mapping[str, str]
    uri: str
    port: int
    minimum: int
    maximum: int
    cost: float
    grace: float | None = None
    """Seconds of idleness before its last instance goes; ``None``: the binding's."""

    @property
    def is_alias(self) -> bool:
        return self.workload.kind in ALIASES

    @property
    def candidates(self) -> tuple[WorkloadId, ...]:
        id_ = self.workload
        if not self.is_alias:
            return (id_,)
        written = (id_,) if id_.group else ()
        return (*written, *(WorkloadId(id_.namespace, group, kind, id_.name) for group, kind in _SERVES))


@dataclass(frozen=True, slots=True)
class BindingSpec:
    """A binding without targets and policy in ``view``. ``sources``: PromQL by target name (``""``: all) and metric."""

    view: BindingView
    targets: tuple[TargetSpec, ...]
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    wake_query: str | None = None

    @property
    def crosses_namespaces(self) -> bool:
        """Whether a target is in another namespace than the binding."""
        return any(target.workload.namespace != self.view.key.namespace for target in self.targets)

    def expression(self, text: str) -> Expression:
        return Expression(self.view.key.namespace, text)

    def source_problem(self, policy: PolicyView) -> str | None:
        """Return the error for sources of metrics that the policy does not have: one of its own may be meant."""
        names = (metric for queries in self.sources.values() for metric in queries)
        if not (unknown := dict.fromkeys(metric for metric in names if metric not in policy.targets)):
            return None
        text = f"AutoscalingPolicy {policy.key} has no metric {listed(few(list(map(shown, unknown)), 3))}"
        return f"annotation {SOURCES}: {text}; name one of its metrics ({listed(policy.targets)}), or remove the entry"

    def queries(self, policy: PolicyView | None) -> Iterator[Expression]:
        """Every PromQL that a decision needs; of the metrics those that ``policy`` has a target for."""
        if self.wake_query:
            yield self.expression(self.wake_query)
        targets = () if policy is None else policy.targets
        for queries in self.sources.values():
            yield from (self.expression(query) for metric, query in queries.items() if metric in targets)


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy, or why it cannot be followed; ``ignored`` are fields without effect, ``status`` is as it stands."""

    key: Key
    uid: str
    generation: int
    view: PolicyView | None
    problem: str | None
    status: Mapping[str, Any] = field(default_factory=dict)
    ignored: str = ""


def policy(obj: Object, *, strict: bool = False) -> PolicySpec:
    """An AutoscalingPolicy with the behaviour in effect. ``strict``: see ``observe.variant``."""
    metadata, view, problem = obj["metadata"], None, None
    try:
        view = policy_view(AutoscalingPolicy.parse(dict(obj), unknown="forbid" if strict else "accept"))
    except ResourceInvalid as error:
        problem = str(error)
    generation = int(metadata.get("generation") or 0)
    status, ignored = stored_status(obj), warning(AutoscalingPolicy, obj)
    return PolicySpec(key_of(obj), metadata.get("uid", ""), generation, view, problem, status, ignored)


def binding(obj: Object, *, strict: bool = False) -> BindingSpec:
    """An AutoscalingPolicyBinding without what has to be looked up elsewhere. ``strict``: see ``observe.variant``."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, stored_status(obj)
    key = key_of(obj)
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    problems: list[str] = []
    try:
        AutoscalingPolicyBinding.parse(dict(obj), unknown="forbid" if strict else "accept")
    except ResourceInvalid as error:
        problems.append(str(error))
    optimizer, scaling = spec.get("optimizerConfiguration"), spec.get("scalingConfiguration")
    parts = (optimizer or {}).get("params") or () if optimizer is not None else (scaling,) if scaling else ()
    targets = tuple(target for part in parts if (target := _target(part, key.namespace)) is not None)
    names = Counter(target.name for target in targets)
    # Targets of one name in several namespaces (or of several kinds) are told apart by a longer name.
    targets = tuple(
        replace(one, name=f"{one.workload.namespace}/{one.workload.kind}/{one.name}") if names[one.name] > 1 else one
        for one in targets
    )
    sources, grace, graces = {}, DEFAULT_GRACE, dict[str, float]()
    try:
        sources = _sources(annotations.get(SOURCES), {target.name for target in targets})
    except ValueError as error:
        problems.append(f"annotation {SOURCES}: {error}")
    try:
        if SCALE_TO_ZERO_GRACE in annotations:
            grace, graces = _graces(annotations[SCALE_TO_ZERO_GRACE], [target.name for target in targets])
    except ValueError as error:
        problems.append(f"annotation {SCALE_TO_ZERO_GRACE}: {error}")
    memory, damage = parse_memory(BindingMemory, POLICY_STATE, annotations.get(POLICY_STATE))
    expansion = (optimizer or {}).get("costExpansionRatePercent")
    view = BindingView(
        key=key,
        uid=metadata.get("uid", ""),
        generation=int(metadata.get("generation") or 0),
        resource_version=metadata.get("resourceVersion", ""),
        policy_name=(spec.get("policyRef") or {}).get("name") or "",
        optimizer=optimizer is not None and scaling is None,
        targets=(),
        policy=None,
        expansion_percent=200 if expansion is None else int(expansion),
        grace=grace,
        labels=metadata.get("labels") or {},
        annotations={name: annotations[name] for name in READ if name in annotations},
        conditions=conditions(status["conditions"]),
        memory=memory,
        memory_problem=damage,
        ignored=warning(AutoscalingPolicyBinding, obj),
        problem="; ".join(problems) or None,
        created=epoch(metadata.get("creationTimestamp")),
        deleting=bool(metadata.get("deletionTimestamp")),
        status=status,
    )
    targets = tuple(replace(target, grace=graces.get(target.name)) for target in targets) if graces else targets
    return BindingSpec(view, targets, sources, annotations.get(WAKE_QUERY) or None)


def _graces(text: str, targets: Sequence[str]) -> tuple[float, dict[str, float]]:
    """Fleet-wide and per target, in seconds. Raises ``ValueError`` with what to write."""
    if "=" not in text:
        return max(0.0, parse_go_duration(text)), {}
    graces: dict[str, float] = {}
    for entry in text.split(","):
        name, _, duration = map(str.strip, entry.rpartition("="))
        if name not in targets:
            raise ValueError(f"{shown(name)} is no target; name one of {listed(targets)}, as llama=30s")
        graces[name] = max(0.0, parse_go_duration(duration))
    return DEFAULT_GRACE, graces


def within_reach(binding: BindingSpec, namespaces: Mapping[str, Namespace]) -> BindingSpec:
    """The binding without targets in namespaces that do not let it in; ``namespaces`` matter only if it crosses any."""
    home = binding.view.key.namespace
    places = sorted({target.workload.namespace for target in binding.targets})
    refused = {place: why for place in places if (why := refusal(home, place, namespaces)) is not None}
    if not refused:
        return binding
    problem = "; ".join(filter(None, (f"targetRef.namespace: {'; '.join(refused.values())}", binding.view.problem)))
    view = replace(binding.view, problem=problem, problem_reason=NOT_PERMITTED)
    targets = tuple(target for target in binding.targets if target.workload.namespace not in refused)
    return replace(binding, view=view, targets=targets)


def workload_of(spec: TargetSpec, workloads: Workloads, backends: Backends) -> tuple[Workload | None, str]:
    """The workload that a target is, or why there is none (empty: there is just none of that name)."""
    for id_ in spec.candidates:
        if id_ in workloads:
            return workloads[id_], ""
    if not spec.is_alias:
        return None, ""
    name = f"{spec.workload.kind} {spec.workload.namespace}/{spec.workload.name}"
    role = spec.match_labels.get(ROLE)
    found = backends.get(Key(spec.workload.namespace, spec.workload.name), ())
    roles = sorted({one.template_labels.get(ROLE, "") for one in found})
    found = [one for one in found if role in (None, one.template_labels.get(ROLE))]
    if len(found) == 1:
        return found[0], ""
    if not roles or not found:
        return None, f"{name} has no role {role}; it has {', '.join(roles)}" if roles else ""
    if role is None and len(roles) > 1:
        said = f"choose one by additionalMatchLabels, {ROLE}: {roles[-1]}"
        return None, f"{name} has several roles ({', '.join(roles)}), each a workload of its own; {said}"
    said = "give the backend an autoscalingPolicy, or install LeaderWorkerSet"
    return None, f"{name} is {len(found)} workloads, which nothing scales together; {said}"


def resolve_workload(
    spec: TargetSpec, workloads: Workloads, backends: Backends, errors: Mapping[WorkloadId, str]
) -> tuple[Workload | None, str | None]:
    """Return the workload that a target scales, or why there is none; ``errors``: why some could not be read."""
    workload, problem = workload_of(spec, workloads, backends)
    if workload is not None:
        id_ = workload.id
        if workload.deleting:
            return None, f"{id_} is being deleted"
        if spec.uid and workload.uid and spec.uid != workload.uid:
            return None, f"{id_} has the uid {workload.uid}, targetRef.uid asks for {spec.uid}; correct or remove it"
        return workload, None
    if problem:
        return None, problem
    if not spec.is_alias:
        why = errors.get(spec.workload)
        return None, f"{spec.workload} could not be read: {why}" if why else f"{spec.workload} does not exist"
    names = " or ".join(id_.kind for id_ in spec.candidates)
    return None, f"no {names} {spec.workload.namespace}/{spec.workload.name} exists, and no backend of a Model is that"


def backends_of(workloads: Iterable[Workload]) -> dict[Key, list[Workload]]:
    """The workloads of Models' backends, by namespace and MODEL-BACKEND, as the labels of their pods have it."""
    found: dict[Key, list[Workload]] = {}
    for one in workloads:
        if (labels := one.template_labels).keys() >= {_MODEL, _BACKEND}:
            found.setdefault(Key(one.id.namespace, f"{labels[_MODEL]}-{labels[_BACKEND]}"), []).append(one)
    return found


def _target(part: Object, namespace: str) -> TargetSpec | None:
    target = part.get("target") or {}
    reference = target.get("targetRef") or {}
    name = reference.get("name") or ""
    if not name:
        return None
    kind, version = reference.get("kind") or ANY_KIND, reference.get("apiVersion") or ""
    group = TargetRef(version, kind, name).group if version else _GROUPS.get(kind, "" if kind in ALIASES else "apps")
    endpoint = target.get("metricEndpoint") or {}
    uri = endpoint.get("uri") or DEFAULT_URI
    return TargetSpec(
        name=name,
        workload=WorkloadId(reference.get("namespace") or namespace, group, kind, name),
        uid=reference.get("uid") or "",
        match_labels=target.get("additionalMatchLabels") or {},
        uri=uri if uri.startswith("/") else f"/{uri}",
        port=int(endpoint.get("port") or DEFAULT_PORT),
        minimum=int(part.get("minReplicas") or 0),
        maximum=int(part.get("maxReplicas") or 0),
        cost=float(part.get("cost") or 0),
    )


def _sources(text: str | None, targets: set[str]) -> dict[str, dict[str, str]]:
    """By target (``""``: the whole binding). Raises ``ValueError`` with the expected form."""
    if not text or not text.strip():
        return {}
    document = parse_document(text)
    if not isinstance(document, dict):
        raise ValueError("must be a map of metric name to PromQL; write METRIC: PROMQL")
    found: dict[str, dict[str, str]] = {}
    for name, value in document.items():
        if isinstance(value, dict) and name in targets:
            for metric, query in value.items():
                found.setdefault(str(name), {})[str(metric)] = _query(f"{name}.{metric}", query)
        else:
            found.setdefault("", {})[str(name)] = _query(str(name), value)
    return found


def _query(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name}: {shown(value)} is not a PromQL expression; write it as text")
    return value
