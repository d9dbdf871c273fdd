"""``modelyard plan``: what the next tick would decide and what roll-outs would write, with nothing written."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelyard.cli import options

if TYPE_CHECKING:
    from modelyard.autoscaling.configuration import FleetSettings
    from modelyard.autoscaling.fleet import BindingView, Fleet, Variant
    from modelyard.autoscaling.offline import Manifest, Snapshot
    from modelyard.autoscaling.what_if import Settled
    from modelyard.cli.plan_services import ServicePlan


WHAT_IF = "What if"


class WouldChange(SystemExit):
    """With ``--exit-code``: something would change."""


def _what_if(option: str, assumed: str) -> Any:
    return typer.Option(option, help=f"What if {assumed}; repeat.", rich_help_panel=WHAT_IF)


def plan(
    files: options.Files = None,
    metrics: Annotated[
        Path | None, typer.Option("--metrics", help="Metrics snapshot file to decide on instead of Prometheus.")
    ] = None,
    namespace: options.Namespaces = None,
    selector: options.Selector = "",
    settings_file: options.Settings = None,
    published: Annotated[
        bool, typer.Option("--published", help="Decide exactly as the published references document.")
    ] = False,
    prometheus: options.PrometheusUrl = None,
    context: options.Context = None,
    compression: Annotated[
        float,
        typer.Option(
            "--time-compression", min=1, help="How many times faster than life the cluster runs (10: `make demo`)."
        ),
    ] = 1,
    output: options.Form = options.Output.TABLE,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Tell the whole story of each decision.")] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="End with 2 when something would change, with 1 when it cannot be said (metrics are missing) or the"
            " command line cannot be used.",
        ),
    ] = False,
    save_snapshot: Annotated[
        Path | None, typer.Option(help="Also write the metrics seen to this file, for --metrics.")
    ] = None,
    load: Annotated[
        list[str] | None,
        _what_if("--load", "the load were other: 2x, 1.5 or 150%; MODEL=2x (or a binding's name) for one"),
    ] = None,
    slo_ttft: Annotated[
        list[str] | None,
        _what_if("--slo-ttft", "the TTFT target were other: 300ms, or 80% of what is set; CLASS=300ms for one class"),
    ] = None,
    slo_itl: Annotated[
        list[str] | None, _what_if("--slo-itl", "the inter-token latency's target were other: 40ms, CLASS=40ms")
    ] = None,
    capacity: Annotated[
        list[str] | None,
        _what_if("--capacity", "there were so many GPUs for these variants, not the nodes', limiter on: H100=16"),
    ] = None,
    without: Annotated[
        list[str] | None,
        _what_if("--without", "this variant (NAMESPACE/NAME or NAME) were not there and others took its load"),
    ] = None,
    settle: Annotated[
        bool | None,
        typer.Option(
            "--settle/--no-settle",
            help="Also decide on and on in virtual time, with the load held, until nothing changes (200 ticks at most)."
            " Default: with any question above.",
            rich_help_panel=WHAT_IF,
        ),
    ] = None,
) -> None:
    """Show what would be decided now and what becomes of services, and why; or what would be if. Nothing is written
    to the cluster.
    """
    from modelyard.autoscaling.configuration import Compatibility, FleetSettings, PlanInputError, one_document
    from modelyard.autoscaling.offline import measured, read_manifests, snapshot as snapshots
    from modelyard.autoscaling.pipeline import decide
    from modelyard.autoscaling.what_if import imagine, parse
    from modelyard.cli import plan_json, plan_output

    question = parse(load or (), slo_ttft or (), slo_itl or (), capacity or (), without or ())
    settings = FleetSettings()
    if settings_file:
        settings = one_document(settings_file, FleetSettings, "give fleet settings with --settings")
    if published:
        settings = settings.model_copy(update={"compatibility": Compatibility.PUBLISHED})
    snapshot = snapshots.read_snapshot(metrics) if metrics else None
    if snapshot is not None:
        for remark in snapshots.remarks(snapshot):
            options.warn(f"{metrics}: {remark}")
    services: list[ServicePlan] = []
    if files:
        manifests = read_manifests(files, [path for path in (metrics, settings_file) if path])
        serving = any(one.kind in _SERVING for one in manifests)
        if snapshot is None and (not serving or any(one.kind in _SCALING for one in manifests)):
            raise options.UsageError(f"-f: manifests alone say nothing about load; {snapshots.REMEDY}")
        if serving and not question:
            services = _services_in(manifests, settings, namespace or [], selector)
        fleet = _from_files(manifests, snapshot or snapshots.Snapshot(), settings, namespace or [], selector)
    else:
        with _heard() as heard:
            fleet = asyncio.run(_from_cluster(settings, namespace or [], selector, prometheus, compression))
            if not question:
                from modelyard.cli.plan_services import from_cluster

                services, problems = asyncio.run(from_cluster(settings.controller_namespace, namespace or [], selector))
                for text in problems:
                    options.warn(text)
        for text in heard:
            if text != fleet.signals.error:  # which the plan says itself
                options.warn(text)
        settings = settings.compressed(compression)
        if snapshot is not None:
            fleet = dataclasses.replace(
                fleet,
                signals=snapshots.signals_of(snapshot, fleet.now),
                bindings=measured(fleet.bindings, snapshot.policies),
            )
    if save_snapshot:
        try:
            save_snapshot.write_text(snapshots.snapshot_of(fleet), encoding="utf-8")
        except OSError as error:
            why = error.strerror or error
            raise PlanInputError(f"{save_snapshot}: {why}; give a writable path with --save-snapshot") from error
    fleet, settings, said = imagine(fleet, settings, question)
    decision = decide(fleet, settings)
    settled = _settled(fleet, settings) if (bool(question) if settle is None else settle) else None
    if output is not options.Output.TABLE:
        options.print_document(plan_json.as_json(decision, settings, fleet.bindings, said, settled, services), output)
    else:
        plan_output.print_plan(
            decision, settings, fleet.bindings, bool(files), said, settled, services, verbose=verbose
        )
    if exit_code:
        unknown = [*decision.unknown, *(f"{one.name}: {one.why}" for one in services if one.here.problem is not None)]
        for text in unknown:
            options.warn(text, "error")
        if unknown:
            raise typer.Exit(1)
        if decision.changes or any(one.changes for one in services):
            raise WouldChange(2)


@contextmanager
def _heard() -> Iterator[dict[str, None]]:
    said: dict[str, None] = {}
    handler = logging.Handler(logging.WARNING)
    vars(handler)["emit"] = lambda record: said.setdefault(record.getMessage())
    logger = logging.getLogger("modelyard")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


def _settled(fleet: Fleet, settings: FleetSettings) -> Settled:
    from modelyard.autoscaling.what_if import settle

    if not sys.stderr.isatty():
        return settle(fleet, settings)
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("deciding in virtual time")
        return settle(
            fleet, settings, heard=lambda tick: progress.update(task, description=f"deciding ahead, tick {tick + 1}")
        )


_SCALING, _SERVING = ("VariantAutoscaling", "AutoscalingPolicyBinding"), ("InferenceService", "Model")


def _services_in(
    manifests: list[Manifest], settings: FleetSettings, namespaces: list[str], selector: str
) -> list[ServicePlan]:
    from modelyard.cli.plan_services import from_files
    from modelyard.cli.services import served_kinds, warn_of_fields

    _selecting(selector)
    warn_of_fields(manifests)
    return from_files(manifests, served_kinds(manifests), namespaces, selector, settings.controller_namespace)


def _selecting(selector: str) -> Callable[[Mapping[str, str]], bool]:
    from modelyard.objects import parse_selector

    try:
        return parse_selector(selector)
    except ValueError as error:
        raise options.UsageError(f"-l {selector}: {error}; write it as for kubectl, for example team=chat") from error


def _from_files(
    manifests: list[Manifest],
    snapshot: Snapshot,
    settings: FleetSettings,
    namespaces: list[str],
    selector: str,
) -> Fleet:
    from modelyard.autoscaling.offline import fleet as offline

    matches = _selecting(selector)
    fleet = offline.fleet_from_files(manifests, snapshot, time.time(), settings)

    def chosen(one: Variant | BindingView) -> bool:
        return (not namespaces or one.key.namespace in namespaces) and matches(one.labels)

    fleet = dataclasses.replace(
        fleet, variants=tuple(filter(chosen, fleet.variants)), bindings=tuple(filter(chosen, fleet.bindings))
    )
    for remark in offline.remarks(fleet, manifests):
        options.warn(remark)
    return fleet


async def _from_cluster(
    settings: FleetSettings, namespaces: list[str], selector: str, prometheus: str | None, compression: float
) -> Fleet:
    from modelyard.autoscaling.live import Controller, ControllerSettings, list_scalers, unread_scalers
    from modelyard.autoscaling.reading import workload_of

    chosen = ControllerSettings(
        prometheus_url=prometheus,
        namespaces=namespaces,
        label_selector=selector,
        fleet=settings,
        time_compression=compression,
    )
    async with Controller(chosen) as controller:
        await options.check_namespaces(controller.cluster, namespaces)
        fleet = await controller.collect()
        scalers = await list_scalers(controller.cluster, namespaces)
    for text in unread_scalers(scalers, {workload_of(variant) for variant in fleet.variants}):
        logging.getLogger(__name__).warning("%s", text)  # printed once, even if collect() logs it too
    return fleet
