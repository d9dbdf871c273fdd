"""Choosing a replica for each request among the ready ones of its model.

``least-outstanding`` is what the demonstration's router and inference gateways do by default: the fewest requests sent
and not answered; ties go round.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from modelyard.replay.pods import SimulatedPod
from modelyard.replay.settings import Routing


class Router:
    """The choice. Equal seeds choose equally."""

    def __init__(self, routing: Routing, seed: int) -> None:
        self.routing = routing
        self._random = random.Random(seed)
        self._turn = 0

    def choose(self, ready: Sequence[SimulatedPod]) -> SimulatedPod:
        """One of the (at least one) ready pods."""
        count = len(ready)
        if count == 1:
            return ready[0]
        if self.routing is Routing.RANDOM:
            return ready[self._random.randrange(count)]
        self._turn += 1
        turn = self._turn % count
        if self.routing is Routing.ROUND_ROBIN:
            return ready[turn]
        best = ready[turn]
        least = best.outstanding
        if least:
            for offset in range(turn + 1 - count, turn):
                pod = ready[offset]
                if pod.outstanding < least:
                    best, least = pod, pod.outstanding
                    if not least:
                        break
        return best
