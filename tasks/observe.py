"""Readings that plans of a step need and the API server does not hold. Each is left with the run's lifecycle.

Each function returns the seconds until the next reading.
"""

from __future__ import annotations

import asyncio

from modelyard.benchmarks.jobs import BENCHMARK_JOBS
from modelyard.metrics.prometheus import Prometheus, PrometheusError, PrometheusSettings, read_routed, read_served
from modelyard.models.delivery import BASE_MODELS, ModelDelivery
from modelyard.models.execution import read_progress
from modelyard.objects import Key
from modelyard.onboarding.planning import Onboarding, name_of, object_of
from modelyard.reconcile.kernel import RunView
from modelyard.reconcile.plans import StepId
from modelyard.routing import RouteReading, RouteRollOuts, RouteStanding, RouteWatch
from modelyard.workloads.roll_out import INFERENCE_SERVICES, GateReading, GateWatch, RollOut, Standing
from tasks.children import EVERY as FOLLOWED, ChildKind, follow_child

EVERY = 5.0
"""Seconds between two readings."""


async def read_transfer(view: RunView, home: str, key: Key, step: StepId) -> float:
    """Read how far the transfer of a model to a node is."""
    lifecycle = view.lifecycle
    assert isinstance(lifecycle, ModelDelivery)
    leg = next((leg for leg in view.details(key) or () if leg.node == step.item), None)
    if leg is not None and (progress := await read_progress(view.cluster, leg)) is not None:
        lifecycle.progress[key, step.item] = progress
    return EVERY


async def compare_revisions(view: RunView, home: str, key: Key, step: StepId) -> float:
    """Read from Prometheus how the updated pods of a service serve, and how those before them did."""
    lifecycle = view.lifecycle
    assert isinstance(lifecycle, RollOut)
    details: Standing | None = view.details(key)
    if details is not None and details.watch is not None and lifecycle.readings is not None:
        lifecycle.readings[key] = await read_gate(details.watch, view.cluster.now())
    return EVERY


async def read_gate(watch: GateWatch, at: float) -> GateReading:
    """Return how the pods of both revisions served until ``at`` (epoch seconds), or why nothing could be read."""
    over, end = watch.over(at), min(at, watch.until)
    try:
        async with Prometheus(PrometheusSettings().at(watch.gate.prom_server_address)) as prometheus:
            new = await read_served(prometheus, watch.namespace, over, end)
            window = watch.gate.window_seconds
            old = new if watch.beside else await read_served(prometheus, watch.namespace, window, watch.since)
        return GateReading(at, *watch.sides(new, old))
    except Exception as error:  # it is reported, and tried again
        problem = str(error) if isinstance(error, PrometheusError) else f"{type(error).__name__}: {error}"
        return GateReading(at, problem=problem)


async def compare_servers(view: RunView, home: str, key: Key, step: StepId) -> float:
    """Read from Prometheus what routers in namespace ``home`` sent to each ModelServer, and how it was answered."""
    lifecycle = view.lifecycle
    assert isinstance(lifecycle, RouteRollOuts)
    details: RouteStanding | None = view.details(key)
    if details is None or details.watch is None or lifecycle.readings is None:
        return 1.0
    lifecycle.readings[key] = await _route_reading(home, details.watch, view.cluster.now())
    return details.watch.every


async def _route_reading(routers: str, watch: RouteWatch, at: float) -> RouteReading:
    mine, theirs = watch.spans(at)
    try:
        async with Prometheus(PrometheusSettings()) as prometheus:
            new, old = await asyncio.gather(
                read_routed(prometheus, routers, watch.route, (watch.new,), *mine),
                read_routed(prometheus, routers, watch.route, watch.old, *theirs),
            )
            return RouteReading(at, watch.since, new, old)
    except PrometheusError as error:
        return RouteReading(at, watch.since, problem=str(error))


async def follow_children(view: RunView, home: str, key: Key, step: StepId) -> float:
    """Start the child run that works on the step's object, and follow it."""
    lifecycle = view.lifecycle
    assert isinstance(lifecycle, Onboarding)
    details = view.details(key)
    obj = object_of(details, step) if details is not None else None
    if obj is None:
        return 1.0
    state = await follow_child(CHILDREN[obj["kind"]], obj, home)
    lifecycle.waiting[key, name_of(obj)] = state.waiting
    if state.problem:
        lifecycle.failed[key, name_of(obj)] = state.problem
    if not state.is_live:
        lifecycle.retried.discard((key, name_of(obj)))
    return FOLLOWED


CHILDREN = {
    child.kind.kind: child
    for child in (
        ChildKind("deliver/deliver", BASE_MODELS, {"kind": "BaseModel"}),
        ChildKind("roll-out/roll-out", INFERENCE_SERVICES, {"kind": "InferenceService"}),
        ChildKind("benchmark/benchmark", BENCHMARK_JOBS),
    )
}
