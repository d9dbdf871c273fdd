"""``modelyard plan``: what the next tick would decide, with nothing written."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from modelyard.autoscaling.fleet import Fleet
    from modelyard.autoscaling.settings import FleetSettings
    from modelyard.loop.snapshot import Snapshot


class Output(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"


def plan(
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "-f", "--filename", help="Manifest file or folder, '-' for standard input; repeat. No cluster is contacted."
        ),
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option("--metrics", help="Metrics snapshot file to decide on instead of Prometheus.")
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option("-n", "--namespace", help="Only this namespace; repeat.")
    ] = None,
    selector: Annotated[str, typer.Option("-l", "--selector", help="Only VariantAutoscalings with these labels.")] = "",
    policy: Annotated[
        Path | None, typer.Option("--policy", help="YAML file with fleet settings (as the flow's parameter 'fleet').")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Decide exactly as the published references document.")
    ] = False,
    prometheus: Annotated[
        str | None, typer.Option("--prometheus-url", "--prometheus", help="Prometheus (default: PROMETHEUS_BASE_URL).")
    ] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print.")] = Output.TABLE,
    save_snapshot: Annotated[
        Path | None, typer.Option(help="Also write the metrics seen to this file, for --metrics.")
    ] = None,
) -> None:
    """Show what would be decided now, and why. Nothing is written to the cluster."""
    from modelyard.autoscaling.decide import decide
    from modelyard.autoscaling.settings import Compatibility, FleetSettings
    from modelyard.cli import plan_output
    from modelyard.loop import snapshot as snapshots
    from modelyard.loop.plan_files import PlanInputError, one_document

    settings = one_document(policy, FleetSettings, "give fleet settings with --policy") if policy else FleetSettings()
    if published:
        settings = settings.model_copy(update={"compatibility": Compatibility.PUBLISHED})
    snapshot = snapshots.read_snapshot(metrics) if metrics else None
    if snapshot is not None:
        for remark in snapshots.remarks(snapshot):
            _warn(f"{metrics}: {remark}")
    if files:
        if snapshot is None:
            raise PlanInputError(f"manifests alone say nothing about load; {snapshots.REMEDY}")
        beside = [path for path in (metrics, policy) if path]
        fleet = _from_files(files, beside, snapshot, settings, namespace or [], selector)
    else:
        fleet = asyncio.run(_from_cluster(settings, namespace or [], selector, prometheus))
        if snapshot is not None:
            fleet = dataclasses.replace(fleet, signals=snapshots.signals_of(snapshot, fleet.now))
    if save_snapshot:
        try:
            save_snapshot.write_text(snapshots.snapshot_of(fleet), encoding="utf-8")
        except OSError as error:
            why = error.strerror or error
            raise PlanInputError(f"{save_snapshot}: {why}; give a writable path with --save-snapshot") from error
    decision = decide(fleet, settings)
    if output is Output.JSON:
        typer.echo(plan_output.as_json(decision, settings))
    else:
        plan_output.print_table(decision, bool(files))


def _from_files(
    files: list[Path],
    beside: list[Path],
    snapshot: Snapshot,
    settings: FleetSettings,
    namespaces: list[str],
    selector: str,
) -> Fleet:
    from modelyard.autoscaling.label_selector import parse_selector
    from modelyard.loop import offline
    from modelyard.loop.manifests import read_manifests
    from modelyard.loop.plan_files import PlanInputError

    try:
        matches = parse_selector(selector)
    except ValueError as error:
        raise PlanInputError(f"-l {selector}: {error}; write it as for kubectl, for example team=chat") from error
    manifests = read_manifests(files, beside)
    fleet = offline.fleet_from_files(manifests, snapshot, time.time(), settings)
    wanted = tuple(v for v in fleet.variants if (not namespaces or v.key.namespace in namespaces) and matches(v.labels))
    fleet = dataclasses.replace(fleet, variants=wanted)
    for remark in offline.remarks(fleet, manifests):
        _warn(remark)
    return fleet


async def _from_cluster(settings: FleetSettings, namespaces: list[str], selector: str, prometheus: str | None) -> Fleet:
    from modelyard.loop.settings import LoopSettings
    from modelyard.loop.tick import Loop, Tick

    chosen = LoopSettings(prometheus_url=prometheus, namespaces=namespaces, label_selector=selector, fleet=settings)
    async with Loop(chosen) as loop:
        tick = Tick(0)
        await loop.collect(tick)
    assert tick.fleet is not None
    return tick.fleet


def _warn(text: str) -> None:
    typer.secho(f"warning: {text}", fg=typer.colors.YELLOW, err=True)
