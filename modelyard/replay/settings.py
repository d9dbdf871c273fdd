"""What can be set for a simulation, whatever the policy: the router, sampling and the cluster's delays;
and what gaps in a recorded past stand for."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import StrEnum

from modelyard.traffic import Routing

POLICIES = (
    "default, published (both take fleet settings: default:scale_down_delay=300), fixed or fixed:N, hpa:queue=2 or "
    "kv=0.7 or running=20 (min=, max=), keda:queue=2 (min=, max=, cooldown=), clairvoyant (a lower bound)"
)
"""The policies that can be replayed, for people."""


class SimulationError(ValueError):
    """Trace and fleet do not fit together; the message says why and what to do."""


class Gaps(StrEnum):
    """What steps without any data stand for."""

    FAIL = "fail"
    """An error that names them."""
    ZERO = "zero"
    """No requests, as when the model was at zero."""
    INTERPOLATE = "interpolate"
    """A straight line between the steps around them."""


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """The world around the policy. Durations are seconds.

    ``queue_limit``: a request that found no ready replica for so long is rejected. ``scrape_interval``: Prometheus'.
    ``actuation_delay``: from a decision to the pods it creates or ends. ``drain_limit``: how long after the last
    arrival the simulation goes on for requests that are still being served. ``pre_roll``: seconds for which the first
    replicas have been idle, and sampled, before the first request. ``startup_spread``: the standard deviation of the
    logarithm of start-ups, whose mean stays what the variant says; 0: all equal. ``warm_up``: the first seconds of the
    trace, which are replayed and do not count.
    """

    routing: Routing = Routing.LEAST_OUTSTANDING
    queue_limit: float = 300.0
    scrape_interval: float = 15.0
    actuation_delay: float = 1.0
    drain_limit: float = 900.0
    pre_roll: float = 600.0
    startup_spread: float = 0.0
    warm_up: float = 0.0
    seed: int = 0

    def drawn_startup(self, mean: float, serial: int) -> float:
        """The start-up of the replica with this number, in seconds."""
        if not self.startup_spread:
            return mean
        spread = self.startup_spread
        normal = random.Random(f"{self.seed}/{serial}").gauss(0.0, 1.0)
        return mean * math.exp(spread * normal - spread * spread / 2)
