"""What is asked of the variants of one model: the second stage's result, and what a strategy proposes for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from modelyard.autoscaling.configuration import Compatibility
from modelyard.autoscaling.decisions import Explanation, Parts, Reason, Strategy
from modelyard.autoscaling.memory import SLOMemory
from modelyard.autoscaling.variants.attainment import Holding
from modelyard.autoscaling.variants.attribution import Performances
from modelyard.autoscaling.variants.classes import ServiceClass
from modelyard.autoscaling.variants.objective import Objective
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import Proposal, Sized
from modelyard.autoscaling.variants.saturation_config import Effective
from modelyard.autoscaling.variants.zero_config import ZeroRule
from modelyard.fairness import WorkBudget
from modelyard.metrics.vocabulary import ModelLoad, Signals
from modelyard.objects import Key, Notice


class Attains(NamedTuple):
    """Further facts about a rate where the share of requests within the targets is aimed at.

    ``may_miss`` is the share of requests that may miss with ``replicas`` together, ``idle_misses`` the share that
    misses on idle replicas where that is more than allowed. ``busy`` is the engines that a request per second keeps
    busy.
    """

    may_miss: float
    replicas: int
    idle_misses: float | None
    holding: Holding
    busy: float

    def __str__(self) -> str:
        text = f"{100 * (1 - self.may_miss):.3g} % of the requests, {self.replicas} of them together"
        if self.idle_misses is not None:
            text += f" ({100 * self.idle_misses:.1f} % miss on idle replicas too)"
        return text


class Rate(NamedTuple):
    """The load that one replica of a variant can take within its targets.

    ``rate`` is in requests per second, NaN when not known; ``binding`` what limits it. ``eased``: a target can be met,
    but only by a replica with next to nothing to do, and the replica is sized for a little more. ``assumed_sizes``: the
    request sizes are made up, so that only "infeasible whatever comes" can be said. The factors are observed over
    predicted latencies.
    """

    objective: Objective
    memory: SLOMemory
    ttft_factor: float = 1.0
    itl_factor: float = 1.0
    assumed_sizes: bool = False
    rate: float = math.nan
    feasible: bool | None = None
    eased: bool = False
    binding: str = ""
    best_ttft: float = math.nan
    best_itl: float = math.nan
    utilisation: float = math.nan
    attains: Attains | None = None

    @property
    def known(self) -> bool:
        return self.rate > 0 and not self.assumed_sizes

    @property
    def cost(self) -> float:
        """Cost per hour."""
        return self.objective.cost


class RequestSizes(NamedTuple):
    """Mean tokens of a request. ``measured`` means now; otherwise the last ones that could be believed."""

    prompt: float
    output: float
    measured: bool = True


class LoadForecast(NamedTuple):
    """The load that variants with latency targets have to carry, in requests per second.

    ``load`` ``None`` is not known, never zero; ``problem`` says why. ``planned`` is the load sized for, growth expected
    until new replicas are ready included, and ``basis`` says why. ``idle`` means no arrivals and nothing in flight.
    ``attaining``: ``planned`` is what the share of requests within the targets asks for, margin and memory included.
    ``full_window``: a whole load window has been seen. ``notices`` are by variant name.
    """

    load: float | None
    problem: Explanation | None = None
    planned: float = 0.0
    basis: Explanation | None = None
    sizes: RequestSizes | None = None
    idle: bool = False
    full_window: bool = True
    attaining: bool = False
    rates: Mapping[str, Rate] = {}
    notices: Mapping[str, tuple[Notice, ...]] = {}


class Group(NamedTuple):
    """The variants of one model that are decided together.

    ``effort`` bounds what all groups of the namespace spend on searches for the cheapest mix, ``trials`` what they
    spend on trying rules, in steps of the load times replicas.
    """

    namespace: str
    model_id: str
    variants: tuple[Observation, ...]
    compatibility: Compatibility
    service: ServiceClass | None = None
    effort: WorkBudget | None = None
    trials: WorkBudget | None = None
    notices: Mapping[Key, tuple[Notice, ...]] = {}

    @property
    def name(self) -> str:
        return f"model {self.model_id!r} in namespace {self.namespace}"

    def warned(self, why: Explanation, keys: Sequence[Key]) -> Group:
        notice = Notice(why.code, str(why), "Warning")
        return self._replace(notices={**self.notices, **{key: (*self.notices.get(key, ()), notice) for key in keys}})


class StrategyEntry(NamedTuple):
    """Strategies of one compatibility mode and analyzer; ``with_targets`` decides where there are latency targets.

    ``idle``: may a model go to zero. ``remembers``: transitions and regretted scale-downs are kept from tick to tick.
    """

    strategy: VariantStrategy
    with_targets: VariantStrategy
    idle: Idle
    analyzer: str = ""
    compatibility: Compatibility = Compatibility.REPAIRED
    remembers: bool = True


class ModelDemand(NamedTuple):
    """Load, configuration and signals of a group; ``forecast`` ``None``: saturation alone decides.

    ``backlog`` is requests that wait at a gateway, ``backlog_bytes`` the size of their bodies.
    """

    group: Group
    running: tuple[Observation, ...]
    """The variants whose workload is not at zero."""
    config: Effective
    zero: ZeroRule
    entry: StrategyEntry
    forecast: LoadForecast | None = None
    rates: Mapping[str, Rate] = {}
    """What is known of the variants' rates, by name, also where saturation alone decides."""
    load: ModelLoad | None = None
    backlog: float = 0.0
    backlog_bytes: float = 0.0
    performances: Performances = MappingProxyType({})
    """What pods report of their performance; under the reporting pod of a group, that of the whole group."""

    @property
    def variants(self) -> tuple[Observation, ...]:
        return self.group.variants

    @property
    def place(self) -> tuple[str, str]:
        return self.group.namespace, self.group.model_id

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def model_forecast(self) -> LoadForecast:
        assert self.forecast is not None
        return self.forecast

    def problem_of(self, seen: Observation) -> Explanation | Parts | None:
        objective = seen.objective
        if objective is None or objective.problem is not None:
            return None if objective is None else objective.problem
        waits = self.group.service is None and objective.spec is None
        return Explanation(Reason.OTHERS_NOT_LEARNT) if waits else None


VariantStrategy = Strategy[ModelDemand, Proposal]
Idle = Callable[[ModelDemand, Sequence[Sized], Signals, float], tuple[Explanation | None, Explanation]]
"""Why a model that completed no request for its window may not go to zero (``None``: it may), and what is known."""
