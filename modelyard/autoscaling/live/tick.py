"""One tick of the loop, stage by stage, and the connections that live for a whole shift.

``tasks/`` wraps the four stages as Prefect tasks; ``modelyard plan`` calls the first two. A stage puts its result into
the ``Tick`` and returns a small summary, so that nothing large is kept by whoever runs it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import os
import socket
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, Self

from modelyard.autoscaling.decide import decide
from modelyard.autoscaling.decision import TickDecision
from modelyard.autoscaling.explain import row
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.live.actuate import Fence, Outcome, actuate, summary
from modelyard.autoscaling.live.bindings.actuate import BindingOutcome, actuate_bindings
from modelyard.autoscaling.live.bindings.collect import list_bindings, observe_bindings
from modelyard.autoscaling.live.bindings.report import changes as binding_changes
from modelyard.autoscaling.live.bindings.report import report_bindings
from modelyard.autoscaling.live.bindings.state import PolicyState
from modelyard.autoscaling.live.bindings.wake import BindingWakes
from modelyard.autoscaling.live.changes import ChangeWatch
from modelyard.autoscaling.live.collect import Selection, VariantCache, collect
from modelyard.autoscaling.live.reading import PodCache, Reader
from modelyard.autoscaling.live.report import Said, report
from modelyard.autoscaling.live.settings import LoopSettings
from modelyard.autoscaling.live.wake import WakeWatch, first_of
from modelyard.autoscaling.settings import FleetSettings
from modelyard.cluster import Cluster, ClusterSettings, Lease
from modelyard.metrics.client import Prometheus, PrometheusError, PrometheusSettings
from modelyard.metrics.loads import LoadHistory
from modelyard.metrics.signals import LastSeen

log = logging.getLogger(__name__)


class Tick:
    """The workspace of one tick. Deliberately an opaque object: runners must not walk into it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.fleet: Fleet | None = None
        self.decision: TickDecision | None = None
        self.outcome = Outcome()
        self.bindings = BindingOutcome()


class Loop:
    """The connections of one controller: cluster, Prometheus. Open once per shift.

    ``async with Loop(settings) as loop: ...``
    Raises ``ClusterError`` when no cluster is configured. A missing or broken Prometheus does not stop the loop: every
    variant then keeps its replicas and says so.
    """

    def __init__(self, settings: LoopSettings) -> None:
        self.settings = settings
        self.policy: FleetSettings = settings.fleet.compressed(settings.time_compression)
        self.cluster: Cluster
        self.prometheus: Prometheus | PrometheusError
        self._stack = AsyncExitStack()
        self._cache = VariantCache()
        self._pods = PodCache()
        self._last_seen = LastSeen()
        self._loads = LoadHistory(self.policy.trend_window, self.policy.tick, scale=1 / settings.time_compression)
        self._policies: PolicyState
        self._wakes: WakeWatch
        self._binding_wakes: BindingWakes
        self._said = Said()
        self._lease: Lease | None = None
        self._changes: ChangeWatch | None = None

    async def __aenter__(self) -> Self:
        self.cluster = await self._stack.enter_async_context(Cluster.connect(ClusterSettings()))
        source = PrometheusSettings(timeout=self.settings.prometheus_timeout)
        if self.settings.prometheus_url:
            source = source.model_copy(update={"base_url": self.settings.prometheus_url})
        try:
            self.prometheus = await self._stack.enter_async_context(Prometheus(source))
        except PrometheusError as error:
            log.error("%s", error)
            self.prometheus = error
        self._policies = await self._stack.enter_async_context(PolicyState())
        often = max(0.2, 1 / self.settings.time_compression)
        wakes = WakeWatch(self.cluster, self.prometheus, instance=self.policy.controller_instance, interval=often)
        self._wakes = await self._stack.enter_async_context(wakes)
        self._binding_wakes = BindingWakes(self.prometheus, often)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def lease(self, name: str, namespace: str | None = None, duration_seconds: int = 15) -> Lease:
        """The Lease that makes this loop the one writer. Once asked for, ``actuate`` writes only while it is held."""
        holder = f"{socket.gethostname()}_{os.getpid()}"
        self._lease = Lease(
            self.cluster,
            name,
            namespace or self.policy.controller_namespace,
            holder,
            duration_seconds=duration_seconds,
        )
        return self._lease

    def lease_held(self) -> bool:
        """Whether this loop may write now. Without a Lease (one-off runs) it may."""
        return self._lease is None or self._lease.held

    def _may_write_for(self) -> float:
        return math.inf if self._lease is None else self._lease.remaining

    async def wait_for_change(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for an edit of what is scaled, or for demand for a model at zero."""
        if self._changes is None:
            only = self.settings.namespaces[0] if len(self.settings.namespaces) == 1 else self.policy.watch_namespace
            watch = ChangeWatch(self.cluster, only, self.settings.label_selector)
            self._changes = await self._stack.enter_async_context(watch)
        waits = (self._changes.wait(timeout), self._wakes.wait(timeout), self._binding_wakes.wait(timeout))
        return await first_of(*waits)

    async def collect(self, tick: Tick) -> dict[str, Any]:
        """Read cluster and Prometheus into ``tick.fleet``."""
        selection = Selection(tuple(self.settings.namespaces), self.settings.label_selector)
        before = self.prometheus.queries if isinstance(self.prometheus, Prometheus) else 0
        listed = await list_bindings(self.cluster, self.policy, selection, self._policies)
        async with Reader(self.cluster, self._pods) as reader, asyncio.TaskGroup() as group:
            fleet = group.create_task(
                collect(
                    self.cluster,
                    self.prometheus,
                    self.policy,
                    selection,
                    self._cache,
                    self._last_seen,
                    self._loads,
                    listed.homes,
                    reader,
                )
            )
            bindings = group.create_task(observe_bindings(reader, self.prometheus, self.policy, listed, self._policies))
        complete = await self._wakes.complete(fleet.result())
        self._binding_wakes.follow(listed.bindings, bindings.result())
        tick.fleet = dataclasses.replace(complete, bindings=bindings.result())
        signals = tick.fleet.signals
        return {
            "variants": len(tick.fleet.variants),
            "bindings": len(tick.fleet.bindings),
            "workloads": len(tick.fleet.workloads),
            "pods": len(tick.fleet.pods),
            "reportingPods": len(signals.pods),
            "queries": self.prometheus.queries - before if isinstance(self.prometheus, Prometheus) else 0,
            "prometheus": signals.error or "ok",
            "partialErrors": list(signals.partial_errors),
        }

    def decide(self, tick: Tick) -> dict[str, Any]:
        """Decide for every variant into ``tick.decision``. Pure, no I/O."""
        assert tick.fleet is not None, "collect comes first"
        tick.decision = decide(tick.fleet, self.policy)
        records = tick.decision.records
        return {
            "actions": dict(Counter(str(record.target.action) for record in records)),
            "undecided": sum(1 for record in records if not record.target.decided),
            "errors": list(tick.decision.errors[:20]),
        }

    async def actuate(self, tick: Tick) -> dict[str, Any]:
        """Write the intent to status, then move the workloads that are ours to move."""
        fleet, decision = _decided(tick)
        if self.policy.dry_run:
            return {"dryRun": True}
        fence = Fence(self._may_write_for)
        refresh = self.policy.status_refresh
        tick.outcome = await actuate(self.cluster, fleet, decision, fence, refresh)
        tick.bindings = await actuate_bindings(
            self.cluster,
            fleet.bindings,
            decision.bindings,
            fence,
            refresh,
            self._policies,
            now=decision.now,
        )
        return {**summary(tick.outcome), "bindings": tick.bindings.summary()}

    async def report(self, tick: Tick) -> dict[str, Any]:
        """Send Events of what changed; return the rows of the tick's table under ``"rows"``."""
        fleet, decision = _decided(tick)
        if self.policy.dry_run:
            return {"rows": [row(record) for record in decision.records], "changes": []}
        rows = await report(self.cluster, fleet, decision, tick.outcome, self._said)
        rows += await report_bindings(
            self.cluster, fleet.bindings, decision.bindings, tick.bindings, self._said, decision.now
        )
        why = {one.key: one.record.why for one in decision.variants}
        changes = [
            {
                "variant": str(key),
                "from": before,
                "to": after,
                "reason": why[key].reason,
                "message": why[key].message,
            }
            for key, (before, after) in tick.outcome.scaled.items()
        ]
        return {"rows": rows, "changes": changes + binding_changes(decision.bindings, tick.bindings)}


def _decided(tick: Tick) -> tuple[Fleet, TickDecision]:
    if tick.fleet is None or tick.decision is None:
        raise RuntimeError(f"tick {tick.number}: collect and decide come before actuate and report")
    return tick.fleet, tick.decision
