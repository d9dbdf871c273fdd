"""First stage of a tick: what is known of every variant of this controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from modelyard.autoscaling.accelerators import ACCELERATOR_LABEL, UNRESOLVED, product_of, short_name
from modelyard.autoscaling.config_maps import ObjectNotice
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.select import select
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.attribution import attribute, by_pod
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import Proposed
from modelyard.autoscaling.variants.slo.reading import read_objectives
from modelyard.objects import Key, Node


class Observed(NamedTuple):
    """``variants`` are all variants of this controller in key order; ``kept`` those that cannot be decided on.

    ``notices`` are about ConfigMaps, ``unattributed`` counts signals of pods that belong to no variant.
    """

    variants: tuple[Observation, ...]
    kept: Mapping[Key, Proposed]
    notices: tuple[ObjectNotice, ...] = ()
    unattributed: int = 0

    @property
    def active(self) -> list[Observation]:
        """The variants to decide on, in key order."""
        return [seen for seen in self.variants if seen.key not in self.kept]


def observe(fleet: Fleet, settings: FleetSettings) -> Observed:
    """Return every variant of this controller with its workload, pods, signals, accelerator and latency targets."""
    selected = select(fleet, settings)
    attributed, unattributed = attribute(fleet, selected.active, fleet.now - settings.stale_after)
    active = {seen.key: seen for seen in attributed}
    variants = [active.get(seen.key, seen) for seen in selected.variants]
    variants, notices = read_objectives(fleet, variants, by_pod(fleet.signals.performance), settings)
    nodes = {node.name: node for node in fleet.nodes}
    variants = [seen._replace(accelerator=_accelerator(seen, nodes)) for seen in variants]
    return Observed(tuple(variants), selected.kept, tuple(notices), unattributed)


def _accelerator(seen: Observation, nodes: Mapping[str, Node]) -> str | None:
    """Label, then workload template, then the node of a running pod, then what status says."""
    slo = seen.variant.slo
    name = slo.accelerator if slo is not None else seen.variant.labels.get(ACCELERATOR_LABEL)
    if name:
        return name
    if seen.workload is not None and (product := product_of(seen.workload.node_selector)):
        return short_name(product)
    for pod in sorted((pod for pod in seen.pods if pod.node in nodes), key=lambda pod: pod.key):
        if product := product_of(nodes[pod.node].labels):
            return short_name(product)
    known = seen.variant.status_accelerator
    return known if known and known != UNRESOLVED else None
