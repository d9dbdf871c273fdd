"""One replay: a trace, a fleet and a policy in; every request's result and every replica's life out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from modelyard.objects import Key, Node
from modelyard.replay.policies import Policy
from modelyard.replay.settings import SimulationError, SimulationSettings
from modelyard.replay.simulation import (
    Metrics,
    ScaleAction,
    SimulatedFleet,
    SimulatedPod,
    SimulatedResults,
    VariantSpec,
)
from modelyard.traffic.traces import Trace

Steps = tuple[list[float], list[int]]
"""Times at which a count changes, and the count from then on."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A finished replay. Times are seconds from the start of the trace; replica time is counted up to its end."""

    policy: str
    trace: Trace
    variants: tuple[VariantSpec, ...]
    results: SimulatedResults
    pods: tuple[SimulatedPod, ...]
    actions: tuple[ScaleAction, ...]
    problems: tuple[str, ...] = ()
    begin: float = 0.0
    """What came before is warm-up and does not count."""

    @property
    def duration(self) -> float:
        """Seconds for which replicas are counted."""
        return self.trace.duration

    def replica_seconds(self, variant: Key) -> float:
        """Time that replicas existed, from creation to end, start-up and draining included."""
        return sum(
            # The lesser of both; a pod that has not ended has no time (NaN), which counts for nothing.
            max(0.0, float(np.fmin(pod.ended, self.duration)) - max(pod.created, self.begin))
            for pod in self.pods
            if pod.variant.key == variant
        )

    def replicas(self, *, ready: bool = False) -> Steps:
        """How many replicas existed (``ready``: took requests) over time."""
        changes: dict[float, int] = {0.0: 0}
        for pod in self.pods:
            begin, end = (pod.ready_at, pod.removed_at) if ready else (pod.created, pod.ended)
            if np.isnan(begin) or begin > self.duration:
                continue
            changes[max(begin, 0.0)] = changes.get(max(begin, 0.0), 0) + 1
            if not np.isnan(end) and end <= self.duration:
                changes[max(end, 0.0)] = changes.get(max(end, 0.0), 0) - 1
        times = sorted(changes)
        return times, np.cumsum([changes[time] for time in times]).tolist()


def simulate(
    trace: Trace,
    variants: Sequence[VariantSpec],
    policy: Policy,
    settings: SimulationSettings | None = None,
    progress: Callable[[float], None] | None = None,
    nodes: Sequence[Node] = (),
) -> Run:
    """Replay the trace. ``progress`` is told the simulated time now and then; ``nodes`` hold the GPUs, if limited.

    Raises ``SimulationError`` when the trace does not fit the fleet (models) or holds nothing.
    """
    settings = settings or SimulationSettings()
    if not len(trace):
        raise SimulationError("the trace has no requests (in the stretch chosen): nothing can be replayed")
    if not trace.at[-1] >= settings.warm_up:
        raise SimulationError(
            f"the trace has no requests after the warm-up of {settings.warm_up:g} s: shorten it (--warm-up), or replay "
            "a longer trace"
        )
    initial: Mapping[Key, int] = policy.initial(variants)
    chosen = tuple(dataclasses.replace(spec, initial=initial.get(spec.key, spec.initial)) for spec in variants)
    metrics = Metrics(settings.scrape_interval, policy.keep)
    acts = policy.interval < float("inf")
    fleet = SimulatedFleet(trace, chosen, settings, metrics.take if acts else None, nodes)

    def tick(now: float) -> Mapping[Key, int]:
        if progress is not None:
            progress(now)
        return policy.tick(now, fleet, metrics)

    fleet.run(tick if acts else None, policy.interval)
    if progress is not None:
        progress(trace.duration)
    return Run(
        policy.name,
        trace,
        chosen,
        fleet.log.columns(),
        tuple(fleet.pods),
        tuple(fleet.actions),
        tuple(getattr(policy, "errors", ())),
        settings.warm_up,
    )
