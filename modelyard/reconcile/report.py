"""What a tick of a batch lifecycle leaves for people: the rows of its table, and what was really changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
"""A row of a table; plain JSON values."""


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
