"""The ``modelyard`` command with what needs Prefect, imported when used; exit codes: ``modelyard.cli.options``."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from deployments.demo.scenario import Scenario
from deployments.profile import POOL, PREFECT_FILE
from modelyard.cli import options
from modelyard.cli.main import app, main as run_command
from modelyard.objects import CONTROLLER_NAMESPACE


class PoolType(StrEnum):
    """Types of work pools that Modelyard has a base job template for."""

    PROCESS = "process"
    KUBERNETES = "kubernetes"


demonstrations = typer.Typer(
    help="Demonstrate Modelyard on a local cluster: onboarding and autoscaling, or a tour of its resources."
)
app.add_typer(demonstrations, name="demo")

Parameters = Annotated[
    str, typer.Option(metavar="JSON", help="The flow's parameters, or @FILE; other options come before them.")
]

Keep = Annotated[bool, typer.Option("--keep", help="Leave everything running at the end until Ctrl-C.")]


@app.command()
def autoscale(
    once: Annotated[bool, typer.Option("--once", help="One tick, then end.")] = False,
    shift: Annotated[float | None, typer.Option(metavar="SECONDS", help="How long to run (600).")] = None,
    interval: Annotated[float | None, typer.Option(metavar="SECONDS", help="From tick to tick (15).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and explain, write nothing.")] = False,
    namespace: options.Namespaces = None,
    selector: options.Selector = "",
    prometheus: options.PrometheusUrl = None,
    context: options.Context = None,
    settings: options.Settings = None,
    parameters: Parameters = "{}",
    lease_name: Annotated[str | None, typer.Option(help="The Kubernetes Lease that keeps writers apart.")] = None,
    lease_namespace: Annotated[str | None, typer.Option(help="Its namespace.")] = None,
) -> None:
    """Run the autoscaling flow here, in the foreground, recorded by the Prefect server at PREFECT_API_URL."""
    if once and shift is not None:
        raise options.UsageError("--once, --shift: give one of the two")
    given = options.json_object(parameters, "--parameters")
    named: dict[str, Any] = {
        "shift_seconds": 0 if once else shift,
        "interval_seconds": interval,
        "lease_name": lease_name,
        "lease_namespace": lease_namespace,
        "namespaces": namespace,
        "label_selector": selector or None,
        "prometheus_url": prometheus,
    }
    given |= {name: value for name, value in named.items() if value is not None}
    fleet: dict[str, Any] = {"dry_run": True} if dry_run else {}
    if settings:
        from modelyard.autoscaling.configuration import FleetSettings, one_document

        read = one_document(settings, FleetSettings, "give fleet settings with --settings")
        fleet = read.model_dump(exclude_unset=True) | fleet
    before = given.get("fleet", {})
    if fleet and isinstance(before, dict):
        given["fleet"] = before | fleet
    _run("autoscale", given)


@app.command()
def run(
    flow: Annotated[str, typer.Argument(help="autoscale, deliver, replay, ...")],
    parameters: Parameters = "{}",
    context: options.Context = None,
) -> None:
    """Run a flow here, in the foreground, recorded by the Prefect server at PREFECT_API_URL."""
    _run(flow, options.json_object(parameters, "--parameters"))


def _run(flow: str, given: dict[str, Any]) -> None:
    from deployments.foreground import run_here

    raise typer.Exit(run_here(flow, given))


def _run_tersely(flow: str, given: dict[str, Any]) -> None:
    for which in ("FLOW", "TASK"):
        os.environ.setdefault(f"PREFECT_LOGGING_FORMATTERS_STANDARD_{which}_RUN_FMT", "%(asctime)s  %(message)s")
    _run(flow, given)


def main() -> None:
    """Run the command; its ``onboard`` runs a flow."""
    run_command(_run_tersely)


@app.command()
def server(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 4200,
    home: Annotated[
        Path | None, typer.Option(help="Folder of its data. [default: PREFECT_HOME, else MODELYARD_HOME/prefect]")
    ] = None,
    without_authentication: Annotated[
        bool,
        typer.Option(
            "--without-authentication",
            help="Let everybody in who reaches the port; whoever gets in can run any command where the worker runs.",
        ),
    ] = False,
    background: Annotated[
        bool, typer.Option("--background", help="Leave it running, and end once it answers: for eval.")
    ] = False,
) -> None:
    """Be a Prefect server with the project's profile."""
    from deployments.server import become

    become(host, port, home, without_authentication, background)


@app.command()
def worker(pool: Annotated[str, typer.Option(help="Work pool.")] = POOL, context: options.Context = None) -> None:
    """Become a Prefect worker with the project's profile, and supervise the runs of its pool next to it."""
    from deployments.worker import become

    become(pool)


@app.command()
def supervise(
    pool: Annotated[str, typer.Option(help="Work pool.")] = POOL,
    context: options.Context = None,
    worker_pid: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Supervise the runs of a work pool: next to `prefect worker start`, as `modelyard worker` does by itself."""
    from deployments.worker import FIRST_PAUSE, worker_environment

    os.environ.update(worker_environment())
    if worker_pid is not None:
        time.sleep(FIRST_PAUSE)
    # Not before: Prefect reads its settings when it is imported.
    from deployments.supervision import run as run_supervision

    run_supervision(pool, worker_pid)


@app.command()
def bootstrap(
    pool: Annotated[str, typer.Option(help="Work pool to create.")] = POOL,
    pool_type: Annotated[
        PoolType | None, typer.Option(help="Its type.  [default: that of an existing pool, else process]")
    ] = None,
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Namespace of the runs' pods (type kubernetes).")
    ] = CONTROLLER_NAMESPACE,
    image: Annotated[str | None, typer.Option(help="Image of the runs' pods (type kubernetes).")] = None,
    prefect_file: Annotated[Path, typer.Option(help="What to deploy.", show_default="ours")] = PREFECT_FILE,
    autoscale: Annotated[
        str,
        typer.Option(metavar="JSON", help="Parameters of the autoscale deployments, merged over the file's, or @FILE."),
    ] = "{}",
    without_authentication: Annotated[
        bool, typer.Option("--without-authentication", help="Accept a server of another machine that lets anybody in.")
    ] = False,
) -> None:
    """Install Modelyard on the Prefect server at PREFECT_API_URL, and prove that its schedules run. Safe to repeat."""
    given = options.json_object(autoscale, "--autoscale")
    if pool_type == PoolType.KUBERNETES and not image:
        raise options.UsageError("--image: required by --pool-type kubernetes, such as modelyard:0.1.0")
    if image and pool_type != PoolType.KUBERNETES:
        raise options.UsageError("--image: only runs of --pool-type kubernetes have one; give that, too")
    from pydantic import ValidationError

    from deployments.bootstrap import bootstrap as install
    from deployments.work_pool import RunPods
    from modelyard.runtimes import parse_image

    try:
        parse_image(image or "modelyard")
    except ValueError as error:
        raise options.UsageError(f"--image: {error}") from error
    try:
        asyncio.run(
            install(
                pool=pool,
                pool_type=pool_type,
                pods=RunPods(namespace, image) if image else None,
                prefect_file=prefect_file,
                autoscale=given,
                without_authentication=without_authentication,
            )
        )
    except ValidationError as error:
        from flows.parameters import AutoscaleParameters

        wrong = options.faults(error, AutoscaleParameters)
        raise options.UsageError(*(f"--autoscale: {fault}" for fault in wrong)) from error


@demonstrations.callback(invoke_without_command=True)
def demo(
    typed: typer.Context,
    keep: Keep = False,
    out: Annotated[Path, typer.Option(help="Folder for logs, data and the chart.")] = Path("out/demo"),
    compression: Annotated[
        float | None,
        typer.Option(min=1, help="Simulation speed-up factor. [default: 4 to 10, by measured free processor cores]"),
    ] = None,
    start: Annotated[float, typer.Option(help="First minute of the trace.")] = Scenario.start_minute,
    minutes: Annotated[float, typer.Option(help="Minutes of the trace to replay.")] = Scenario.minutes,
    rate: Annotated[float, typer.Option(help="Factor of the request rate.")] = Scenario.rate,
) -> None:
    """Onboard a model, then scale it under real traffic; about five minutes on a quiet machine."""
    if typed.invoked_subcommand is not None:
        return
    from deployments.demo.run import main as demonstrate

    scenario = Scenario(start_minute=start, minutes=minutes, rate=rate)
    scenario = replace(scenario, compression=compression or scenario.compression)
    raise typer.Exit(demonstrate(scenario, out, adapt=compression is None, keep=keep))


@demonstrations.command("tour")
def demo_tour(
    keep: Keep = False,
    out: Annotated[Path, typer.Option(help="Folder for logs and data.")] = Path("out/demo-tour"),
) -> None:
    """Deliver models, create, update, scale and delete services, route requests; about three minutes."""
    from deployments.demo.tour import main as show

    raise typer.Exit(show(out, keep=keep))


@demonstrations.command("sources")
def demo_sources(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0: any free one.")] = 9000,
    allow: Annotated[
        bool, typer.Option("--allow", help="Permit the local cluster in KUBECONFIG to fetch models from there.")
    ] = False,
    context: options.Context = None,
) -> None:
    """Serve a model hub and an S3 bucket with small models on this machine until stopped."""
    from deployments.demo.sources import serve

    asyncio.run(serve(port, allow, partial(print, flush=True)))


if __name__ == "__main__":
    main()
