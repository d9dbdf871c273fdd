"""The decision of one tick: its stages in order, and the registry of strategies. Pure. Begin with ``decide``."""

from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.pipeline.strategies import binding_strategy
