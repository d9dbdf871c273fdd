"""A tick's decision on the terminal: a table with the reasons below it, or JSON for programs. Called by ``plan``."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from modelyard.autoscaling.decision import Action, TickDecision
from modelyard.autoscaling.explain import lines
from modelyard.autoscaling.settings import FleetSettings

COLOURS = {Action.UP: "green", Action.DOWN: "yellow", Action.NONE: ""}
WIDE = 10_000
"""Columns where nobody is watching: a pipe has no width, one line per variant is what grep wants."""


def as_json(decision: TickDecision, settings: FleetSettings) -> str:
    """The whole decision. Names are the records' own in camelCase, objects are named by namespace and name.

    ``memory`` is what the annotation ``modelyard.dev/autoscaling-state`` would hold, in its own names.
    """
    document = {
        "at": datetime.fromtimestamp(decision.now, UTC).isoformat().replace("+00:00", "Z"),
        "compatibility": str(settings.compatibility),
        "records": _plain(decision.records),
        "notices": [{"object": about, **_plain(notice)} for about, notice in decision.notices],
        "errors": list(decision.errors),
        "unattributedSignals": decision.unattributed_signals,
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """JSON values. What JSON cannot say (infinity) becomes null."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    if dataclasses.is_dataclass(value):
        return {to_camel(field.name): _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return {to_camel(name): _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, str) else value


def print_table(decision: TickDecision, from_files: bool) -> None:
    """The table, then the whole story of each variant, then what concerns the configuration.

    Everything is printed as it is: messages hold brackets and colons that are no markup.
    """
    width = None if sys.stdout.isatty() else WIDE
    console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True, width=width)
    if not decision.records:
        place = "in these files. Add one with -f" if from_files else "found. Create one"
        console.print(f"No VariantAutoscaling {place}, or widen --namespace and --selector.")
    else:
        table = Table(header_style="bold", box=None, pad_edge=False)
        for title in ("VARIANT", "MODEL", "CURRENT", "READY", "TARGET", "ACTION", "WHY"):
            justify: Literal["right", "left"] = "right" if title in ("CURRENT", "READY", "TARGET") else "left"
            table.add_column(title, justify=justify, overflow="fold")
        for record in decision.records:
            table.add_row(
                Text(str(record.variant)),
                Text(record.model_id),
                Text(_number(record.current)),
                Text(_number(record.ready)),
                Text(_number(record.target)),
                Text(str(record.action), style=COLOURS[record.action]),
                Text(record.message),
            )
        console.print(table, soft_wrap=False)
        for record in decision.records:
            console.print(Text(str(record.variant), style="bold"))
            for line in lines(record):
                console.print(f"  {line}")
    for about, notice in decision.notices:
        console.print(Text.assemble((notice.kind, "yellow"), f" {about}: {notice.reason}: {notice.message}"))
    for error in decision.errors:
        console.print(Text.assemble(("error", "red"), f" {error}"))


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
