"""What a tick of a batch lifecycle leaves for people: the rows of its table, and what was really changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from modelyard.fairness import interleave

T = TypeVar("T")

MOST_ROWS = 500
Row = Mapping[str, Any]
"""A row of a table; plain JSON values."""


def table(things: Sequence[T], space: Callable[[T], str], row: Callable[[T], Row]) -> list[Row]:
    """A row for each thing, in their order; ``space`` tells its namespace.

    Of more than ``MOST_ROWS`` those whose turn comes first by namespace, and in a last row how many more there are.
    """
    order, _ = interleave(range(len(things)), lambda at: space(things[at]))
    rows = [row(things[at]) for at in sorted(order[:MOST_ROWS])]
    if len(things) > MOST_ROWS:
        rows.append({next(iter(rows[0])): f"and {len(things) - MOST_ROWS} more"})
    return rows


@dataclass(frozen=True, slots=True)
class Change:
    """A workload that was really scaled, and why. ``about`` is the object that decided it."""

    about: str
    before: int
    after: int
    reason: str
    message: str
    workload: str = ""

    @property
    def payload(self) -> Row:
        """As Prefect's event feed shows it."""
        told = {"variant": self.about, "from": self.before, "to": self.after, "reason": self.reason}
        return {**told, "message": self.message, **({"workload": self.workload} if self.workload else {})}


@dataclass(frozen=True, slots=True)
class TickReport:
    """One tick told: a row for everything that was decided, and what was changed."""

    rows: Sequence[Row] = ()
    changes: Sequence[Change] = ()


@dataclass
class ShiftReport:
    """Result of a shift. ``interrupted`` ticks lost the Lease half-way; ``skipped`` instants were missed."""

    ticks: int = 0
    failed: int = 0
    interrupted: int = 0
    skipped: int = 0
    changes: int = 0
    last_error: str = ""
    obstacle: str = ""
    """Why the shift could not even begin to tick, if so."""
    rival: str = ""
    """Who was known to be alive and to hold the Lease when this one last asked for it."""
    failures: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        text = f"{self.ticks} ticks, {self.failed} failed, {self.changes} scaled"
        if self.skipped:
            text += f", {self.skipped} skipped because they were late"
        if self.interrupted:
            text += f", {self.interrupted} given up because the lease was lost"
        if self.failures:
            text += " (" + ", ".join(f"{stage}: {count}" for stage, count in sorted(self.failures.items())) + ")"
        if self.last_error:
            text += f"; last error: {self.last_error}"
        return text
