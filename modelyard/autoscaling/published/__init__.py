"""The documented modes of the reference controllers, off the live path."""

from modelyard.autoscaling.published import slo, zero
from modelyard.autoscaling.published.limiter import ByTotal
from modelyard.autoscaling.published.percentages import PublishedPercentages
from modelyard.autoscaling.published.policies import PublishedTargetMetrics
from modelyard.autoscaling.published.tokens import PublishedTokens
