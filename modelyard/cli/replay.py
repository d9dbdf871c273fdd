"""``modelyard replay``: what policies would have cost on recorded traffic, and what users would have noticed.

Its options are the fields of ``ReplayRequest``, which a file may hold as well; options come first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from modelyard.autoscaling.configuration import FleetSettings, documents as read_documents, one_document
from modelyard.cli.model_options import options_from, parse_options
from modelyard.cli.options import print_document, warn
from modelyard.replay import ReplayRequest

Hear = Callable[[float], None]


class Output(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


@options_from(ReplayRequest, leave_out=("manifest_text",))
def replay(
    given: dict[str, Any],
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print.")] = Output.TABLE,
) -> None:
    """Replay recorded traffic against a simulated fleet, policy by policy. No cluster is contacted."""
    from modelyard import reports
    from modelyard.replay.backtest import (
        RequirementsNotMet,
        batches,
        least,
        output as outputs,
        read_scenario,
        replay as replay_one,
        unmet_requirements,
    )
    from modelyard.replay.policies import CLAIRVOYANT

    request, beside = read_request(given)
    # So that a report under way is cleared up, as an interrupt from the keyboard has it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    places = request.places()
    for out in places.values():
        reports.check(out, outputs.REPORT)
    scenario, source, warnings = asyncio.run(read_scenario(request, beside))
    for warning in warnings:
        warn(warning)
    work = batches(scenario, request.chosen, request.rates)
    for batch in work:
        batch.make()
    with _progress() as begin:
        results = [replay_one(batch, begin(batch.name)) for batch in work]
    documents: list[str] = []
    for rate in request.rates:
        mine = [result for result in results if result.summary.rate == rate]
        rows = [result.summary for result in mine]
        context, remarks = scenario.context(source, scenario.at_rate(rate)), []
        if any(policy.kind == CLAIRVOYANT for policy in request.chosen):
            bound, remark = least(scenario, rate)
            context, remarks = {**context, "clairvoyant": dataclasses.asdict(bound)}, [remark]
        if places:
            outputs.write_report(places[rate], [(r.summary.policy, r.line) for r in mine], rows, scenario.slo, context)
        if output in (Output.JSON, Output.YAML):
            documents.append(outputs.as_json(rows, scenario.slo, context))
        elif output is Output.TABLE:
            title = f"rate × {rate:g}\n" if len(request.rates) > 1 else ""
            typer.echo(title + outputs.table(rows, scenario.slo, remarks))
    if documents:
        print_document(documents[0] if len(documents) == 1 else f"[{', '.join(documents)}]", output)
    elif output is Output.CSV:
        typer.echo(outputs.as_csv([result.summary for result in results]))
    if problems := unmet_requirements(request, (result.summary for result in results)):
        raise RequirementsNotMet(problems)


def read_request(given: dict[str, Any]) -> tuple[ReplayRequest, list[Path]]:
    """The request of these options and files, and the request files. Raises ``UsageError`` and ``PlanInputError``."""
    fields: dict[str, Any] = {}
    manifests: list[Path] = []
    beside: list[Path] = []
    for path in given.pop("manifests", []):
        found = _request_in(path)
        if found is None:
            manifests.append(path)
        else:
            fields |= found
            beside.append(path)
    if manifests:
        fields["manifests"] = manifests
    settings = given.pop("fleet", None)
    if settings is not None:
        given["fleet"] = one_document(settings, FleetSettings, "give fleet settings with --settings")
        beside.append(settings)
    return parse_options(ReplayRequest, fields | given), beside


def _request_in(path: Path) -> dict[str, Any] | None:
    if path.is_dir() or str(path) == "-":
        return None
    found = read_documents(path, "give a manifest or a replay request with -f")
    if len(found) == 1 and isinstance(found[0], dict) and "kind" not in found[0] and "apiVersion" not in found[0]:
        return found[0]
    return None


@contextmanager
def _progress() -> Iterator[Callable[[str], Hear]]:
    if not sys.stderr.isatty():
        yield lambda _: lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def begin(name: str) -> Hear:
            task = progress.add_task(name, total=1.0)
            return lambda share: progress.update(task, completed=share)

        yield begin


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(replay)
