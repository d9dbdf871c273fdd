"""A plan on the terminal: what was assumed, the next tick's decisions and why, where things settle; the story."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from modelyard.autoscaling.bindings import binding_lines
from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import UNKNOWN, Action, Alternative, Record, TickDecision, lines, remarks
from modelyard.autoscaling.fleet import BindingView
from modelyard.autoscaling.what_if import End, Settled
from modelyard.cli.options import console as new_console
from modelyard.objects import few

if TYPE_CHECKING:
    from modelyard.cli.plan_services import ServicePlan

COLOURS = {Action.UP: "green", Action.DOWN: "yellow", Action.NONE: ""}
MOST_LINES = 10
"""Changes of a service that are shown without ``-v``."""
MOST_MOVES = 20
"""Changes on the way that are shown; JSON has all of them."""
EXPECTED = ("COST", "TTFT ms", "ITL ms", "UTILISATION")
NUMBERS = {"READY", "NOW", "NEXT TICK", "SETTLED", "LAST", "WITHIN TARGETS", *EXPECTED}
AGAIN = "as above"


def print_plan(
    decision: TickDecision,
    settings: FleetSettings,
    views: Sequence[BindingView],
    from_files: bool,
    assumptions: Sequence[str] = (),
    settled: Settled | None = None,
    services: Sequence[ServicePlan] = (),
    *,
    verbose: bool = False,
) -> None:
    """A table of the next tick, what becomes of services, what is wrong, and where things settle.

    ``verbose``: also the whole story of each variant and binding, what is normal, and every change on the way.
    """
    console = new_console()
    for said in assumptions:
        console.print(Text.assemble(("assumed", "magenta"), f": {said}"))
    if not decision.decisions and not services:
        place = "in these files. Add one with -f" if from_files else "found. Create one"
        console.print(
            f"No VariantAutoscaling, AutoscalingPolicyBinding or service {place}, or widen --namespace and --selector."
        )
    elif decision.decisions:
        if settled is not None:
            console.print(Text("Next tick", style="bold underline"))
        _decisions(console, decision.records)
        if verbose:
            _stories(console, decision)
            _bindings(console, decision, settings, views)
    if services:
        _services(console, services, verbose)
    about: dict[tuple[str, str, str], list[str]] = {}
    for name, notice in decision.notices:
        if verbose or notice.kind != "Normal":
            about.setdefault((notice.kind, notice.reason, notice.message), []).append(name)
    for (kind, reason, message), names in about.items():
        console.print(Text.assemble((kind, "yellow"), f" {', '.join(few(names))}: {reason}: {message}"))
    for error in dict.fromkeys(decision.errors):
        console.print(Text.assemble(("error", "red"), f" {error}"))
    if settled is not None and decision.records:
        _settled(console, decision, settled, verbose)
    if sys.stdout.isatty() and decision.records and not verbose:
        console.print(Text("-v tells the whole story of each decision", style="dim"))


def _decisions(console: Console, records: Iterable[Record]) -> None:
    table = _table("VARIANT", "NOW → TARGET", "READY", "WHY")
    complaints: set[str] = set()
    for record in records:
        now, target, why = record.now, record.target, record.why.message
        moved = f"{_count(now.current)} → {_count(target.replicas)}"
        table.add_row(
            _name(record),
            Text(_count(now.current) if target.action is Action.NONE else moved, style=COLOURS[target.action]),
            _count(now.ready),
            AGAIN if why in complaints else why,
        )
        if not target.decided:
            complaints.add(why)
    console.print(table, soft_wrap=False)


def _services(console: Console, services: Sequence[ServicePlan], verbose: bool) -> None:
    table = _table("SERVICE", "CHANGES", "WHY")
    for one in services:
        lines = list(one.changes) if verbose else few(one.changes, MOST_LINES)
        table.add_row(one.name, Text("\n".join(lines) or "none", style="green" if lines else ""), Text(one.why))
    console.print(table, soft_wrap=False)


def _name(record: Record) -> str:
    about = record.identity
    return f"{about.key} {about.variant_id}" if about.form == "optimizer" else str(about.key)


def _told(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        width = max(console.width, 20)
        console.print("\n".join(textwrap.wrap(line, width, initial_indent="  ", subsequent_indent="    ")))


def _stories(console: Console, decision: TickDecision) -> None:
    told: set[int] = set()
    for one in decision.variants:
        console.print(Text(str(one.key), style="bold"))
        _told(console, (*lines(one.record), *remarks(one)))
    for record in decision.records:
        about, options = record.identity, record.why.alternatives
        if options and id(options) not in told:
            told.add(id(options))
            console.print(Text(f"options for {about.model_id} in {about.key.namespace}", style="bold"))
            _alternatives(console, options)


def _alternatives(console: Console, options: Iterable[Alternative]) -> None:
    options = list(options)
    attained = any(option.attainment is not None for option in options)
    table = _table("  OPTION", *EXPECTED, *(("WITHIN TARGETS",) if attained else ()), "VERDICT")
    for option in options:
        replicas = ", ".join(f"{name} {count}" for name, count in option.replicas.items())
        verdict = "chosen" if option.chosen else f"not chosen: {option.note}" if option.note else "not chosen"
        table.add_row(
            f"  {replicas}",
            f"{option.cost:g}",
            _number(option.ttft, 1),
            _number(option.itl, 2),
            _share(option.utilisation),
            *((_share(option.attainment, 1),) if attained else ()),
            Text(verdict, style="bold" if option.chosen else ""),
        )
    console.print(table, soft_wrap=False)


def _bindings(console: Console, decision: TickDecision, settings: FleetSettings, views: Sequence[BindingView]) -> None:
    by_key = {view.key: view for view in views}
    for binding in decision.bindings:
        console.print(Text(str(binding.key), style="bold"))
        _told(console, binding_lines(binding, by_key[binding.key], settings, decision.now))
        for record in binding.records:
            _told(console, (f"{record.identity.variant_id}: {line}" for line in lines(record)))


def _settled(console: Console, first: TickDecision, settled: Settled, verbose: bool) -> None:
    titles = {
        End.SETTLED: f"Settled after {_time(settled.seconds)}, the load being held",
        End.MOVING: f"Not settled after {_time(settled.looked_at)}: it goes on changing under a held load",
        End.WAITING: f"Looked {_time(settled.looked_at)} ahead: a delay is longer than that, more may change after it",
    }
    console.print(Text(titles[settled.end], style="bold underline"))
    if not settled.path:
        console.print("Nothing changes.")
    elif verbose:
        table = _table("AFTER", "VARIANT", "WORKLOAD", "REPLICAS", "REASON", "WHY")
        path, half = settled.path, MOST_MOVES // 2
        first_ones, last_ones = (path, ()) if len(path) <= MOST_MOVES else (path[:half], path[-half:])
        for move in (*first_ones, *last_ones):
            if last_ones and move is last_ones[0]:
                table.add_row(f"... {len(settled.path) - MOST_MOVES} more")
            table.add_row(
                _time(move.seconds),
                move.object,
                move.workload,
                f"{_count(move.before)} → {move.after}",
                move.reason,
                move.message,
            )
        console.print(table, soft_wrap=False)
    rests = settled.end is End.SETTLED
    summary = _table("VARIANT", "NOW", "NEXT TICK", "SETTLED" if rests else "LAST", *EXPECTED)
    then = {(r.identity.key, r.now.workload): r for r in first.records}
    for record in settled.last.records:
        before, seen = then.get((record.identity.key, record.now.workload)), record.why.prediction
        summary.add_row(
            _name(record),
            _count(before.now.current if before else None),
            _count(before.target.replicas if before else None),
            _count(record.target.replicas) if rests else _range(record, settled),
            UNKNOWN if record.target.replicas is None else f"{record.target.replicas * record.now.cost:g}",
            _number(seen.ttft if seen else None, 1),
            _number(seen.itl if seen else None, 2),
            _share(seen.utilisation if seen else None),
        )
    console.print(summary, soft_wrap=False)


def _range(record: Record, settled: Settled) -> str:
    late = [m for m in settled.path if (m.object, m.workload) == (str(record.identity.key), str(record.now.workload))]
    seen = {m.after for m in late if m.seconds >= settled.looked_at / 2}
    seen |= {record.target.replicas} if record.target.replicas is not None else set()
    return _count(record.target.replicas) if len(seen) < 2 else f"{min(seen)} to {max(seen)}"


def _table(*titles: str) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False)
    for title in titles:
        justify: Literal["right", "left"] = "right" if title in NUMBERS else "left"
        table.add_column(title, justify=justify, overflow="fold", min_width=len(title), no_wrap=title == "NOW → TARGET")
    return table


def _time(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _number(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _share(value: float | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}%}"
