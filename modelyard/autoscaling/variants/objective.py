"""What a variant with latency targets aims at, and the performance profile it is sized by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from modelyard.autoscaling.decisions import Explanation, Parts
from modelyard.autoscaling.fleet import SLOSpec
from modelyard.autoscaling.memory import SLOMemory
from modelyard.autoscaling.variants.classes import ServiceClass
from modelyard.autoscaling.variants.profile import Profile
from modelyard.metrics.vocabulary import PodPerformance


class Objective(NamedTuple):
    """Service class, price and profile of one variant.

    ``spec`` is ``None`` for a variant in saturation form, ``cost`` that of one replica per hour. ``problem`` says why
    the variant cannot be sized; then saturation alone decides about it. ``learnt`` says from what the profile was
    learnt where it is not the variant's own.
    """

    spec: SLOSpec | None
    cost: float
    memory: SLOMemory
    performance: Sequence[PodPerformance] = ()
    profile: Profile | None = None
    profile_problem: Explanation | None = None
    service: ServiceClass | None = None
    problem: Explanation | Parts | None = None
    unit_cost: float | None = None
    price_problem: Explanation | None = None
    learnt: Explanation | None = None
