"""What aims at latency targets knows in one tick of one variant, and of one group of variants.

Mutable and private to the decision, like ``autoscaling.state``, whose ``State.slo`` and ``Group.slo`` these are. Rates
are requests per second, times milliseconds, costs per hour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modelyard.autoscaling.decision import Alternative, Prediction
from modelyard.autoscaling.fleet import SLOSpec
from modelyard.autoscaling.memory.variants import SLOMemory
from modelyard.autoscaling.variants.slo.classes import ServiceClass
from modelyard.autoscaling.variants.slo.profile import Profile
from modelyard.metrics.values import PodPerformance, SizeBuckets


@dataclass(slots=True)
class VariantWork:
    """One variant. ``problem`` says why it cannot be sized; then saturation alone decides about it.

    ``cost`` is of one replica. ``rate`` is the most requests per second one replica can take, NaN when not known;
    ``binding`` what limits it. ``ttft_factor`` and ``itl_factor`` are observed over predicted.
    """

    spec: SLOSpec | None
    """``None`` for a variant in saturation form."""
    profile: Profile | None = None
    profile_problem: str = ""
    service: ServiceClass | None = None
    problem: str = ""
    unit_cost: float | None = None
    price_problem: str = ""
    cost: float = 0.0
    memory: SLOMemory = field(default_factory=SLOMemory)
    performance: list[PodPerformance] = field(default_factory=list)
    ttft_factor: float = 1.0
    itl_factor: float = 1.0
    learnt: str = ""
    """What the profile was learnt from, in words, where it is not the variant's own."""
    alone: bool = False
    """Whether saturation decides alone, since nobody asked for targets in so many words and none can be aimed at."""
    rate: float = math.nan
    feasible: bool | None = None
    eased: bool = False
    """Whether a target can be met, but only by a replica with next to nothing to do, and is sized for a little more."""
    binding: str = ""
    best_ttft: float = math.nan
    best_itl: float = math.nan
    sized_utilisation: float = math.nan
    assumed_sizes: bool = False
    """Whether the request sizes are made up, so that only "infeasible whatever comes" can be said."""
    attains: str = ""
    """What the rate holds, in words, where the share of requests within the targets is aimed at."""
    override: str = ""
    """What saturation overruled, in words."""
    limited: str = ""
    """What the lack of GPUs changed, in words."""
    prediction: Prediction | None = None

    @property
    def known(self) -> bool:
        """Whether one replica's rate is known."""
        return self.rate > 0 and not self.assumed_sizes


@dataclass(slots=True)
class RequestSizes:
    """Mean tokens of a request. ``measured`` means now; otherwise the last ones that could be believed."""

    prompt: float
    output: float
    measured: bool = True


@dataclass(slots=True)
class GroupWork:
    """The variants of one model and class. ``load`` ``None`` is not known, never zero.

    ``planned`` is the load sized for, growth expected until new replicas are ready included, and ``trend`` says why.
    ``idle`` means no arrivals and nothing in flight. ``full_window`` is whether one whole load window has been seen.
    """

    service: ServiceClass
    load: float | None = None
    load_problem: str = ""
    planned: float = 0.0
    trend: str = ""
    sizes: RequestSizes | None = None
    buckets: SizeBuckets = field(default_factory=SizeBuckets)
    idle: bool = False
    attaining: bool = False
    """Whether ``planned`` is what the share of requests within the targets asks for, margin and memory included."""
    full_window: bool = True
    history: Sequence[tuple[float, float]] = ()
    """(time, requests per second) of the whole model, oldest first."""
    sizes_seen: Sequence[tuple[float, float, float]] = ()
    """(time, prompt, output): mean tokens of the requests that finished before, oldest first."""
    share: float = 1.0
    """Of the model's load, what is this group's."""
    wanted: Mapping[str, int] = field(default_factory=dict)
    """The covering's replicas by variant name, before anything damps it."""
    forecast: bool = False
    """Whether the forecast had a say."""
    alternatives: tuple[Alternative, ...] = ()
