"""First stage of a tick: what is known of every variant of this controller."""

from __future__ import annotations

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.variants.attribution import accelerator_of, attribute, by_pod
from modelyard.autoscaling.variants.select import Observed, select
from modelyard.autoscaling.variants.slo import read_objectives

__all__ = ["Observed", "observe"]


def observe(fleet: Fleet, settings: FleetSettings) -> Observed:
    """Return every variant of this controller with its workload, pods, signals, accelerator and latency targets."""
    selected = select(fleet, settings)
    attributed, unattributed = attribute(fleet, selected.active, fleet.now - settings.stale_after)
    active = {seen.key: seen for seen in attributed}
    variants = [
        active.get(seen.key) or seen._replace(accelerator=accelerator_of(seen, (), {})) for seen in selected.variants
    ]
    variants, notices = read_objectives(fleet, variants, by_pod(fleet.signals.performance), settings)
    return Observed(variants, selected.kept, tuple(notices), unattributed)
