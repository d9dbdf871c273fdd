"""A plan on the terminal: what was assumed, the next tick's decisions with their reasons, where things settle.

Everything is printed as it is: messages hold brackets and colons that are no markup.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from modelyard.autoscaling.bindings.explain import binding_lines
from modelyard.autoscaling.bindings.view import BindingView
from modelyard.autoscaling.decision import Action, Alternative, DecisionRecord, TickDecision
from modelyard.autoscaling.explain import lines
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.what_if import Move, Settled
from modelyard.autoscaling.what_if.settle import End

COLOURS = {Action.UP: "green", Action.DOWN: "yellow", Action.NONE: ""}
WIDE = 10_000
"""Columns where nobody is watching: a pipe has no width, one line per variant is what grep wants."""
MOST_MOVES = 20
"""Changes on the way that are shown; JSON has all of them."""
EXPECTED = ("COST", "TTFT ms", "ITL ms", "UTILISATION")
NUMBERS = {"CURRENT", "READY", "TARGET", "NOW", "NEXT TICK", "SETTLED", "LAST", *EXPECTED}


def print_plan(
    decision: TickDecision,
    settings: FleetSettings,
    views: Sequence[BindingView],
    from_files: bool,
    assumptions: Sequence[str] = (),
    settled: Settled | None = None,
) -> None:
    """The table, then the whole story of each variant and binding, then configuration, then where things settle."""
    console = Console(
        markup=False, emoji=False, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE
    )
    for said in assumptions:
        console.print(Text.assemble(("assumed", "magenta"), f": {said}"))
    targets = [record for binding in decision.bindings for record in binding.records]
    if not decision.records and not decision.bindings:
        place = "in these files. Add one with -f" if from_files else "found. Create one"
        console.print(
            f"No VariantAutoscaling or AutoscalingPolicyBinding {place}, or widen --namespace and --selector."
        )
    else:
        if settled is not None:
            console.print(Text("Next tick", style="bold underline"))
        _decisions(console, [*decision.records, *targets])
        _stories(console, decision)
        _bindings(console, decision, settings, views)
    for about, notice in decision.notices:
        console.print(Text.assemble((notice.kind, "yellow"), f" {about}: {notice.reason}: {notice.message}"))
    for error in decision.errors:
        console.print(Text.assemble(("error", "red"), f" {error}"))
    if settled is not None and (decision.records or targets):
        _settled(console, decision, settled)


def _decisions(console: Console, records: Iterable[DecisionRecord]) -> None:
    table = _table("VARIANT", "MODEL", "CURRENT", "READY", "TARGET", "ACTION", "WHY")
    for record in records:
        table.add_row(
            Text(str(record.variant)),
            Text(record.model_id),
            Text(_count(record.current)),
            Text(_count(record.ready)),
            Text(_count(record.target)),
            Text(str(record.action), style=COLOURS[record.action]),
            Text(record.message),
        )
    console.print(table, soft_wrap=False)


def _stories(console: Console, decision: TickDecision) -> None:
    told: set[int] = set()
    for record in decision.records:
        console.print(Text(str(record.variant), style="bold"))
        for line in lines(record, alternatives=False):
            console.print(f"  {line}")
    for record in decision.records:
        if record.alternatives and id(record.alternatives) not in told:
            told.add(id(record.alternatives))
            console.print(Text(f"options for {record.model_id} in {record.variant.namespace}", style="bold"))
            _alternatives(console, record.alternatives)


def _alternatives(console: Console, options: Iterable[Alternative]) -> None:
    table = _table("  OPTION", *EXPECTED, "VERDICT")
    for option in options:
        replicas = ", ".join(f"{name} {count}" for name, count in option.replicas.items())
        verdict = "chosen" if option.chosen else f"not chosen: {option.note}" if option.note else "not chosen"
        table.add_row(
            Text(f"  {replicas}"),
            Text(f"{option.cost:g}"),
            Text(_number(option.ttft, 1)),
            Text(_number(option.itl, 2)),
            Text(_share(option.utilisation)),
            Text(verdict, style="bold" if option.chosen else ""),
        )
    console.print(table, soft_wrap=False)


def _bindings(console: Console, decision: TickDecision, settings: FleetSettings, views: Sequence[BindingView]) -> None:
    by_key = {view.key: view for view in views}
    for binding in decision.bindings:
        console.print(Text(str(binding.binding), style="bold"))
        for line in binding_lines(binding, by_key[binding.binding], settings, decision.now):
            console.print(f"  {line}")
        for record in binding.records:
            for line in lines(record):
                console.print(f"  {record.variant_id}: {line}")


def _settled(console: Console, first: TickDecision, settled: Settled) -> None:
    titles = {
        End.SETTLED: f"Settled after {_time(settled.seconds)}, the load being held",
        End.MOVING: f"Not settled after {_time(settled.looked_at)}: it goes on changing under a held load",
        End.WAITING: f"Looked {_time(settled.looked_at)} ahead: a delay is longer than that, more may change after it",
    }
    console.print(Text(titles[settled.end], style="bold underline"))
    if not settled.path:
        console.print("Nothing changes.")
    else:
        table = _table("AFTER", "VARIANT", "WORKLOAD", "REPLICAS", "REASON", "WHY")
        first_ones, last_ones = (settled.path, ()) if len(settled.path) <= MOST_MOVES else _shortened(settled.path)
        for move in (*first_ones, *last_ones):
            if last_ones and move is last_ones[0]:
                table.add_row(Text(f"... {len(settled.path) - MOST_MOVES} more"))
            table.add_row(
                Text(_time(move.seconds)),
                Text(move.object),
                Text(move.workload),
                Text(f"{_count(move.before)} → {move.after}"),
                Text(move.reason),
                Text(move.message),
            )
        console.print(table, soft_wrap=False)
    rests = settled.end is End.SETTLED
    summary = _table(
        "VARIANT",
        "MODEL",
        "NOW",
        "NEXT TICK",
        "SETTLED" if rests else "LAST",
        "COST",
        "TTFT ms",
        "ITL ms",
        "UTILISATION",
    )
    then = {(r.variant, r.workload): r for r in _all(first)}
    for record in _all(settled.last):
        before, seen = then.get((record.variant, record.workload)), record.prediction
        summary.add_row(
            Text(str(record.variant)),
            Text(record.model_id),
            Text(_count(before.current if before else None)),
            Text(_count(before.target if before else None)),
            Text(_count(record.target) if rests else _range(record, settled)),
            Text("-" if record.target is None else f"{record.target * record.cost:g}"),
            Text(_number(seen.ttft if seen else None, 1)),
            Text(_number(seen.itl if seen else None, 2)),
            Text(_share(seen.utilisation if seen else None)),
        )
    console.print(summary, soft_wrap=False)


def _range(record: DecisionRecord, settled: Settled) -> str:
    """The fewest and the most replicas of the second half, where nothing came to rest."""
    late = [m for m in settled.path if (m.object, m.workload) == (str(record.variant), str(record.workload))]
    seen = {m.after for m in late if m.seconds >= settled.looked_at / 2}
    seen |= {record.target} if record.target is not None else set()
    return _count(record.target) if len(seen) < 2 else f"{min(seen)} to {max(seen)}"


def _shortened(path: Sequence[Move]) -> tuple[Sequence[Move], Sequence[Move]]:
    return path[: MOST_MOVES // 2], path[len(path) - MOST_MOVES // 2 :]


def _all(decision: TickDecision) -> list[DecisionRecord]:
    return [*decision.records, *(record for binding in decision.bindings for record in binding.records)]


def _table(*titles: str) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in NUMBERS else "left", overflow="fold")
    return table


def _time(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
