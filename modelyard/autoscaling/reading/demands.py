"""What a tick has to ask for, beyond what it always asks: pure questions about the variants and their configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from modelyard.autoscaling.configuration import (
    ConfigMaps,
    FleetSettings,
    SizingAim,
    find,
    fleet_handling,
    saturation_names,
)
from modelyard.autoscaling.fleet import Variant, Workloads
from modelyard.autoscaling.variants import TOKEN_ANALYZER, retentions
from modelyard.objects import Key, Workload, WorkloadId
from modelyard.resources import WAKE_QUERY

SLO = "slo"


def needs_loads(variants: Iterable[Variant], settings: FleetSettings) -> bool:
    """Whether offered load is needed: to size the SLO form, and to bound growth and plan ahead."""
    ahead = fleet_handling(settings).reading.uses_load
    return any(ahead or variant.form == SLO for variant in variants)


def sized_namespaces(variants: Iterable[Variant], settings: FleetSettings) -> set[str]:
    """Namespaces where observed TTFT and ITL matter: those with a variant in SLO form; with aim attainment, all."""
    every = settings.aim is SizingAim.ATTAINMENT
    return {variant.key.namespace for variant in variants if every or variant.form == SLO}


def token_namespaces(variants: Iterable[Variant], config_maps: ConfigMaps, settings: FleetSettings) -> set[str]:
    """Namespaces that may choose the token analyzer, which alone looks at caches. Asking too often is harmless."""
    everywhere = _chooses_tokens(config_maps, settings.controller_namespace, settings)
    homes = {variant.key.namespace for variant in variants}
    return homes if everywhere else {home for home in homes if _chooses_tokens(config_maps, home, settings)}


def _chooses_tokens(config_maps: ConfigMaps, namespace: str, settings: FleetSettings) -> bool:
    document, _ = find(config_maps, settings, namespace, saturation_names(settings))
    return document is not None and any(
        entry.fields.get("analyzerName") == TOKEN_ANALYZER for entry in document.entries
    )


def count_windows(variants: Sequence[Variant], config_maps: ConfigMaps, settings: FleetSettings) -> dict[int, set[str]]:
    """Windows (seconds) to count requests over, each with the namespaces that need it; none: most of them do."""
    found: dict[int, set[str]] = {}
    for (namespace, _), window in retentions(variants, config_maps, settings).items():
        found.setdefault(window, set()).add(namespace)
    homes = {variant.key.namespace for variant in variants}
    return {window: set() if 2 * len(spaces) > len(homes) else spaces for window, spaces in found.items()}


def workload_of(variant: Variant) -> WorkloadId | None:
    """The identity of the workload a variant scales."""
    target = variant.target
    return WorkloadId(variant.key.namespace, target.group, target.kind, target.name) if target else None


def at_zero(variants: Iterable[Variant], workloads: Workloads) -> dict[Key, Workload]:
    """The variants whose workload exists and is asked for no replicas, with that workload."""
    found: dict[Key, Workload] = {}
    for variant in variants:
        target = workload_of(variant)
        workload = workloads.get(target) if target is not None and not variant.deleting else None
        if workload is not None and workload.spec_replicas == 0 and not workload.deleting:
            found[variant.key] = workload
    return found


def wake_expressions(variants: Iterable[Variant], asleep: Collection[Key]) -> dict[Key, str]:
    """The wake expressions of the variants that are at zero."""
    return {
        variant.key: variant.annotations[WAKE_QUERY]
        for variant in variants
        if variant.key in asleep and WAKE_QUERY in variant.annotations
    }
