"""How many replicas of which variant serve which load: exact covering and allocation of scarce accelerators."""

from modelyard.autoscaling.mixing.allocate import allocate, allocate_greedy
from modelyard.autoscaling.mixing.covering import cover
from modelyard.autoscaling.mixing.model import LOWEST_PRIORITY, Allocation, Demand, Option, Share
