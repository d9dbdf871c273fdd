"""What can be scaled: the variants of a fleet, how fast their engines are, how long they take to start.

``variants_of`` takes them from manifests. Called by ``modelyard replay``; the simulator and the policies read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modelyard.autoscaling.accelerators import ACCELERATOR_LABEL
from modelyard.autoscaling.fleet import Fleet, Key, Variant, WorkloadId
from modelyard.local.engine.config import PROFILES, EngineConfig
from modelyard.loop.manifests import Manifest

GRACE = 30.0
"""Kubernetes' default terminationGracePeriodSeconds."""
ENGINE_FIELDS = {found.name: found.type for found in dataclasses.fields(EngineConfig)}


class VariantInputError(ValueError):
    """The manifests do not describe a fleet that can be simulated; the message names the object and the remedy."""


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One variant: a workload whose replicas each run one engine of one model.

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
    """The variants of a fleet read from files, in key order.

    The engine's speed, in rising precedence: the profile of the accelerator (label
    ``inference.optimization/acceleratorName``), ``profile``, the ``perfParms`` of an SLO-form object, the engine's own
    command line, ``engine``. ``startup`` holds where the command line says nothing. Raises ``VariantInputError``.
    """
    bodies = {(m.kind, m.key): m.body for m in manifests}
    found: list[VariantSpec] = []
    for variant in sorted(fleet.variants, key=lambda v: v.key):
        target = variant.target
        where = f"VariantAutoscaling {variant.key}"
        if target is None:
            raise VariantInputError(f"{where}: spec.scaleTargetRef names no workload; add it")
        id_ = WorkloadId(variant.key.namespace, target.group, target.kind, target.name)
        workload = fleet.workloads.get(id_)
        if workload is None:
            raise VariantInputError(f"{where}: {id_} is in none of the files; add its manifest with -f")
        body = bodies.get((target.kind, Key(variant.key.namespace, target.name)), {})
        arguments = dict(_arguments(body))
        config, sources = _engine(variant, arguments, profile, engine or {}, where)
        found.append(
            VariantSpec(
                key=variant.key,
                model=variant.model_id,
                engine=config,
                initial=1 if workload.spec_replicas is None else workload.spec_replicas,
                startup=_number(where, "startup-delay", arguments.get("startup-delay"), startup),
                grace=_grace(body),
                cost=variant.cost,
                gpus=workload.gpus or 1,
                workload=id_,
                labels=workload.template_labels,
                gpu_resource=workload.gpu_resource,
                pods_per_replica=workload.pods_per_replica,
                node_selector=workload.node_selector,
                sources=tuple(sources),
            )
        )
    if not found:
        raise VariantInputError("no VariantAutoscaling in these files; add one with -f")
    return found


def _engine(
    variant: Variant, arguments: Mapping[str, str], profile: str | None, given: Mapping[str, float], where: str
) -> tuple[EngineConfig, list[str]]:
    accelerator = variant.labels.get(ACCELERATOR_LABEL) or (variant.slo.accelerator if variant.slo else "")
    named = next((name for name in PROFILES if name in accelerator.lower()), None)
    name = arguments.get("profile") or profile or named or "h100"
    if name not in PROFILES:
        raise VariantInputError(f"{where}: no engine profile {name!r}; choose one of {', '.join(sorted(PROFILES))}")
    known = arguments.get("profile") or profile or named
    sources = [f"profile {name}" + ("" if known else " (assumed: no accelerator label says otherwise)")]
    values: dict[str, Any] = {}
    if variant.slo is not None:
        for part in (variant.slo.decode, variant.slo.prefill):
            for parameter in ("alpha", "beta", "gamma", "delta"):
                if parameter in part:
                    values[parameter] = _number(where, parameter, part[parameter], 0.0)
        if variant.slo.max_batch > 0:
            values["max_num_seqs"] = variant.slo.max_batch
        sources.append("perfParms")
    from_arguments = {flag.replace("-", "_"): text for flag, text in arguments.items()}
    taken = {name: text for name, text in from_arguments.items() if name in ENGINE_FIELDS}
    for parameter, text in taken.items():
        values[parameter] = _number(where, parameter, text, 0.0)
    if taken:
        sources.append("engine arguments")
    for parameter, value in given.items():
        if parameter not in ENGINE_FIELDS:
            raise VariantInputError(f"--engine {parameter}: unknown; known: {', '.join(ENGINE_FIELDS)}")
        values[parameter] = value
    if given:
        sources.append("--engine")
    whole = {
        parameter: int(value) if str(ENGINE_FIELDS[parameter]).startswith("int") else value
        for parameter, value in values.items()
    }
    base = PROFILES[name]
    try:
        if "max_model_len" not in whole and base.max_model_len is not None:
            # The profile's limit must not get in the way of a smaller cache.
            free = dataclasses.replace(base, **whole, max_model_len=None)
            whole["max_model_len"] = min(base.max_model_len, free.kv_capacity)
        return dataclasses.replace(base, **whole), sources
    except ValueError as error:
        raise VariantInputError(f"{where}: the engine's parameters do not go together: {error}") from error


def _arguments(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """``--name value`` and ``--name=value`` of the pod template's containers."""
    for container in _pod_spec(body).get("containers") or ():
        words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
        yield from _flags(words)


def _flags(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    rest = list(words)
    for position, word in enumerate(rest):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if equals:
                yield name, value
            elif position + 1 < len(rest) and not rest[position + 1].startswith("--"):
                yield name, rest[position + 1]


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
