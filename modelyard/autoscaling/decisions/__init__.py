"""Values of a decision: outcomes and their reasons, replica bounds, records, and the protocol of strategies. Pure."""

from modelyard.autoscaling.decisions import conditions
from modelyard.autoscaling.decisions.bounds import limits_unknown, required_minimum, variant_bounds
from modelyard.autoscaling.decisions.budget import BEYOND, SEARCHES, SHARE, TRIALS, refusal, waiting_since
from modelyard.autoscaling.decisions.conditions import (
    ACCELERATOR_RESOLVED,
    CAPACITY_LIMITED,
    METRICS_AVAILABLE,
    OPTIMIZATION_READY,
    PROFILE_DRIFT,
    PROFILE_VALID,
    READY,
    SCALE_FROM_ZERO,
    SLO_FEASIBLE,
    TARGET_FOUND,
    TARGET_RESOLVED,
)
from modelyard.autoscaling.decisions.decision import (
    NO_FACTS,
    UNBOUNDED,
    Action,
    Alternative,
    BindingDecision,
    Bounds,
    CurrentAllocation,
    Decision,
    DecisionFacts,
    Evidence,
    Identity,
    Now,
    Prediction,
    Record,
    Step,
    Target,
    TickDecision,
    VariantDecision,
    Why,
    Writes,
)
from modelyard.autoscaling.decisions.explain import UNKNOWN, lines, remarks, row
from modelyard.autoscaling.decisions.reasons import (
    ConditionValue,
    Count,
    Explanation,
    JoinedTexts,
    OwnReason,
    Parts,
    Reason,
    VariantMove,
)
from modelyard.autoscaling.decisions.strategy import Strategy, TickContext
