"""What to expect of the decided sizes, and what the alternatives would have given.

The load is shared in proportion to what the replicas of each variant can take. Source: WVA SLO reference, "Splitting
load among variants" and "Suggested shape" (explain).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from modelyard.autoscaling.decision import Alternative, Prediction
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.slo.sizing import IDLE_RATE, NOTHING, Expected, Row, predict
from modelyard.autoscaling.variants.slo.work import GroupWork
from modelyard.autoscaling.variants.state import Group, State, work_of

MOST_ALONE = 10
"""Variants, the cheapest, of which it is told what each of them alone would give."""


class Mix(NamedTuple):
    """One way to size a group; ``rows`` are (variant, its replicas, index into the predictions)."""

    replicas: Mapping[str, int]
    note: str
    chosen: bool
    rows: Sequence[tuple[State, int, int]]


def look_ahead(groups: Sequence[Group], settings: FleetSettings) -> None:
    """Fill in predictions of variants and alternatives of groups, of the percentile of TTFT that targets speak of."""
    rows: list[Row] = []
    plans: list[tuple[GroupWork, list[Mix]]] = []
    for group in groups:
        if (work := foreseeable(group)) is not None:
            states = [s for s in group.states if work_of(s).known]
            plans.append((work, [mix_of(states, work, *mix, rows) for mix in _mixes(states, work)]))
    found = predict(rows, percentile=settings.ttft_percentile)
    for work, mixes in plans:
        work.alternatives = tuple(told(mix, found, work) for mix in mixes)


def foreseeable(group: Group) -> GroupWork | None:
    """The group's work when its load and the size of its requests are known."""
    work = group.slo
    if work is None or work.load is None or work.sizes is None or work.sizes.output < 1:
        return None
    return work


def _mixes(states: Sequence[State], work: GroupWork) -> Iterator[tuple[dict[str, int], str, bool]]:
    chosen = {s.name: s.target or 0 for s in states}
    if not states:
        return
    yield chosen, "", True
    by_cost = sorted(states, key=lambda s: (work_of(s).cost, s.name))
    yield {**chosen, by_cost[0].name: chosen[by_cost[0].name] + 1}, "one more than needed", False
    dearest = next((s for s in reversed(by_cost) if chosen[s.name]), None)
    if dearest is not None and sum(chosen.values()) > 1:
        yield {**chosen, dearest.name: chosen[dearest.name] - 1}, "", False
    if len(states) > 1:
        cheapest = by_cost[:MOST_ALONE]
        for state in (state for state in states if state in cheapest):
            alone = max(1, ceil(work.planned * (1 - 1e-9) / work_of(state).rate))
            mix = {**dict.fromkeys(chosen, 0), state.name: alone}
            if mix != chosen:
                yield mix, f"{state.name} alone", False


def mix_of(
    states: Sequence[State], work: GroupWork, replicas: Mapping[str, int], note: str, chosen: bool, rows: list[Row]
) -> Mix:
    """One way to size a group; what is to be predicted for it is added to ``rows``."""
    assert work.sizes is not None
    assert work.load is not None
    supply = sum(work_of(s).rate * replicas[s.name] for s in states)
    placed: list[tuple[State, int, int]] = []
    for state in states:
        count = replicas[state.name]
        if count:
            own = work_of(state)
            placed.append((state, count, len(rows)))
            rows.append(Row(own, work.sizes, max(IDLE_RATE, work.load * own.rate / supply)))
    return Mix(dict(replicas), note, chosen, placed)


def told(mix: Mix, found: Sequence[Expected], work: GroupWork) -> Alternative:
    """The mix with what was predicted, which is filled in where it is the chosen one.

    Latencies are means over requests, utilisation is the highest; ``None`` where a replica would be overloaded.
    """
    cost = sum(work_of(state).cost * count for state, count, _ in mix.rows)
    load = work.load or 0.0
    supply = sum(work_of(state).rate * count for state, count, _ in mix.rows)
    expected = [found[index] for _, _, index in mix.rows]
    if mix.chosen:
        for state, count, index in mix.rows:
            own, seen = work_of(state), found[index]
            share = load * own.rate * count / supply
            targets = (work.service.ttft or None, work.service.itl or None)
            own.prediction = Prediction(share, own.rate, seen.ttft, seen.itl, seen.utilisation, *targets)
    worst = NOTHING
    if expected and all(e.utilisation is not None for e in expected):
        shares = [work_of(state).rate * count / supply for state, count, _ in mix.rows]
        worst = Expected(
            sum(share * (e.ttft or 0.0) for share, e in zip(shares, expected, strict=True)),
            None
            if any(e.itl is None for e in expected)
            else sum(share * (e.itl or 0.0) for share, e in zip(shares, expected, strict=True)),
            max(e.utilisation or 0.0 for e in expected),
        )
    note = mix.note
    if not mix.chosen:
        note = "; ".join(filter(None, (note, _why_not(worst, supply, load, work))))
    return Alternative(dict(mix.replicas), cost, worst.ttft, worst.itl, worst.utilisation, mix.chosen, note)


def _why_not(expected: Expected, supply: float, load: float, work: GroupWork) -> str:
    service = work.service
    if expected.utilisation is None:
        return "its replicas would be overloaded" if load else ""
    if service.ttft and (expected.ttft or 0.0) > service.ttft * 1.001:
        return f"TTFT would be {expected.ttft:.4g} ms, above {service.ttft:g} ms"
    if service.itl and (expected.itl or 0.0) > service.itl * 1.001:
        return f"ITL would be {expected.itl:.4g} ms, above {service.itl:g} ms"
    if supply < work.planned * (1 - 1e-9):
        return f"would carry {supply:.4g}/s of {work.planned:.4g}/s planned for"
    margin = f"would carry {supply:.4g}/s"
    return margin if work.planned else ""
