"""The least that any policy could pay for a trace at a given attainment: a bound, not a policy.

**What is bounded.** Replica time as ``Run`` counts it: from creation to end, start-up included, within the trace's
duration. The number of replicas before the first request is free to choose and costs no start-up.

**Work.** A request of *p* prompt and *o* output tokens that is within its targets costs its engine at least

    δ·(p − cached) + (o − 1)·(β + α/D),   D = min(max_num_seqs, (ITL target − α)/β)

seconds of its own: a step with *d* sequences lasts at least α + β·d, which is (α + β·d)/d for each; a mean step of at
most the target means a mean *d* of at most D over the request's tokens, and 1/d is convex. The prompt's part lies
between the request's arrival and
arrival + TTFT target, the rest before arrival + TTFT target + (o − 1)·ITL target. Requests that miss, of which there
may be (1 − attainment) of all, cost nothing here. That prompts lengthen the steps of others is left out: a router may
keep them on engines of their own, so that nothing follows from it for a fleet.

**Replicas.** Time is cut into intervals. Two relaxations are solved, and the higher value is the bound:

* *fluid*: a linear programme in which each interval has a mean number of serving replicas whose time covers the work
  put into it, and each rise of that mean pays one start-up. The rises of a function's means never exceed its own;
* *whole replicas*: the same with whole numbers held for whole intervals. Rounding a replica's life outwards to the
  grid adds at most an interval at each end, so each start pays its start-up less one interval, and each end gets one
  back. Intervals are a third of the shortest start-up. The solver's bound at its first node is taken.

**Limits.** It is a bound for this simulator: queueing, routing, the KV cache and the choice of what to batch are
relaxed, so it may be below what even perfect foresight could reach, most of all when few replicas serve (a share of a
replica is enough for light load if start-ups are short) or targets are tight against queueing. With ``jitter`` and
drawn start-ups it holds in the mean. Missed requests are priced generously: each frees as much as the largest of its
interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modelyard.replay.settings import SimulationError
from modelyard.replay.simulation import VariantSpec
from modelyard.traffic.traces import SLACK, SLO, Trace

INTERVALS: Final = 1500
"""At most so many intervals, lest a week takes minutes."""
SHORTEST: Final = 15.0
"""The fluid programme's intervals are at least so many seconds."""
START_SHARE: Final = 3
"""The whole replicas' interval is this part of the shortest start-up; it has to be at least 2."""
MANY: Final = 8.0
"""With so many replicas on average, whole numbers add next to nothing and are left out."""
GIVE_UP: Final = 300.0
"""Seconds after which a solver is stopped that has gone astray; then there is no bound, or a weaker one."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bound:
    """``replica_hours`` and ``cost`` that no policy can go below at this ``attainment`` (0 to 1), each on its own.

    ``attainable`` is the largest share of requests that could be within their targets at all; when it is below
    ``attainment``, both are infinite.
    """

    attainment: float
    replica_hours: float
    cost: float
    attainable: float


@dataclass(frozen=True, slots=True)
class _Speed:
    """Seconds of engine time per computed prompt token and per output token after the first; infinite: impossible."""

    prompt: float
    output: float


@dataclass(frozen=True, slots=True)
class _Grid:
    """Time cut into intervals (the last may be shorter), and the requests by where their work may be done."""

    interval: float
    lengths: Floats
    groups: list[_Group]


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests of one model that arrive in interval ``first``, must have their first token in ``begun`` and be done in
    ``last``: how many, their computed prompt tokens (by variant that serves the model, whose caches differ) and decoded
    tokens, and the largest of each.
    """

    first: int
    begun: int
    last: int
    count: int
    prompt: dict[int, float]
    output: float
    prompt_most: dict[int, float]
    output_most: float


class Clairvoyant:
    """The bound for one trace, fleet and SLO, for any attainment.

    Raises ``SimulationError`` when the trace names models that no variant serves.
    """

    def __init__(self, trace: Trace, variants: Sequence[VariantSpec], slo: SLO) -> None:
        self._trace = trace
        self._slo = slo
        self._variants = list(variants)
        self._speeds = [_speed(spec, slo) for spec in variants]
        self._computed = [_computed(trace, spec) for spec in variants]
        self._model = _models(trace, variants)
        self._possible = self._can_be_met()
        self._missed = int(len(trace) - self._possible.sum())
        duration = max(trace.duration, 1e-9)
        self._fluid = self._grid(max(SHORTEST, duration / INTERVALS))
        shortest = min(spec.startup for spec in variants) / START_SHARE
        self._whole = self._grid(shortest) if shortest * INTERVALS >= duration else None

    @property
    def attainable(self) -> float:
        """The largest share of requests that could be within their targets."""
        return 1 - self._missed / len(self._trace)

    def bound(self, attainment: float) -> Bound:
        """The bound at an attainment (0 to 1)."""
        spare = math.floor(len(self._trace) * (1 - attainment) + 1e-6) - self._missed
        if spare < 0:
            return Bound(attainment, math.inf, math.inf, self.attainable)
        prices = [spec.cost for spec in self._variants]
        hours = self._solve([1.0] * len(prices), spare) / 3600
        if len(set(prices)) == 1:
            return Bound(attainment, hours, hours * prices[0], self.attainable)
        return Bound(attainment, hours, self._solve(prices, spare) / 3600, self.attainable)

    def _can_be_met(self) -> NDArray[np.bool_]:
        """Which requests some variant could serve within the targets if it did nothing else."""
        trace, slo = self._trace, self._slo
        possible = np.zeros(len(trace), dtype=bool)
        for spec, speed, computed in zip(self._variants, self._speeds, self._computed, strict=True):
            config = spec.engine
            fastest = (config.gamma + config.delta * computed) / 1000
            fits = trace.prompt + trace.output <= config.context_limit
            decodes = (trace.output <= 1) | math.isfinite(speed.output)
            possible |= (self._model == spec.model) & (fastest <= slo.ttft + SLACK) & fits & decodes
        return possible

    def _grid(self, interval: float) -> _Grid:
        trace, slo = self._trace, self._slo
        edges = np.append(np.arange(0.0, max(trace.duration, 1e-9), interval), max(trace.duration, 1e-9))
        count = len(edges) - 1
        deadline = trace.at + slo.ttft + (trace.output - 1) * slo.itl + 2 * SLACK
        first = np.minimum(trace.at // interval, count - 1).astype(np.int64)
        last = np.minimum(deadline // interval, count - 1).astype(np.int64)
        begun = np.minimum((trace.at + slo.ttft + 2 * SLACK) // interval, count - 1).astype(np.int64)
        # What may be done after the end costs nothing.
        rows = np.flatnonzero(self._possible & (deadline <= trace.duration))
        groups: list[_Group] = []
        if not len(rows):
            return _Grid(interval, np.diff(edges), groups)
        names, codes = np.unique(self._model, return_inverse=True)
        unique, inverse = np.unique(np.stack([codes, first, begun, last], axis=1)[rows], axis=0, return_inverse=True)
        inverse = inverse.ravel()
        order = np.argsort(inverse, kind="stable")
        cuts = np.searchsorted(inverse[order], np.arange(len(unique) + 1))
        for number, (code, begin, first_token, end) in enumerate(unique.tolist()):
            inside = rows[order[cuts[number] : cuts[number + 1]]]
            eligible = [place for place, spec in enumerate(self._variants) if spec.model == names[code]]
            decoded = trace.output[inside] - 1
            groups.append(
                _Group(
                    begin,
                    first_token,
                    end,
                    len(inside),
                    {place: float(self._computed[place][inside].sum()) for place in eligible},
                    float(decoded.sum()),
                    {place: float(self._computed[place][inside].max()) for place in eligible},
                    float(decoded.max()),
                )
            )
        return _Grid(interval, np.diff(edges), groups)

    def _solve(self, prices: Sequence[float], spare: int) -> float:
        """Price times seconds of replicas, the higher of both relaxations."""
        fluid = max(0.0, self._programme(self._fluid, prices, spare, whole=False).solve())
        if self._whole is None or fluid >= MANY * min(prices) * self._trace.duration:
            return fluid
        return max(fluid, self._programme(self._whole, prices, spare, whole=True).solve())

    def _programme(self, grid: _Grid, prices: Sequence[float], spare: int, *, whole: bool) -> Programme:
        programme = Programme()
        lengths, interval = grid.lengths, grid.interval
        capacity: list[list[int]] = []
        for price, spec in zip(prices, self._variants, strict=True):
            start = spec.startup - interval if whole else spec.startup
            end = -interval if whole else 0.0
            replicas = [programme.column(price * float(length), whole=whole) for length in lengths]
            rows = []
            for number, column in enumerate(replicas):
                # Work fits into the replicas' time; the work's own entries follow below.
                rows.append(programme.row(-math.inf, 0.0, [(column, -float(lengths[number]))]))
                if number:
                    up, down = programme.column(price * start), programme.column(price * end)
                    programme.row(0.0, 0.0, [(column, 1.0), (replicas[number - 1], -1.0), (up, -1.0), (down, 1.0)])
            capacity.append(rows)
        missing: list[tuple[int, float]] = []
        for group in grid.groups:
            missed = programme.column(0.0, upper=float(group.count))
            missing.append((missed, 1.0))
            for kind in ("prompt", "output"):
                entries: list[tuple[int, float]] = []
                amounts = group.prompt if kind == "prompt" else dict.fromkeys(group.prompt, group.output)
                most = group.prompt_most if kind == "prompt" else dict.fromkeys(group.prompt, group.output_most)
                # Shares of the group's tokens, so that variants with other caches fit into one equation.
                if not max(amounts.values()) > 0:
                    continue
                saved = max(most[place] / amounts[place] for place in amounts if amounts[place] > 0)
                for place, amount in amounts.items():
                    speed = self._speeds[place]
                    seconds = amount * (speed.prompt if kind == "prompt" else speed.output)
                    if not math.isfinite(seconds):
                        continue
                    for moment in range(group.first, (group.begun if kind == "prompt" else group.last) + 1):
                        column = programme.column(0.0)
                        programme.entry(capacity[place][moment], column, seconds)
                        entries.append((column, 1.0))
                programme.row(1.0, math.inf, [*entries, (missed, saved)])
        if missing:
            programme.row(-math.inf, float(spare), missing)
        return programme


def _speed(spec: VariantSpec, slo: SLO) -> _Speed:
    config = spec.engine
    alpha, beta = config.alpha / 1000, config.beta / 1000
    room = slo.itl + SLACK - alpha
    most = float(config.max_num_seqs)
    if beta > 0:
        most = min(most, room / beta)
    output = beta + alpha / most if room > 0 and most >= 1 - SLACK else math.inf
    return _Speed(config.delta / 1000, output)


def _computed(trace: Trace, spec: VariantSpec) -> Floats:
    config = spec.engine
    cached = (trace.prompt * config.prefix_hit_ratio).astype(np.int64) // config.block_size * config.block_size
    return np.asarray(trace.prompt - np.minimum(cached, trace.prompt - 1), dtype=np.float64)


def _models(trace: Trace, variants: Sequence[VariantSpec]) -> NDArray[np.str_]:
    if trace.model is None:
        names = {spec.model for spec in variants}
        if len(names) != 1:
            raise SimulationError("the trace does not say which of several models a request is for")
        return np.full(len(trace), names.pop())
    return np.array(trace.models)[trace.model]


class Programme:
    """A linear or mixed-integer programme: the least sum of column costs. Columns and rows go by their numbers."""

    def __init__(self) -> None:
        self._columns: list[tuple[float, float, bool]] = []
        self._bounds: list[tuple[float, float]] = []
        self._rows: list[list[tuple[int, float]]] = []

    def column(self, cost: float, *, upper: float = math.inf, whole: bool = False) -> int:
        """A variable from 0 to ``upper``."""
        self._columns.append((cost, upper, whole))
        return len(self._columns) - 1

    def row(self, lower: float, upper: float, entries: Iterable[tuple[int, float]]) -> int:
        """A constraint on the sum of (column, factor)."""
        self._rows.append(list(entries))
        self._bounds.append((lower, upper))
        return len(self._rows) - 1

    def entry(self, row: int, column: int, factor: float) -> None:
        """One more term of a constraint."""
        self._rows[row].append((column, factor))

    def solve(self) -> float:
        """A value that no solution can be below; infinite when there is no solution.

        The optimum of a linear programme, or the best bound that the first node of a mixed-integer one gives (which is
        within a percent here, and equal on every machine, unlike that of a time limit).
        """
        import highspy

        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("mip_max_nodes", 1)
        solver.setOptionValue("time_limit", GIVE_UP)
        lp = highspy.HighsLp()
        costs, upper, whole = zip(*self._columns, strict=True)
        lp.num_col_ = len(costs)
        lp.num_row_ = len(self._rows)
        lp.col_cost_ = np.array(costs)
        lp.col_lower_ = np.zeros(len(costs))
        lp.col_upper_ = np.array(upper)
        lp.row_lower_, lp.row_upper_ = np.reshape(self._bounds, (-1, 2)).T
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(row) for row in self._rows)])
        lp.a_matrix_.index_ = np.array([column for row in self._rows for column, _ in row], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([factor for row in self._rows for _, factor in row])
        mixed = any(whole)
        if mixed:
            kinds = {True: highspy.HighsVarType.kInteger, False: highspy.HighsVarType.kContinuous}
            lp.integrality_ = [kinds[one] for one in whole]
        solver.passModel(lp)
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return math.inf
        info = solver.getInfo()
        if mixed:
            return float(info.mip_dual_bound) if math.isfinite(info.mip_dual_bound) else -math.inf
        # An unfinished simplex has no bound to give.
        return float(info.objective_function_value) if status == highspy.HighsModelStatus.kOptimal else -math.inf
