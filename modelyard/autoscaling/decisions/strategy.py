"""Strategies, pure: the same demand and tick give the same proposal. ``strategies`` has the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.fleet import Fleet, Quota
from modelyard.metrics.vocabulary import Signals

Demand_contra = TypeVar("Demand_contra", contravariant=True)
Proposal_co = TypeVar("Proposal_co", covariant=True)


@dataclass(frozen=True, slots=True)
class TickContext:
    """The context of all decisions of one tick. ``counts_gpus``: the GPU limiter is on."""

    fleet: Fleet
    settings: FleetSettings
    counts_gpus: bool = False
    quotas: tuple[Quota, ...] = ()

    @property
    def now(self) -> float:
        return self.fleet.now

    @property
    def signals(self) -> Signals:
        return self.fleet.signals


class Strategy(Protocol[Demand_contra, Proposal_co]):
    """Proposes replicas, for the variants of one model or for the targets of one binding."""

    def propose(self, demand: Demand_contra, tick: TickContext) -> Proposal_co: ...
