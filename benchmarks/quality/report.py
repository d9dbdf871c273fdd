"""The grid's rows as tables for docs/replay.md, a Parquet file and a plot."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from quality import calibration, shared
from quality.cells import BUDGET, POLICIES, REFERENCE

PAGE = Path(__file__).resolve().parent.parent.parent / "docs/replay.md"
COMPARISON, SHARED, CALIBRATION = "comparison", "several models", "calibration"
"""The tables, as the page's marks name them."""
TABLE = "grid.md"
TARGET = 0.99
Row = Mapping[str, Any]


def write(rows: Sequence[Row], cells: Sequence[str], out: Path) -> dict[str, str]:
    """``grid.parquet`` (all rows), ``grid.md`` (the tables, which are returned by their marks) and ``grid.png``; no
    table of what has no rows."""
    from arro3.core import Array, DataType, Table
    from arro3.io import write_parquet

    if not rows:
        raise SystemExit("there are no rows")
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if any(isinstance(value, str) for value in values):
            columns[name] = Array(values, DataType.utf8())
        else:
            columns[name] = Array([None if v is None else float(v) for v in values], DataType.float64())
    write_parquet(Table.from_pydict(columns), out / "grid.parquet")
    found = {cell: {row["policy"]: row for row in rows if row["cell"] == cell} for cell in cells}
    by_cell = {cell: found for cell, found in found.items() if REFERENCE in found}
    together = [of[name] for of in found.values() for name in shared.ROWS if "gpus" in of.get(name, {})]
    calibrated = [row for row in rows if row["held_out"] and "load_0_minutes" in row]
    _plot(by_cell, out / "grid.png")
    tables = {
        **({COMPARISON: f"{summary(by_cell)}\n\n{table(by_cell)}"} if by_cell else {}),
        **({SHARED: shared_table(together)} if together else {}),
        **({CALIBRATION: calibration_table(calibrated)} if calibrated else {}),
    }
    (out / TABLE).write_text("\n\n".join(tables.values()) + "\n", encoding="utf-8")
    return tables


def marks(table: str) -> tuple[str, str]:
    """What a table stands between in the page."""
    return f"<!-- {table} -->", f"<!-- end of {table} -->"


def put(tables: Mapping[str, str]) -> None:
    """The tables into the page."""
    page = PAGE.read_text(encoding="utf-8")
    for name, text in tables.items():
        begin, end = marks(name)
        head, found, rest = page.partition(begin)
        if not found:
            raise SystemExit(f"{PAGE}: no {begin}")
        page = f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(page, encoding="utf-8")


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def table(by_cell: Mapping[str, Mapping[str, Row]]) -> str:
    """Cell by cell: hours, and what was attained where it is below the target."""
    names = [policy.name for policy in POLICIES]
    lines = [
        f"| workload | rate | card | start-up | seed | moves | bound | achievable | fixed | {' | '.join(names)} |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|" + "--:|" * len(names),
    ]
    for found in by_cell.values():
        r = found[REFERENCE]
        seed = f"{r['seed']}" if r["held_out"] else f"{r['seed']} (tuned on)"
        cells = [
            r["workload"], f"{r['rate']:g}", r["cards"], f"{r['startup']:g} s", seed, f"{r['moves']:.1f}",
            f"{r['bound_hours']:.2f}", _hours(r.get("schedule_hours")), _hours(r.get("fixed_hours") or None),
            *(_cell(found.get(name)) for name in names),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _hours(value: Any) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.2f}"


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    text = f"{row['hours']:.2f}"
    return text if row["attained"] >= TARGET else f"~~{text}~~ {row['attained']:.1%}"


def summary(by_cell: Mapping[str, Mapping[str, Row]]) -> str:
    """Policy by policy, on the cells that nothing was chosen on."""
    lines = [
        "Cells that nothing was chosen on; × achievable: replica-hours over the cheapest schedule found (at most "
        f"{BUDGET} simulations) where the target was held; minutes below: the mean of the cells.",
        "",
        "| policy | cells | held 99 % | median × achievable | highest | minutes below, of 100 | cheaper than tuned "
        "KEDA, load moves twofold | than fixed in hindsight |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for policy in POLICIES:
        mine = [f for f in by_cell.values() if policy.name in f and f[REFERENCE]["held_out"]]
        if not mine:
            continue
        held = [f for f in mine if f[policy.name]["attained"] >= TARGET]
        ratios = [f[policy.name]["hours"] / _number(f[REFERENCE].get("schedule_hours")) for f in held]
        ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
        below = statistics.mean(f[policy.name]["minutes_below"] / f[policy.name]["minutes"] for f in mine)
        moving = [f for f in mine if f[REFERENCE]["moves"] >= 2 and "KEDA, tuned" in f]
        keda = sum(_better(f, policy.name, "KEDA, tuned") for f in moving)
        fixed = sum(
            f[policy.name]["attained"] >= TARGET and f[policy.name]["hours"] < _number(f[REFERENCE].get("fixed_hours"))
            for f in moving
        )
        cells = [
            policy.name, str(len(mine)), str(len(held)),
            *(f"{value:.2f}" for value in ((statistics.median(ratios), max(ratios)) if ratios else (math.nan,) * 2)),
            f"{100 * below:.1f}", f"{keda} of {len(moving)}", f"{fixed} of {len(moving)}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shared_table(rows: Sequence[Row]) -> str:
    """Policy by policy of each cell: what was attained of all requests, and of each model's."""
    models = shared.MODELS
    lines = [
        "| traffic, the most important first | GPUs | seed | too few, % of the time | policy | GPU-hours | attained | "
        f"{' | '.join(models)} | minutes below, of 100 |",
        "|---|---|--:|--:|---|--:|--:|" + "--:|" * len(models) + "--:|",
    ]
    for row in rows:
        cells = [
            row["streams"], f"{row['gpus']} {row['cards']}", str(row["seed"]), f"{100 * row['short']:.0f}",
            row["policy"], f"{row['hours']:.2f}",
            *(_percent(row.get(name)) for name in ("attained", *(f"attained_{model}" for model in models))),
            f"{100 * row['minutes_below'] / row['minutes']:.1f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def calibration_table(rows: Sequence[Row]) -> str:
    """Predicted and observed misses by tenth of the load of a replica, by card."""
    cards = sorted({row["cards"] for row in rows}, reverse=True)
    replays = {card: sum(row["cards"] == card for row in rows) for card in cards}
    titles = (f"minutes, {card}, {replays[card]} replays | predicted % | observed %" for card in cards)
    lines = [f"| load of a replica | {' | '.join(titles)} |", "|---|" + "--:|--:|--:|" * len(cards)]
    sums = {c: np.sum([calibration.of_row(row) for row in rows if row["cards"] == c], axis=0) for c in cards}
    for place in range(calibration.TENTHS):
        last = place == calibration.TENTHS - 1
        cells = ["1 and more" if last else f"{place / 10:g} to {(place + 1) / 10:g}"]
        for card in cards:
            tenth = calibration.Tenth(*sums[card][place])
            shares = (100 * one / max(tenth.requests, 1) for one in (tenth.predicted, tenth.missed))
            cells += [f"{tenth.minutes:.0f}", *(f"{one:.2f}" for one in shares)] if tenth.minutes else ["0", "-", "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _better(found: Mapping[str, Row], one: str, other: str) -> bool:
    """Whether one held the target, and the other did not or paid more."""
    mine, its = found[one], found[other]
    return mine["attained"] >= TARGET and (its["attained"] < TARGET or mine["hours"] < its["hours"])


def _plot(by_cell: Mapping[str, Mapping[str, Row]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    for policy in POLICIES:
        found = [f for f in by_cell.values() if policy.name in f and f[REFERENCE]["held_out"]]
        ratio = np.array([f[policy.name]["hours"] / _number(f[REFERENCE].get("schedule_hours")) for f in found])
        missed = np.array([1 - f[policy.name]["attained"] for f in found])
        axes.scatter(ratio, 100 * np.maximum(missed, 1e-4), label=policy.name, s=18, alpha=0.7)
    axes.axhline(100 * (1 - TARGET), color="k", linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlabel("replica-hours over those of the achievable schedule")
    axes.set_ylabel("requests outside the targets, %")
    axes.legend(fontsize="small")
    figure.savefig(file, dpi=110)
    plt.close(figure)
