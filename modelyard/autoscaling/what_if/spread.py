"""How the load of a model lies on its pods, and how it would lie on others.

The requests in a model's engines are held constant: those running and those waiting together. They lie on the pods in
proportion to what each can hold (its room), times how far the pod was from the mean when it was measured: a router
that is unfair stays so. What a pod has no room for waits. Where a pod does not report all three signals, cache use and
queue are only spread, each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, inf
from statistics import fmean
from typing import Any

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.variants import Observation, attribute, select
from modelyard.autoscaling.variants.tokens import arguments_of
from modelyard.metrics.vocabulary import Over, PodMeasures, PodSignal, UnderLoad
from modelyard.objects import Key

_UNFAIR = 2.0
"""Most a pod may differ from the mean for good: one that has just started does not stay idle."""


@dataclass(frozen=True, slots=True)
class PodEngine:
    """What is known of a pod's engine: the variant it belongs to and the most requests in its batch."""

    variant: Key | None = None
    batch: float = inf

    def room(self, signal: PodSignal) -> float:
        """Requests the pod can run at once, by its cache and its batch; at least those that it does run."""
        running, kv = signal.running or 0.0, signal.kv or 0.0
        by_cache = running / kv if kv > 0 and running > 0 else inf
        return max(running, min(self.batch, by_cache))


def observed(fleet: Fleet, settings: FleetSettings) -> list[Observation]:
    """Return the variants that can be decided on, each with its pods, as the decision sees them."""
    return attribute(fleet, select(fleet, settings).active, fleet.now - settings.stale_after)[0]


def engines_of(fleet: Fleet, settings: FleetSettings) -> dict[Key, PodEngine]:
    """Return the engine of every pod of a variant."""
    return {pod.key: engine_of(seen) for seen in observed(fleet, settings) for pod in seen.pods}


def engine_of(seen: Observation) -> PodEngine:
    """Return the engine of a variant's replicas."""
    slo = seen.variant.slo
    return PodEngine(seen.key, float(slo.max_batch if slo is not None else arguments_of(seen).max_sequences))


def under_load(told: type[PodMeasures], part: Callable[[str], float | None]) -> dict[str, Any]:
    """Values of a pod with ``part`` of its load, by field (``None``: unknown), without ``UnderLoad.PLACED``."""
    changing = (UnderLoad.SHARED, UnderLoad.UNKNOWN)
    found = {name: measure.under_load for name, measure in told.measures().items() if measure.under_load in changing}
    return {name: part(name) if kind is UnderLoad.SHARED else None for name, kind in found.items()}


def evenly(told: type[PodMeasures], found: Collection[PodMeasures], pods: int) -> dict[str, Any]:
    """What changes in each of ``pods`` pods' values when they have the same load in all as those that were found."""

    def part(name: str) -> float | None:
        known = [value for one in found if (value := getattr(one, name)) is not None]
        return fsum(known) / pods if known and pods else None

    return under_load(told, part)


class Spread:
    """The load of one model in one namespace. ``queue`` is what waits in front of all pods."""

    def __init__(self, signals: Sequence[PodSignal], engines: Mapping[Key, PodEngine], queue: float = 0.0) -> None:
        self._known = {Key(signal.namespace, signal.pod): signal for signal in signals}
        self._engines = {key: engines.get(key, PodEngine()) for key in self._known}
        self._queue = queue
        self._whole = all(None not in (s.kv, s.running, s.waiting) for s in signals)
        self._rooms = {key: self._engines[key].room(signal) for key, signal in self._known.items()}
        self._requests = fsum((s.running or 0.0) + (s.waiting or 0.0) for s in signals)
        finite = {key: room for key, room in self._rooms.items() if room < inf}
        level = fsum(self._held(key) for key in finite) / total if (total := fsum(finite.values())) else 0.0
        self._unfair = {
            key: min(max(self._held(key) / room / level, 1 / _UNFAIR), _UNFAIR)
            for key, room in finite.items()
            if level and room
        }

    def _held(self, key: Key) -> float:
        return (self._known[key].running or 0.0) + (self._known[key].waiting or 0.0)

    def on(self, pods: Iterable[tuple[Key, PodEngine]], model: str) -> list[PodSignal]:
        """What these pods would report, with all the requests on them; pods that are new are as the others are."""
        there = list(pods)
        if {key for key, _ in there} == self._known.keys() and not self._queue:
            return list(self._known.values())
        if not there:
            return []
        made = [self._pod(key, engine, model) for key, engine in there]
        parts = evenly(PodSignal, self._known.values(), len(there))
        made = [(replace(signal, **parts), room) for signal, room in made]
        return self._by_requests(made) if self._whole else self._by_value(made)

    def _pod(self, key: Key, engine: PodEngine, model: str) -> tuple[PodSignal, float]:
        """The pod's own signal, else a mean pod's of its variant or model; with its room."""
        if key in self._known:
            return self._known[key], self._rooms[key]
        like = [k for k, e in self._engines.items() if e.variant == engine.variant] or list(self._known)
        signal = PodSignal(key.namespace, key.name, model, 0.0, 0.0, 0.0)
        if like:
            alike = [self._known[k] for k in like]
            known = [name for name, measure in PodSignal.measures().items() if measure.over is not Over.TIME]
            means = {name: _mean([getattr(s, name) for s in alike]) for name in known}
            signal = PodSignal(key.namespace, key.name, model, **means)
        rooms = [self._rooms[k] for k in like if self._rooms[k] < inf]
        return signal, min(engine.batch, fmean(rooms)) if rooms else engine.batch

    def _by_requests(self, pods: Sequence[tuple[PodSignal, float]]) -> list[PodSignal]:
        rooms = [room if room < inf else 1.0 for _, room in pods]
        keys = [Key(signal.namespace, signal.pod) for signal, _ in pods]
        weights = [room * self._unfair.get(key, 1.0) for key, room in zip(keys, rooms, strict=True)]
        total = fsum(weights) or 1.0
        requests = self._requests + self._queue
        found = []
        for (signal, room), weight in zip(pods, weights, strict=True):
            held = requests * weight / total
            running = min(held, room)
            each = (signal.kv or 0.0) / signal.running if signal.running else 0.0
            found.append(replace(signal, running=running, waiting=held - running, kv=min(1.0, each * running)))
        return found

    def _by_value(self, pods: Sequence[tuple[PodSignal, float]]) -> list[PodSignal]:
        factors = {}
        for name in ("kv", "waiting", "running"):
            before = fsum(v for s in self._known.values() if (v := getattr(s, name)) is not None)
            before += self._queue if name == "waiting" else 0.0
            now = fsum(v for s, _ in pods if (v := getattr(s, name)) is not None)
            factors[name] = before / now if now else 1.0
        return [
            replace(
                signal,
                kv=None if signal.kv is None else min(1.0, signal.kv * factors["kv"]),
                waiting=None if signal.waiting is None else signal.waiting * factors["waiting"],
                running=None if signal.running is None else signal.running * factors["running"],
            )
            for signal, _ in pods
        ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
