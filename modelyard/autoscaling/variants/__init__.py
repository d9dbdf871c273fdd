"""VariantAutoscalings: from signals to targets, by saturation, by tokens and by SLO."""

from modelyard.autoscaling.variants.analysis import DIGITS, Analysis
from modelyard.autoscaling.variants.attainment import MOST, holding_of, needed
from modelyard.autoscaling.variants.attribution import GROUP_INDEX_LABEL, Performances, attribute, by_pod, with_groups
from modelyard.autoscaling.variants.classes import ServiceClasses, class_references
from modelyard.autoscaling.variants.costs import HIGHEST, number
from modelyard.autoscaling.variants.demand import (
    Group,
    LoadForecast,
    ModelDemand,
    Rate,
    RequestSizes,
    StrategyEntry,
    VariantStrategy,
)
from modelyard.autoscaling.variants.enforcement import enforce, proven_idle
from modelyard.autoscaling.variants.headroom import startup
from modelyard.autoscaling.variants.health import load_problem
from modelyard.autoscaling.variants.limiter import ByNode, Counting, limit
from modelyard.autoscaling.variants.observation import Observation, Unit
from modelyard.autoscaling.variants.observe import Observed, observe
from modelyard.autoscaling.variants.pools import Pools
from modelyard.autoscaling.variants.proposal import (
    Origin,
    Proposal,
    Proposed,
    ReplicaChange,
    Sized,
    Variants,
    changed,
    keep,
)
from modelyard.autoscaling.variants.records import make_record
from modelyard.autoscaling.variants.saturation import Checked, Percentages, Tokens, WithZero
from modelyard.autoscaling.variants.saturation_config import (
    TOKEN_ANALYZER,
    SaturationConfigs,
    Thresholds,
    TokenThresholds,
)
from modelyard.autoscaling.variants.select import (
    EXCLUDE_ANNOTATION,
    INSTANCE_LABEL,
    excluded_namespaces,
    select,
    target_found,
)
from modelyard.autoscaling.variants.shortage import cannot_scale
from modelyard.autoscaling.variants.stage import PipelineStage, ProposedModel, StageResult
from modelyard.autoscaling.variants.wake import at_zero, start, waiting
from modelyard.autoscaling.variants.zero_config import ZeroConfigs, retentions
