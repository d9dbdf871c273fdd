"""What can be scaled: variants and policy targets of a fleet, how fast their engines are, how long they take to start.

``variants_of`` takes them from manifests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modelyard.autoscaling.fleet import ACCELERATOR_LABEL, Fleet, SLOSpec
from modelyard.autoscaling.offline import Manifest
from modelyard.autoscaling.reading import workload_of
from modelyard.engine import PROFILES, EngineConfig, profiled
from modelyard.objects import PRODUCT_LABELS, Key, Workload, WorkloadId

GRACE = 30.0
"""Kubernetes' default terminationGracePeriodSeconds."""
COST = 10.0
"""Of a binding's target that has none, per replica and hour."""
ENGINE_FIELDS = {found.name: found.type for found in dataclasses.fields(EngineConfig)}


class VariantInputError(ValueError):
    """The manifests do not describe a fleet that can be simulated; the message names the object and the remedy."""


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One workload that is scaled, and whose replicas each run one engine of one model.

    ``key`` is its VariantAutoscaling's; the target of a binding has the workload's namespace and name.

    ``startup`` is seconds from a pod's creation to Ready, ``grace`` the seconds a removed pod may go on serving what
    it has, ``cost`` per replica and hour. ``initial`` replicas are ready when the trace begins. ``sources`` says where
    the engine's numbers come from, for people.
    """

    key: Key
    model: str
    engine: EngineConfig = field(default_factory=EngineConfig)
    initial: int = 1
    startup: float = 120.0
    grace: float = GRACE
    cost: float = 10.0
    gpus: int = 1
    workload: WorkloadId | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    gpu_resource: str = ""
    pods_per_replica: int = 1
    node_selector: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()


def variants_of(
    fleet: Fleet,
    manifests: Sequence[Manifest],
    *,
    startup: float = 120.0,
    engine: Mapping[str, float] | None = None,
    profile: str | None = None,
) -> list[VariantSpec]:
    """The variants of a fleet read from files, in key order, then the targets of its bindings that are none of them.

    The engine's speed, in rising precedence: the profile of the accelerator (label
    ``inference.optimization/acceleratorName`` of the variant or the workload, or the name of a binding's target),
    ``profile``, the ``perfParms`` of an SLO-form object, the engine's own command line, ``engine``. ``startup`` holds
    where the command line says nothing. Raises ``VariantInputError``.
    """
    bodies = {(m.kind, m.key): m.body for m in manifests}
    given = _Given(bodies, startup, engine or {}, profile)
    found: list[VariantSpec] = []
    for variant in sorted(fleet.variants, key=lambda v: v.key):
        target = workload_of(variant)
        where = f"VariantAutoscaling {variant.key}"
        if target is None:
            raise VariantInputError(f"{where}: spec.scaleTargetRef names no workload; add it")
        workload = fleet.workloads.get(target)
        if workload is None:
            raise VariantInputError(f"{where}: {target} is in none of the files; add its manifest with -f")
        accelerator = variant.labels.get(ACCELERATOR_LABEL) or (variant.slo.accelerator if variant.slo else "")
        found.append(given.spec(where, variant.key, variant.model_id, workload, variant.cost, accelerator, variant.slo))
    taken = {spec.workload for spec in found}
    keys = {spec.key for spec in found}
    for view in fleet.bindings:
        where = f"AutoscalingPolicyBinding {view.key}"
        for one in view.targets:
            workload = fleet.workloads.get(one.workload)
            if workload is None:
                raise VariantInputError(f"{where}: {one.problem or f'{one.workload} is in none of the files'}")
            if workload.id in taken:
                continue
            id_ = workload.id
            key = Key(id_.namespace, id_.name)
            if key in keys:
                key = Key(id_.namespace, f"{id_.kind}/{id_.name}")
            arguments = given.arguments(workload)
            model = arguments.get("served-model-name") or arguments.get("model") or str(view.key)
            own = (given.body(workload).get("metadata") or {}).get("labels") or {}
            labels: dict[str, str] = {**own, **workload.template_labels, **workload.node_selector}
            named = [labels[name] for name in (ACCELERATOR_LABEL, *PRODUCT_LABELS) if name in labels]
            found.append(given.spec(where, key, model, workload, one.cost or COST, (named or [id_.name])[0], None))
            taken.add(id_)
            keys.add(key)
    if not found:
        raise VariantInputError("no VariantAutoscaling and no AutoscalingPolicyBinding in these files; add one with -f")
    return found


@dataclass(frozen=True, slots=True)
class _Given:
    bodies: Mapping[tuple[str, Key], Mapping[str, Any]]
    startup: float
    engine: Mapping[str, float]
    profile: str | None

    def body(self, workload: Workload) -> Mapping[str, Any]:
        return self.bodies.get((workload.id.kind, Key(workload.id.namespace, workload.id.name)), {})

    def arguments(self, workload: Workload) -> dict[str, str]:
        return dict(_arguments(self.body(workload)))

    def spec(
        self,
        where: str,
        key: Key,
        model: str,
        workload: Workload,
        cost: float,
        accelerator: str,
        slo: SLOSpec | None,
    ) -> VariantSpec:
        arguments = self.arguments(workload)
        config, sources = self._config(where, arguments, accelerator, slo)
        return VariantSpec(
            key=key,
            model=model,
            engine=config,
            initial=1 if workload.spec_replicas is None else workload.spec_replicas,
            startup=_number(where, "startup-delay", arguments.get("startup-delay"), self.startup),
            grace=_grace(self.body(workload)),
            cost=cost,
            gpus=workload.gpus or 1,
            workload=workload.id,
            labels=workload.template_labels,
            gpu_resource=workload.gpu_resource,
            pods_per_replica=workload.pods_per_replica,
            node_selector=workload.node_selector,
            sources=tuple(sources),
        )

    def _config(
        self, where: str, arguments: Mapping[str, str], accelerator: str, slo: SLOSpec | None
    ) -> tuple[EngineConfig, list[str]]:
        named = next((name for name in PROFILES if name in accelerator.lower()), None)
        known = arguments.get("profile") or self.profile or named
        name = known or "h100"
        if name not in PROFILES:
            raise VariantInputError(f"{where}: no engine profile {name!r}; choose one of {', '.join(sorted(PROFILES))}")
        sources = [f"profile {name}" + ("" if known else " (assumed: no accelerator label says otherwise)")]
        values: dict[str, Any] = {}
        if slo is not None:
            for part in (slo.decode, slo.prefill):
                for parameter in ("alpha", "beta", "gamma", "delta"):
                    if parameter in part:
                        values[parameter] = _number(where, parameter, part[parameter], 0.0)
            if slo.max_batch > 0:
                values["max_num_seqs"] = slo.max_batch
            sources.append("perfParms")
        taken = {own: text for flag, text in arguments.items() if (own := flag.replace("-", "_")) in ENGINE_FIELDS}
        for parameter, text in taken.items():
            values[parameter] = _number(where, parameter, text, 0.0)
        if taken:
            sources.append("engine arguments")
        for parameter, value in self.engine.items():
            if parameter not in ENGINE_FIELDS:
                raise VariantInputError(f"--engine {parameter}: unknown; known: {', '.join(ENGINE_FIELDS)}")
            values[parameter] = value
        if self.engine:
            sources.append("--engine")
        whole = {
            parameter: int(value) if str(ENGINE_FIELDS[parameter]).startswith("int") else value
            for parameter, value in values.items()
        }
        try:
            return profiled(name, whole), sources
        except ValueError as error:
            raise VariantInputError(f"{where}: the engine's parameters do not go together: {error}") from error


def _arguments(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for container in _pod_spec(body).get("containers") or ():
        words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
        for word, after in zip(words, [*words, "--"][1:], strict=True):
            name, equals, value = word.partition("=")
            if name.startswith("--") and (equals or not after.startswith("--")):
                yield name[2:], value if equals else after


def _pod_spec(body: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = body.get("spec") or {}
    template = spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get("workerTemplate") or {}
    found: Mapping[str, Any] = template.get("spec") or {}
    return found


def _grace(body: Mapping[str, Any]) -> float:
    value = _pod_spec(body).get("terminationGracePeriodSeconds")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else GRACE


def _number(where: str, name: str, text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise VariantInputError(f"{where}: {name} is not a number: {text!r}") from None
    if not value >= 0:
        raise VariantInputError(f"{where}: {name} must be >= 0, not {text}")
    return value
