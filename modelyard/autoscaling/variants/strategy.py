"""How models are decided: a strategy for those with latency targets and one for those without."""

from __future__ import annotations

from typing import NamedTuple

from modelyard.autoscaling.settings import Compatibility
from modelyard.autoscaling.strategy import Strategy
from modelyard.autoscaling.variants.demand import ModelDemand
from modelyard.autoscaling.variants.enforcement import Idle, proven_idle
from modelyard.autoscaling.variants.proposal import Proposal

VariantStrategy = Strategy[ModelDemand, Proposal]


class Entry(NamedTuple):
    """How the models of one compatibility mode and analyzer are decided.

    ``with_targets`` decides about models with latency targets. ``idle`` says whether a model may go to zero.
    ``remembers``: transitions and regretted scale-downs are remembered from tick to tick.
    """

    strategy: VariantStrategy
    with_targets: VariantStrategy
    analyzer: str = ""
    compatibility: Compatibility = Compatibility.REPAIRED
    idle: Idle = proven_idle
    remembers: bool = True
