"""The controller: the connections that live for a whole shift, and the stages of a tick, typed values in and out."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import TickDecision, row
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.live.collect import Selection, collect
from modelyard.autoscaling.live.collect_bindings import list_bindings, observe_bindings
from modelyard.autoscaling.live.policy_state import PolicyState
from modelyard.autoscaling.live.settings import ControllerSettings
from modelyard.autoscaling.live.wake import WakeWatch, first_of
from modelyard.autoscaling.pipeline import decide
from modelyard.autoscaling.plans import binding_plans, policy_plans, variant_plans
from modelyard.cluster import Cluster, ClusterSettings, Holder, Lease
from modelyard.metrics.prometheus import (
    Expressions,
    LastSeen,
    LoadHistory,
    Prometheus,
    PrometheusError,
    PrometheusSettings,
)
from modelyard.reconcile.kernel import Fence, Mirror, Outcome, Said, carry_out, changes, tell
from modelyard.reconcile.plans import Plan, Ref, TickReport, table

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Actuated:
    """What a tick's decisions asked to have written, and what became of it."""

    plans: Sequence[Plan] = ()
    outcome: Outcome = field(default_factory=Outcome)


class Controller:
    """Connections of a shift. Raises ``ClusterError`` without a cluster; without Prometheus replicas are kept."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.settings = settings
        self.fleet_settings: FleetSettings = settings.fleet.compressed(settings.time_compression)
        self.cluster: Cluster
        self.mirror: Mirror
        self.prometheus: Prometheus | PrometheusError
        self._expressions: Expressions
        self._stack = AsyncExitStack()
        self._last_seen = LastSeen()
        self._loads = LoadHistory(
            self.fleet_settings.load_history,
            self.fleet_settings.tick,
            scale=1 / settings.time_compression,
            clock=lambda: self.cluster.now(),
        )
        self._policies: PolicyState
        self._wakes: WakeWatch
        self._said = Said()
        self._written: dict[Ref, float] = {}
        self._lease: Lease | None = None
        self._term = 0

    async def __aenter__(self) -> Self:
        self.cluster = await self._stack.enter_async_context(Cluster.connect(ClusterSettings()))
        self.mirror = await self._stack.enter_async_context(Mirror(self.cluster))
        source = PrometheusSettings(timeout=self.settings.prometheus_timeout).at(self.settings.prometheus_url)
        try:
            self.prometheus = await self._stack.enter_async_context(Prometheus(source))
        except PrometheusError as error:
            log.error("%s", error)
            self.prometheus = error
        self._expressions = await self._stack.enter_async_context(
            Expressions(self.prometheus, self.fleet_settings.expressions)
        )
        self._policies = await self._stack.enter_async_context(PolicyState())
        wakes = WakeWatch(
            self.cluster,
            self.prometheus,
            self._expressions,
            instance=self.fleet_settings.controller_instance,
            gateways=self.fleet_settings.gateway_namespaces,
            interval=max(0.2, 1 / self.settings.time_compression),
        )
        self._wakes = await self._stack.enter_async_context(wakes)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def lease(self, name: str, namespace: str | None = None, token: str = "") -> Lease:
        """Return the Lease that makes this the one writer. Once asked for, ``actuate`` writes only while it is held."""
        home = namespace or self.fleet_settings.controller_namespace
        self._lease = Lease(self.cluster, name, home, str(Holder.here()), token=token)
        return self._lease

    def _may_write_for(self) -> float:
        return math.inf if self._lease is None else self._lease.remaining

    async def wait_for_change(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for an edit of what is scaled, or for demand for a model at zero.

        One that waits follows the cluster: from then on a tick lists only what its watches cannot be trusted with.
        """
        self.mirror.follow()
        return await first_of(self.mirror.wait(timeout), self._wakes.wait(timeout))

    async def collect(self) -> Fleet:
        selection = Selection(tuple(self.settings.namespaces), self.settings.label_selector)
        if self._lease is not None and self._lease.generation != self._term:
            # Until a moment ago another controller wrote; its last writes may still be on their way to our watches.
            self._term = self._lease.generation
            self.mirror.distrust()
        await self.mirror.begin()
        listed = await list_bindings(self.mirror, self.fleet_settings, selection, self._policies)
        async with asyncio.TaskGroup() as group:
            fleet = group.create_task(
                collect(
                    self.mirror,
                    self.prometheus,
                    self._expressions,
                    self.fleet_settings,
                    selection,
                    self._last_seen,
                    self._loads,
                    listed.homes,
                )
            )
            bindings = group.create_task(
                observe_bindings(self.mirror, self._expressions, self.fleet_settings, listed, self._policies)
            )
        complete = await self._wakes.complete(fleet.result())
        self._wakes.follow(listed.bindings, bindings.result())
        return dataclasses.replace(complete, bindings=bindings.result())

    def decide(self, fleet: Fleet) -> TickDecision:
        return decide(fleet, self.fleet_settings)

    async def actuate(self, fleet: Fleet, decision: TickDecision) -> Actuated:
        """Write the intent to status, then move the workloads that are ours to move. A dry run does neither."""
        if self.fleet_settings.dry_run:
            return Actuated()
        refresh, now = self.fleet_settings.status_refresh, decision.now
        plans = [
            *variant_plans(fleet, decision, refresh),
            *binding_plans(fleet.bindings, decision.bindings, now, refresh, self._written),
            *policy_plans(self._policies.listed_policies, now),
        ]
        outcome = await carry_out(self.cluster, plans, Fence(self._may_write_for))
        there = {plan.subject.ref for plan in plans}
        self._written = {ref: at for ref, at in self._written.items() if ref in there}
        self._written |= dict.fromkeys(outcome.written, now)
        return Actuated(plans, outcome)

    async def report(self, decision: TickDecision, done: Actuated) -> TickReport:
        """Send Events of what changed (a dry run sends none); the tick's table and changes."""
        await tell(self.cluster, done.plans, done.outcome, self._said, decision.now)
        rows = table(decision.records, lambda record: record.identity.key.namespace, row)
        return TickReport(rows, changes(done.plans, done.outcome))
