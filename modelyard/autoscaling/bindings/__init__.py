"""Scaling by AutoscalingPolicy and AutoscalingPolicyBinding: metrics held at target values, with panic and windows."""

from modelyard.autoscaling.bindings import story, windows
from modelyard.autoscaling.bindings.behaviour import Corrector
from modelyard.autoscaling.bindings.claims import Rival, outside, settled
from modelyard.autoscaling.bindings.decide import decide_bindings
from modelyard.autoscaling.bindings.defaults import DEFAULT_PORT, DEFAULT_URI, describe, manifest, policy_view
from modelyard.autoscaling.bindings.explain import binding_lines, blocks
from modelyard.autoscaling.bindings.problems import conflicts
from modelyard.autoscaling.bindings.recommend import Recommendation
from modelyard.autoscaling.bindings.samples import PodHistory, joined, pod_values
from modelyard.autoscaling.bindings.shares import CAPACITY, OPTIMIZER, parse_choice
from modelyard.autoscaling.bindings.story import totals, units
from modelyard.autoscaling.bindings.total import BindingStrategy, Metered, TargetMetrics
