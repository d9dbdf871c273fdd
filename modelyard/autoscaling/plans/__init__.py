"""Plans that carry out a decision: scales, statuses and annotations of each object. Pure."""

from modelyard.autoscaling.plans.binding_plans import binding_plans, policy_plans
from modelyard.autoscaling.plans.variant_plans import variant_plans
