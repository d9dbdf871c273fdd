"""What could have been had with all arrivals known: the smallest constant fleet, and the cheapest schedule found.

The schedule is achievable, so that the true optimum is at or below it; the search has a stated budget of simulations,
and it knows the arrivals but not how long each start-up takes (their distribution only, as policies do).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from quality.fleet import Change, FastFleet, Outcome, follow
from quality.workloads import fluid

from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.variants import VariantSpec
from modelyard.traffic.traces.latency import SLO
from modelyard.traffic.traces.trace import Trace

GRID = 30.0
"""Seconds between the times at which a schedule may change."""
SMOOTHING = (60.0, 180.0, 420.0, 900.0)
SEGMENTS = (1800.0, 900.0, 450.0, 240.0)
"""Lengths for which a replica less is tried, seconds, again and again while that finds something."""


class Found(NamedTuple):
    """The cheapest schedule that held the target, with how many simulations; infinite when none did."""

    hours: float
    attainment: float
    trials: int


class Search:
    """One fleet of equal replicas and the part of a trace that counts."""

    def __init__(self, trace: Trace, spec: VariantSpec, slo: SLO, settings: SimulationSettings) -> None:
        self.trace, self.spec, self.slo = trace, spec, slo
        self.settings = dataclasses.replace(settings, warm_up=0.0)
        self.trials = 0

    def run(self, schedule: Sequence[Change], initial: int) -> Outcome:
        """One simulation."""
        self.trials += 1
        return follow(
            FastFleet(self.trace, dataclasses.replace(self.spec, initial=initial), self.slo, self.settings), schedule
        )

    def fixed(self) -> int:
        """The smallest constant fleet that holds the target; 0 when none of up to 200 does."""
        load = fluid(self.trace, self.spec.engine, self.slo, 60.0)
        replicas = max(1, math.ceil(1.2 * float(load.mean())))

        def holds(n: int) -> bool:
            return self.run((), n).attainment >= self.slo.attainment

        if holds(replicas):
            while replicas > 1 and holds(replicas - 1):
                replicas -= 1
            return replicas
        low = replicas
        while not holds(replicas):
            low, replicas = replicas, math.ceil(replicas * 1.3)
            if replicas > 200:
                return 0
        while replicas - low > 1:
            middle = (low + replicas) // 2
            low, replicas = (low, middle) if holds(middle) else (middle, replicas)
        return replicas

    def schedule(self, budget: int, fixed: int) -> Found:
        """The cheapest schedule within ``budget`` simulations, ``fixed`` replicas being one that holds."""
        self.trials = 0
        count = max(1, math.ceil(self.trace.duration / GRID))
        best = np.full(count, fixed) if fixed else None
        cheapest = self._judge(best) if best is not None else None
        for smoothing in SMOOTHING:
            low, high = 0.9, 2.6
            for _ in range(4):
                if self.trials >= budget:
                    break
                factor = math.sqrt(low * high)
                plan = self._plan(smoothing, factor)
                if cheapest is not None and self._hours(plan) >= cheapest.hours:
                    high = factor
                    continue
                outcome = self._judge(plan)
                if outcome.attainment >= self.slo.attainment:
                    high = factor
                    if cheapest is None or outcome.hours < cheapest.hours:
                        best, cheapest = plan, outcome
                else:
                    low = factor
        if best is None or cheapest is None:
            return Found(math.inf, math.nan, self.trials)
        before = math.inf
        lengths = list(SEGMENTS)
        while lengths and self.trials < budget:
            length = lengths.pop(0)
            if not lengths and cheapest.hours < before:
                before, lengths = cheapest.hours, list(SEGMENTS)
            width = max(1, round(length / GRID))
            # What is fullest last: where there is most room a replica is missed least.
            starts = sorted(range(0, count, width), key=lambda i: self._room(best, i, width), reverse=True)
            for start in starts:
                if self.trials >= budget:
                    break
                trial = best.copy()
                trial[start : start + width] = np.maximum(1, trial[start : start + width] - 1)
                if (trial == best).all() or self._hours(trial) >= cheapest.hours:
                    continue
                outcome = self._judge(trial)
                if outcome.attainment >= self.slo.attainment and outcome.hours < cheapest.hours:
                    best, cheapest = trial, outcome
        return Found(cheapest.hours, cheapest.attainment, self.trials)

    def _room(self, plan: NDArray[np.int64], start: int, width: int) -> float:
        load = self._load(60.0)[start : start + width]
        return float((plan[start : start + width] - load).min())

    def _load(self, smoothing: float) -> NDArray[np.float64]:
        load = fluid(self.trace, self.spec.engine, self.slo, GRID)
        width = max(1, round(smoothing / GRID))
        return np.convolve(np.pad(load, width, mode="edge"), np.ones(width) / width, mode="same")[width:-width]

    def _plan(self, smoothing: float, factor: float) -> NDArray[np.int64]:
        """Replicas that serve: the load around each moment times a factor, and a little more for small fleets."""
        load = factor * self._load(smoothing)
        needed = np.maximum(1, np.ceil(load + 0.3 * np.sqrt(load) - 0.3)).astype(np.int64)
        # A replica that would be away for less than two start-ups stays.
        hold = round(2 * self.spec.startup / GRID)
        for gap in range(1, hold + 1):
            if gap < len(needed) - 1:
                bridge = np.minimum(needed[: -gap - 1], needed[gap + 1 :])
                for offset in range(1, gap + 1):
                    part = slice(offset, offset + len(bridge))
                    needed[part] = np.maximum(needed[part], bridge)
        return needed

    def _changes(self, plan: NDArray[np.int64]) -> tuple[list[Change], int]:
        """Replicas to ask for, so early that most are ready in time."""
        spread = self.settings.startup_spread
        lead = math.ceil(self.spec.startup * math.exp(spread) / GRID)
        asked = plan.copy()
        for ahead in range(1, lead + 1):
            asked[:-ahead] = np.maximum(asked[:-ahead], plan[ahead:])
        changes = [(i * GRID, int(n)) for i, n in enumerate(asked) if i == 0 or n != asked[i - 1]]
        return changes[1:], changes[0][1]

    def _hours(self, plan: NDArray[np.int64]) -> float:
        changes, initial = self._changes(plan)
        times = [0.0, *(at for at, _ in changes), self.trace.duration]
        counts = [initial, *(n for _, n in changes)]
        return float(np.dot(np.diff(times), counts)) / 3600

    def _judge(self, plan: NDArray[np.int64]) -> Outcome:
        return self.run(*self._changes(plan))
