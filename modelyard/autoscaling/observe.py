"""First stage of a tick: what is known of every variant of this controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from modelyard.autoscaling.config_maps import ObjectNotice
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.select import select
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.attribution import accelerator_of, attribute, by_pod
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import Proposed
from modelyard.autoscaling.variants.slo.reading import read_objectives
from modelyard.objects import Key


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
    variants = [
        active.get(seen.key) or seen._replace(accelerator=accelerator_of(seen, (), {})) for seen in selected.variants
    ]
    variants, notices = read_objectives(fleet, variants, by_pod(fleet.signals.performance), settings)
    return Observed(tuple(variants), selected.kept, tuple(notices), unattributed)
