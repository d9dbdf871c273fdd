"""Outcome of the traffic for one fleet and side by side: checks, costs, latencies. Pure, apart from tables to print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.table import Table

from deployments.demo.console import Check
from deployments.demo.observations import Moment, Sample, Scaling, changes, replica_minutes
from deployments.demo.scenario import FLOOR, SLO_ITL, SLO_TTFT, Copy, Scenario
from modelyard.objects.documents import counted, cut
from modelyard.traffic.latency import SLO, Ending, Latency
from modelyard.traffic.replay import RequestResult, columns

SIZED = "a replica takes"
"""Words of a decision that knows the load and the performance profile."""


@dataclass(frozen=True)
class Outcome:
    """One fleet after the traffic: what was observed in the cluster, and what its clients measured."""

    copy: Copy
    moments: list[Moment]
    results: list[RequestResult]

    @property
    def samples(self) -> list[Sample]:
        """The moments that could be observed."""
        return [moment for moment in self.moments if isinstance(moment, Sample)]

    @property
    def changes(self) -> list[Scaling]:
        """Scaling decisions in order of time."""
        return changes(self.moments)

    @property
    def latency(self) -> Latency:
        """Latencies that the clients measured, against the demonstration's targets."""
        return Latency.of(columns(self.results), SLO(SLO_TTFT / 1000, SLO_ITL / 1000))


def checks(outcome: Outcome) -> list[Check]:
    """Return the functional claims about one fleet. None depends on how fast the machine is."""
    name, results, decided = outcome.copy.label, outcome.results, outcome.changes
    failed = [result for result in results if result.ending is not Ending.OK]
    lost = f"; {len(failed)} failed: {cut(failed[0].error, 200)}" if failed else ", none was lost"
    claim = f"{name}: {len(results) - len(failed):,} of {len(results):,} requests were answered{lost}"
    claims = [Check(claim, bool(results) and not failed)]
    if outcome.copy.service:
        sized = any(SIZED in why for sample in outcome.samples for why in sample.why.values())
        claims += [Check(f"{name}: the autoscaler sized it with the measured profile for the observed load", sized)]
    explained = all(change.why for change in decided) and any(sample.why for sample in outcome.samples)
    claim = f"{name}: the object's status explains each scaling decision ({len(decided)})"
    return [*claims, _scaled(outcome), Check(claim, explained)]


def _scaled(outcome: Outcome) -> Check:
    """Count pods that existed, not numbers that were only asked for.

    An onboarded service starts with the replicas that the busiest minute needs: scaling down is enough, and so is
    staying at its minimum.
    """
    samples, floor = outcome.samples, FLOOR if outcome.copy.service else 0
    steps = [
        after.created[name] - before.created[name] for before, after in pairwise(samples) for name in after.created
    ]
    ups, downs = sum(step > 0 for step in steps), sum(step < 0 for step in steps)
    totals = [sum(sample.created.values()) for sample in samples] or [0]
    peak, last = max(totals), totals[-1]
    at_minimum = 0 < peak <= floor
    text = f"{outcome.copy.label}: scaled up {counted(ups, 'time')} and down {counted(downs, 'time')}"
    text += f" (peak {counted(peak, 'replica')}, {last} at the end{f', minimum {floor}' if floor else ''})"
    return Check(text, at_minimum or (downs > 0 and last < peak and bool(ups or floor)))


def decision_table(outcome: Outcome, scenario: Scenario) -> Table:
    """Show load, replicas and reasons at every scaling decision, at the start and at the end."""
    counts = (f"{variant.accelerator}\nready/all" for variant in scenario.variants)
    shown = _table(f"{outcome.copy.label}: scaling decisions", "minute", "req/s", *counts, "KV cache", "queue")
    shown.add_column("reason", overflow="fold", max_width=80)
    samples = outcome.samples
    changed = [after for before, after in pairwise(samples) if after.desired != before.desired]
    step = max(1, math.ceil(len(changed) / 8))
    for current in [*samples[:1], *changed[::step], *samples[-1:]]:
        reasons = list(dict.fromkeys(filter(None, current.why.values())))
        shown.add_row(
            f"{current.minute:.1f}",
            f"{current.load:.1f}",
            *(f"{current.ready[v.name]}/{current.created[v.name]}" for v in scenario.variants),
            "-" if current.kv is None else f"{current.kv:.0%}",
            "-" if current.waiting is None else f"{current.waiting:.0f}",
            "\n".join(cut(reason, 160) for reason in reasons),
        )
    return shown


def comparison(outcomes: Sequence[Outcome], scenario: Scenario) -> Table:
    """Compare the fleets: the same traffic, what it cost, what the clients measured. Times are simulated times."""
    title = f"The same traffic, three autoscalers (targets: TTFT {SLO_TTFT / 1000:g} s, ITL {SLO_ITL} ms)"
    latencies = ("TTFT\np50, s", "TTFT\np95, s", "ITL\np50, ms", "ITL\np95, ms")
    shown = _table(title, "fleet", "requests", "failed", "replica-\nminutes", "cost", *latencies, "within\ntargets")
    for outcome in outcomes:
        seen, used = outcome.latency, replica_minutes(outcome.moments, scenario.longest_gap)
        cost = sum(used.get(variant.name, 0.0) / 60 * float(variant.cost) for variant in scenario.variants)
        measured = [(seen.ttft.p50, ".2f"), (seen.ttft.p95, ".2f"), (1000 * seen.itl.p50, ".0f")]
        measured += [(1000 * seen.itl.p95, ".0f"), (seen.attainment, ".1%")]
        shown.add_row(
            outcome.copy.label,
            f"{seen.requests:,}",
            f"{seen.requests - seen.answered}",
            f"{sum(used.values()):.1f}",
            f"{cost:.2f}",
            *("-" if math.isnan(value) else f"{value:{form}}" for value, form in measured),
        )
    return shown


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column == "fleet" else "right")
    return table
