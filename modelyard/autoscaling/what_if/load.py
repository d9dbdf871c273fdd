"""More or less load, as if it had been so all along: arrivals and their history, engines, queues, policy metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.fleet import BindingView, Fleet, TargetView
from modelyard.autoscaling.what_if.errors import WhatIfError, listed
from modelyard.autoscaling.what_if.spread import PodEngine, engines_of, under_load
from modelyard.metrics.vocabulary import ModelLoad, PodMeasures, PodSignal, Signals
from modelyard.objects import Key


def scale_load(fleet: Fleet, settings: FleetSettings, subject: str, factor: float) -> tuple[Fleet, list[str]]:
    """The fleet with ``factor`` times the load of a model ID, a binding, or ``""`` (all). Request sizes stay.

    Observed latencies are dropped, so that nothing is learnt from them. Raises ``WhatIfError`` for unknown subjects.
    """
    models = {variant.model_id for variant in fleet.variants}
    views = tuple(view for view in fleet.bindings if not subject or subject in (view.key.name, str(view.key)))
    if subject and subject not in models and not views:
        known = listed((*models, *(str(view.key) for view in fleet.bindings)))
        raise WhatIfError(f"--load {subject}: no such model or AutoscalingPolicyBinding; there are: {known}")
    wanted = {model for model in models if not subject or model == subject}
    told = [f"{factor:g} times the load of {subject or 'everything'}, as if it had been so all along"]
    if factor == 1:
        return fleet, told
    signals, unknown = _signals(fleet, wanted, factor, engines_of(fleet, settings))
    if unknown:
        told.append(f"{unknown} pods do not say how many requests run: what their KV cache cannot take is not counted")
    chosen = {view.key for view in views}
    bindings = tuple(scaled_binding(view, factor) if view.key in chosen else view for view in fleet.bindings)
    return replace(fleet, signals=signals, bindings=bindings), told


def _signals(fleet: Fleet, models: set[str], factor: float, engines: Mapping[Key, PodEngine]) -> tuple[Signals, int]:
    before = fleet.signals
    woken = {variant.key for variant in fleet.variants if variant.model_id in models}
    pods = tuple(
        scaled_pod(s, factor, engines.get(Key(s.namespace, s.pod), PodEngine())) if s.model in models else s
        for s in before.pods
    )
    unknown = sum(s.running is None and (s.kv or 0.0) * factor > 1 for s in before.pods if s.model in models)
    totals: dict[str, Any] = {
        name: {key: value * factor if key[1] in models else value for key, value in getattr(before, name).items()}
        for name in ("request_counts", "gateway_queue", "gateway_bytes")
    }
    after = replace(
        before,
        pods=pods,
        **totals,
        loads={key: _load(load, factor) if key[1] in models else load for key, load in before.loads.items()},
        performance=tuple(
            replace(one, **_measured(one, factor)) if one.model in models else one for one in before.performance
        ),
        wake={key: pending * factor if key in woken else pending for key, pending in before.wake.items()},
    )
    return after, unknown


def scaled_pod(signal: PodSignal, factor: float, engine: PodEngine) -> PodSignal:
    """One pod under ``factor`` times its load. What its cache and its batch cannot hold waits."""
    kv, running, waiting = _times(signal.kv, factor), _times(signal.running, factor), _times(signal.waiting, factor)
    if kv is not None and running is not None and signal.running and running > (room := engine.room(signal)):
        waiting = (waiting or 0.0) + running - room
        kv, running = kv * room / running, room
    placed = {"kv": None if kv is None else min(kv, max(1.0, signal.kv or 0.0)), "running": running, "waiting": waiting}
    return replace(signal, **_measured(signal, factor) | placed)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _load(load: ModelLoad, factor: float) -> ModelLoad:
    return ModelLoad(_times(load.arrivals, factor), tuple((at, rate * factor) for at, rate in load.history), load.sizes)


def _measured(one: PodMeasures, factor: float) -> dict[str, Any]:
    return under_load(type(one), lambda name: _times(getattr(one, name), factor))


def scaled_binding(view: BindingView, factor: float) -> BindingView:
    """A binding under ``factor`` times its load. Shares may pass 1: they say how many instances would hold them."""
    return replace(view, targets=tuple(_target(target, factor) for target in view.targets))


def _target(target: TargetView, factor: float) -> TargetView:
    return replace(
        target,
        instances=tuple({name: value * factor for name, value in one.items()} for one in target.instances),
        external={name: value * factor for name, value in target.external.items()},
        demand=_times(target.demand, factor),
    )
