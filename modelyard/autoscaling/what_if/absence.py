"""A variant as if it were not there: its replicas are gone and the other variants of its model take its load."""

from __future__ import annotations

from collections.abc import Sequence, Set as AbstractSet
from dataclasses import replace
from math import fsum

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.fleet import Fleet, Variant
from modelyard.autoscaling.memory import SLOMemory
from modelyard.autoscaling.variants import Observation
from modelyard.autoscaling.what_if.errors import WhatIfError, listed
from modelyard.autoscaling.what_if.spread import Spread, engine_of, observed
from modelyard.metrics.vocabulary import PodPerformance, PodSignal
from modelyard.objects import Key, counted


def without(fleet: Fleet, settings: FleetSettings, name: str) -> tuple[Fleet, list[str]]:
    """The fleet without one variant. Raises ``WhatIfError``: no such variant, several, or the last of its model."""
    variant = _find(fleet, name)
    namespace, model = variant.key.namespace, variant.model_id
    others = [
        other
        for other in fleet.variants
        if other is not variant and (other.key.namespace, other.model_id) == (namespace, model) and not other.deleting
    ]
    if not others:
        raise WhatIfError(
            f"--without {name}: {variant.key} is the only variant of model {model!r} in namespace {namespace}: without "
            "it nothing serves the model; ask for --load 0 to see it idle, or name a variant that has another beside it"
        )
    others_seen = observed(fleet, settings)
    mine = next((seen for seen in others_seen if seen.key == variant.key), None)
    told = [f"{variant.key} is not there; its load goes to {listed(str(other.key) for other in others)}"]
    removed: list[PodPerformance] = []
    if mine is not None:
        gone = {pod.key for pod in mine.pods}
        removed = [p for p in fleet.signals.performance if Key(p.namespace, p.pod) in gone and p.model == model]
        fleet, lost = without_pods(fleet, others_seen, gone)
        if lost:
            waiting = counted(lost, "request waits", "requests wait")
            told.append(f"none of them has a replica that reports: its {waiting} at the gateway")
        workloads = {id_: found for id_, found in fleet.workloads.items() if id_ != mine.workload_id}
        fleet = replace(fleet, workloads=workloads)
    variants = tuple(
        _with_sizes(other, removed, fleet.now) if other in others else other
        for other in fleet.variants
        if other is not variant
    )
    return replace(fleet, variants=variants), told


def without_pods(fleet: Fleet, variants: Sequence[Observation], gone: AbstractSet[Key]) -> tuple[Fleet, float]:
    """The fleet without these pods, and the requests no other pod can take. Workloads keep their replica numbers."""
    engines = {pod.key: engine_of(seen) for seen in variants for pod in seen.pods}
    models = {(s.namespace, s.model) for s in fleet.signals.pods if Key(s.namespace, s.pod) in gone}
    queue = dict(fleet.signals.gateway_queue)
    fresh: dict[tuple[Key, str], PodSignal] = {}
    left = 0.0
    for namespace, model in sorted(models):
        mine = [s for s in fleet.signals.pods if (s.namespace, s.model) == (namespace, model)]
        mine = [s for s in mine if Key(namespace, s.pod) in engines]
        staying = [key for s in mine if (key := Key(namespace, s.pod)) not in gone]
        fresh |= {
            (Key(s.namespace, s.pod), model): s
            for s in Spread(mine, engines).on([(k, engines[k]) for k in staying], model)
        }
        if not staying:
            lost = fsum((s.running or 0.0) + (s.waiting or 0.0) for s in mine)
            left += lost
            if lost:
                queue[namespace, model] = queue.get((namespace, model), 0.0) + lost
    pods = tuple(
        fresh.get((key, s.model), s) for s in fleet.signals.pods if (key := Key(s.namespace, s.pod)) not in gone
    )
    performance = tuple(p for p in fleet.signals.performance if Key(p.namespace, p.pod) not in gone)
    signals = replace(fleet.signals, pods=pods, performance=performance, gateway_queue=queue)
    return replace(fleet, pods=tuple(pod for pod in fleet.pods if pod.key not in gone), signals=signals), left


def _find(fleet: Fleet, name: str) -> Variant:
    found = [variant for variant in fleet.variants if name in (str(variant.key), variant.key.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise WhatIfError(f"--without {name}: there are several: {listed(str(v.key) for v in found)}; name one of them")
    known = listed(str(variant.key) for variant in fleet.variants)
    raise WhatIfError(f"--without {name}: no such VariantAutoscaling; there are: {known}")


def _with_sizes(variant: Variant, removed: list[PodPerformance], now: float) -> Variant:
    """Remembers the request sizes that the removed replicas measured."""
    known = [p for p in removed if p.completed and p.prompt_tokens is not None and (p.output_tokens or 0) >= 1]
    memory = variant.memory.slo or SLOMemory()
    if variant.slo is None or not known or memory.tokens_at is not None:
        return variant
    count = fsum(p.completed or 0.0 for p in known)
    prompt = fsum((p.completed or 0.0) * (p.prompt_tokens or 0.0) for p in known) / count
    output = fsum((p.completed or 0.0) * (p.output_tokens or 0.0) for p in known) / count
    sizes = memory.model_copy(update={"prompt_tokens": prompt, "output_tokens": output, "tokens_at": now})
    return replace(variant, memory=variant.memory.model_copy(update={"slo": sizes}))
