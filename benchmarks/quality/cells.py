"""The cells of the comparison: a workload, a fleet and a start-up each; and how one policy does in one cell."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

from quality import calibration, workloads
from quality.fleet import FastFleet, ticked
from quality.fleets import COSTS, MODEL, fleet_of
from quality.search import Search

from modelyard.engine.config import PROFILES
from modelyard.objects import Key
from modelyard.replay.backtest.clairvoyant import Clairvoyant
from modelyard.replay.backtest.report import summarize, timeline
from modelyard.replay.backtest.simulate import Run, simulate
from modelyard.replay.policies.horizontal import SYNC, Horizontal, HorizontalBehaviour
from modelyard.replay.policies.parse import make, split
from modelyard.replay.settings import SimulationSettings
from modelyard.replay.simulation.variants import VariantSpec
from modelyard.traffic.traces.latency import SLO
from modelyard.traffic.traces.trace import Trace

SPREAD = 0.3
"""Start-ups are log-normal: nine of ten between 0.6 and 1.5 times their mean."""
BUDGET = 60
"""Simulations that the search for a schedule may take."""
DAY_BUDGET = 12
"""The same for a whole day."""
WARM_UP = 0.5
DAY_WARM_UP = 0.25
"""Of a cell's traffic, what is for warming up and tuning."""
COLD = 300.0
"""Seconds at the beginning that tuning leaves out."""
KEDA = (6, 8, 11, 14, 18, 23, 29, 37, 47, 60, 76, 97)
"""Thresholds of running requests that KEDA is tuned over."""
SLO_AIM = SLO()
CAREFUL = 0.995
"""What is tuned has to hold so much in the warm-up, where 0.99 is asked for: half of the misses are to spare."""


class Policy(NamedTuple):
    """A row of the table: whose objects scale the fleet, and the policy as ``modelyard replay`` has it."""

    name: str
    form: str
    text: str


POLICIES = (
    Policy("attainment", "slo", "default:aim=attainment"),
    Policy("no profile", "saturation", "default:aim=attainment"),
    Policy("SLO", "slo", "default:aim=mean"),
    Policy("KEDA, tuned", "saturation", "keda"),
    Policy("fixed, tuned", "saturation", "fixed"),
)
REFERENCE = "reference"
"""The task that gives a cell its bound, its schedule and its fixed fleet of hindsight."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """``cards`` are the accelerators of the fleet; ``held_out`` cells were looked at for the report only."""

    workload: str
    rate: float
    cards: tuple[str, ...]
    seed: int = 1
    startup: float = 120.0

    @property
    def name(self) -> str:
        """Its name, in files too."""
        return f"{self.workload}-{self.rate:g}-{'+'.join(self.cards)}-seed{self.seed}-start{self.startup:g}"

    @property
    def held_out(self) -> bool:
        """Whether nothing was chosen on it."""
        return self.seed >= workloads.FRESH

    @cached_property
    def trace(self) -> Trace:
        """The whole traffic, warm-up included."""
        return WORKLOADS[self.workload](self.rate, self.seed)

    @property
    def begin(self) -> float:
        """Where that begins which counts."""
        return self.trace.duration * (DAY_WARM_UP if self.workload == "day" else WARM_UP)

    @property
    def settings(self) -> SimulationSettings:
        """Start-ups differ."""
        return SimulationSettings(seed=self.seed, startup_spread=SPREAD, warm_up=self.begin)

    @property
    def moves(self) -> float:
        """By how much the load of five minutes moves in what counts: the highest over the lowest."""
        load = workloads.fluid(self.trace.since(self.begin), PROFILES[self.cards[0]], SLO_AIM, 300.0)[:-1]
        return float(load.max() / max(load.min(), 1e-9))

    def initial(self) -> dict[str, int]:
        """Replicas at the beginning: right for the first five minutes, the dearer card's carrying half of them."""
        share = 1 / len(self.cards)
        first = {c: float(workloads.fluid(self.trace, PROFILES[c], SLO_AIM, 300.0)[0]) * share for c in self.cards}
        return {c: max(1, math.ceil(load / 0.7)) for c, load in first.items()}

    def spec(self) -> VariantSpec:
        """The variant of a fleet of one card."""
        (card,) = self.cards
        return VariantSpec(
            Key("chat", f"{MODEL}-{card}"), MODEL, PROFILES[card], self.initial()[card], self.startup, cost=COSTS[card]
        )


WORKLOADS: dict[str, Callable[[float, int], Trace]] = {
    "conv": workloads.conversation,
    "burst": workloads.bursts,
    "waves": workloads.waves,
    "step": workloads.step,
    "rise": lambda rate, seed: workloads.step(rate, seed, height=2.0),
    "ramp": workloads.ramp,
    "spikes": workloads.spikes,
    "night": lambda rate, seed: workloads.day(rate, seed, 1, 3, 6.0, 2.0),
    "morning": lambda rate, seed: workloads.day(rate, seed, 8, 3, 6.0, 2.0),
    "noon": lambda rate, seed: workloads.day(rate, seed, 11, 3, 6.0, 2.0),
    "afternoon": lambda rate, seed: workloads.day(rate, seed, 13.5, 3, 4.0, 1.0),
    "evening": lambda rate, seed: workloads.day(rate, seed, 16.75, 3, 6.0, 2.0),
    "late": lambda rate, seed: workloads.day(rate, seed, 20, 3, 6.0, 2.0),
    "batch": lambda rate, seed: workloads.day(rate, seed, 7, 4, 2.0, 1.0),
    "day": lambda rate, seed: workloads.day(rate, seed, 0, 24, 6.0, 2.0),
}

L, H = ("l40s",), ("h100",)
SMALL = (Cell("conv", 0.5, L), Cell("step", 0.5, L, 31))
"""A try of a minute; continuous integration runs the second."""
TUNED_ON = (
    Cell("conv", 1, L), Cell("conv", 5, L), Cell("conv", 5, H), Cell("burst", 1, L), Cell("waves", 4, H),
    Cell("step", 1, L, 11), Cell("step", 5, H, 11), Cell("morning", 6, H, 11), Cell("evening", 2, L, 11),
    Cell("batch", 4, L, 11),
)  # fmt: skip
"""Some of those that variants of ``attainment`` were compared on; the others were the same with seeds 12, 13 and 21."""
GRID = (
    *TUNED_ON,
    *(Cell("burst", 1, L, seed) for seed in (31, 32, 33)), Cell("burst", 2, L, 34),
    Cell("burst", 1, L, 35, 60), Cell("burst", 1, L, 36, 300), Cell("burst", 5, H, 31), Cell("burst", 5, H, 32),
    *(Cell("waves", 1, L, seed) for seed in (31, 32)), Cell("waves", 3, L, 34),
    Cell("waves", 1, L, 35, 60), Cell("waves", 1, L, 36, 300), Cell("waves", 4, H, 31), Cell("waves", 4, H, 32),
    Cell("step", 1, L, 31), Cell("step", 2, L, 32), Cell("step", 1, L, 35, 60), Cell("step", 1, L, 36, 300),
    Cell("step", 5, H, 31), Cell("rise", 2, L, 31), Cell("rise", 1, L, 32), Cell("rise", 8, H, 31),
    Cell("ramp", 1, L, 31), Cell("ramp", 3, L, 32), Cell("ramp", 6, H, 31),
    Cell("spikes", 1, L, 31), Cell("spikes", 1, L, 32), Cell("spikes", 5, H, 31),
    Cell("noon", 2, L, 31), Cell("noon", 6, H, 31), Cell("night", 4, L, 31), Cell("afternoon", 4, L, 32),
    Cell("afternoon", 10, H, 32), Cell("late", 2, L, 31), Cell("late", 6, H, 32), Cell("morning", 3, L, 33),
    Cell("evening", 3, L, 33), Cell("evening", 5, H, 33), Cell("batch", 3, L, 33), Cell("batch", 6, H, 33),
    Cell("day", 1, L, 41),
    Cell("waves", 2, ("l40s", "h100"), 31), Cell("burst", 2, ("l40s", "h100"), 31),
)  # fmt: skip


def rows_of(cell: Cell) -> list[str]:
    """The tasks of a cell: mixed pairs have no compiled fleet, and so no schedule and nothing that is tuned."""
    names = [policy.name for policy in POLICIES]
    return [REFERENCE, *(names if len(cell.cards) == 1 else [n for n in names if "tuned" not in n])]


def work(cell: Cell, name: str, budget: int = BUDGET) -> dict[str, Any]:
    """One task; what it found, as a row of the table."""
    begin = time.process_time()
    row: dict[str, Any] = {
        "cell": cell.name, "workload": cell.workload, "rate": cell.rate, "cards": "+".join(cell.cards),
        "seed": cell.seed, "startup": cell.startup, "held_out": cell.held_out, "policy": name,
    }  # fmt: skip
    if name == REFERENCE:
        row |= _reference(cell, min(budget, DAY_BUDGET) if cell.workload == "day" else budget)
    else:
        row |= _policy(cell, next(policy for policy in POLICIES if policy.name == name))
    return row | {"cpu_seconds": time.process_time() - begin}


def _reference(cell: Cell, budget: int) -> dict[str, Any]:
    counted = cell.trace.since(cell.begin)
    variants = fleet_of("saturation", cell.initial(), cell.startup).variants
    bound = Clairvoyant(counted, variants, SLO_AIM).bound(SLO_AIM.attainment)
    found: dict[str, Any] = {
        "requests": len(counted), "moves": cell.moves, "bound_hours": bound.replica_hours, "bound_cost": bound.cost
    }  # fmt: skip
    if len(cell.cards) == 1:
        search = Search(counted, cell.spec(), SLO_AIM, cell.settings)
        fixed = search.fixed()
        schedule = search.schedule(budget, fixed)
        found |= {
            "fixed": fixed, "fixed_hours": fixed * counted.duration / 3600, "schedule_hours": schedule.hours,
            "schedule_attained": schedule.attainment, "trials": schedule.trials,
        }  # fmt: skip
    return found


def _policy(cell: Cell, policy: Policy) -> dict[str, Any]:
    text, tuned = policy.text, math.nan
    if policy.text == "keda":
        tuned = tuned_keda(cell)
        text = f"keda:running={tuned:g},min=1"
    elif policy.text == "fixed":
        tuned = tuned_fixed(cell)
        text = f"fixed:{tuned:g}"
    fleet = fleet_of(policy.form, cell.initial(), cell.startup)
    (chosen,) = split(text)
    run = simulate(cell.trace, fleet.variants, make(chosen, fleet.manifests, fleet.fleet_settings), cell.settings)
    row = {**told(run), "tuned": tuned}
    if policy.form == "slo" and len(cell.cards) == 1:
        row |= calibration.columns(timeline(run, SLO_AIM), cell.trace, cell.spec().engine, SLO_AIM, cell.begin)
    return row


def told(run: Run) -> dict[str, Any]:
    """What a row says of a replay."""
    s = summarize(run, SLO_AIM)
    return {
        "hours": s.replica_hours, "cost": s.cost, "attained": s.attainment, "ttft_attained": s.ttft_attainment,
        "itl_attained": s.itl_attainment, "minutes_below": s.minutes_below, "minutes": s.minutes,
        "ups": s.scale_ups, "downs": s.scale_downs, "killed": s.killed, "rejected": s.rejected,
        "problems": "; ".join(s.problems),
        **{f"attained_{'longer' if c.tokens is None else c.tokens}": c.attainment for c in s.by_output},
    }  # fmt: skip


def _tuning(cell: Cell) -> Trace:
    """The warm-up, without what comes after."""
    return cell.trace.stretch(0, cell.begin / 60)


def tuned_fixed(cell: Cell) -> int:
    """The smallest constant fleet that does in the warm-up."""
    slo = dataclasses.replace(SLO_AIM, attainment=CAREFUL)
    return Search(_tuning(cell).since(COLD), cell.spec(), slo, cell.settings).fixed() or 200


def tuned_keda(cell: Cell) -> float:
    """The threshold with which KEDA is cheapest in the warm-up among those that do; the lowest of all if none
    does."""
    trace = _tuning(cell)
    best, least = float(KEDA[0]), math.inf
    for threshold in reversed(KEDA):
        fleet = FastFleet(trace, cell.spec(), SLO_AIM, dataclasses.replace(cell.settings, warm_up=0.0), COLD)
        scaler = Horizontal(HorizontalBehaviour(), 1, 100)

        def decide(now: float, fleet: FastFleet, scaler: Horizontal = scaler, per: float = threshold) -> int:
            return scaler.external(now, fleet.asked, fleet.in_flight(), per)

        outcome = ticked(fleet, decide, SYNC)
        if outcome.attainment >= CAREFUL and outcome.hours < least:
            best, least = float(threshold), outcome.hours
        elif math.isfinite(least) and outcome.hours > 1.5 * least:
            break
    return best
