"""``modelyard replay``: what policies would have cost on recorded traffic, and what users would have noticed."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from modelyard.traffic.trace import Trace

Hear = Callable[[float], None]


class Output(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class Gaps(StrEnum):
    """What gaps in a history stand for (``modelyard.replay.history.Gaps``)."""

    FAIL = "fail"
    ZERO = "zero"
    INTERPOLATE = "interpolate"


class Routing(StrEnum):
    """How requests are spread (``modelyard.replay.settings.Routing``, not imported to say a few words)."""

    LEAST_OUTSTANDING = "least-outstanding"
    ROUND_ROBIN = "round-robin"
    RANDOM = "random"


def replay(
    files: Annotated[
        list[Path],
        typer.Option("-f", "--filename", help="Manifest file or folder, '-' for standard input; repeat."),
    ],
    trace: Annotated[
        Path | None, typer.Option("--trace", help="CSV with a time, prompt and output tokens of each request.")
    ] = None,
    prometheus_url: Annotated[
        str | None,
        typer.Option(help="Instead of --trace: the traffic this Prometheus remembers; with --namespace and --model."),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Whose traffic, in Prometheus.")] = "",
    model: Annotated[str, typer.Option(help="Which model's traffic, as its engines name it.")] = "",
    begin: Annotated[
        str, typer.Option("--from", help="Since when: a time (2026-01-31T08:00Z) or how long ago (6h).")
    ] = "1h",
    end: Annotated[str, typer.Option("--to", help="Until when: likewise, or now.")] = "1m",
    step: Annotated[str, typer.Option(help="Length of the steps in which the rate is constant.")] = "15s",
    gaps: Annotated[
        Gaps, typer.Option(help="What steps without data stand for: an error, no requests, or what is around them.")
    ] = Gaps.FAIL,
    prompt_tokens: Annotated[
        float | None, typer.Option(help="Mean prompt tokens of a request, over what Prometheus says.")
    ] = None,
    output_tokens: Annotated[
        float | None, typer.Option(help="Mean output tokens of a request, over what Prometheus says.")
    ] = None,
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy",
            help="Policies to compare, separated by commas; repeat: default, published, fixed:3, hpa:queue=2, "
            "keda:running=20, clairvoyant. Options follow: hpa:queue=2,min=1,max=20 or default:scale_down_delay=300.",
        ),
    ] = ["default"],  # noqa: B006
    columns: Annotated[
        str, typer.Option(help="Column names: time=NAME,prompt=NAME,output=NAME and, if there is one, model=NAME.")
    ] = "",
    slo_ttft: Annotated[str, typer.Option(help="Target for the time to first token.")] = "2s",
    slo_itl: Annotated[str, typer.Option(help="Target for the mean inter-token latency of a request.")] = "60ms",
    attainment: Annotated[float, typer.Option(help="Share of requests that should be within both.")] = 0.99,
    rate: Annotated[float, typer.Option(help="So many times the requests.")] = 1.0,
    prompt_scale: Annotated[float, typer.Option(help="So many times the prompt tokens.")] = 1.0,
    output_scale: Annotated[float, typer.Option(help="So many times the output tokens.")] = 1.0,
    start: Annotated[float, typer.Option(help="Begin at this minute of the trace.")] = 0.0,
    minutes: Annotated[float | None, typer.Option(help="Replay so many minutes of it; default: to its end.")] = None,
    diurnal: Annotated[
        float | None, typer.Option(help="Repeat it for so many hours, following the course of a day from midnight.")
    ] = None,
    startup: Annotated[
        str, typer.Option(help="From a pod's creation to Ready, where the engine's arguments do not say.")
    ] = "120s",
    profile: Annotated[
        str | None, typer.Option(help="Engine profile (h100, a100, l40s); default: by the accelerator label.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Engine parameters over everything else: alpha=7,beta=0.05,kv_cache_tokens=400000.")
    ] = "",
    routing: Annotated[Routing, typer.Option(help="How the router chooses.")] = Routing.LEAST_OUTSTANDING,
    queue_limit: Annotated[str, typer.Option(help="A request that waits so long for a replica is rejected.")] = "300s",
    scrape: Annotated[str, typer.Option(help="Prometheus' scrape interval.")] = "15s",
    fleet_settings: Annotated[
        Path | None, typer.Option("--fleet-settings", help="YAML file with fleet settings, for default and published.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random; equal seeds give equal results.")] = 0,
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print.")] = Output.TABLE,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write a folder: report, minute by minute, plots.")
    ] = None,
) -> None:
    """Replay recorded traffic against a simulated fleet, policy by policy. No cluster is contacted."""
    from modelyard.replay import output as outputs
    from modelyard.replay import settings as simulation
    from modelyard.replay.compare import compare
    from modelyard.replay.history import Gaps as HistoryGaps
    from modelyard.replay.history import HistoryRequest
    from modelyard.replay.inputs import InputError, duration, moment, numbers
    from modelyard.replay.policies.parse import split
    from modelyard.replay.scenario import Scenario, read_world, shaped, trace_from_history
    from modelyard.traffic.latency import SLO
    from modelyard.traffic.router import Routing as ReplayRouting
    from modelyard.traffic.trace import parse_columns, read_trace

    try:
        slo = SLO(duration("--slo-ttft", slo_ttft), duration("--slo-itl", slo_itl), attainment)
        settings = simulation.SimulationSettings(
            routing=ReplayRouting(routing.value),
            queue_limit=duration("--queue-limit", queue_limit),
            scrape_interval=duration("--scrape", scrape),
            seed=seed,
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    wanted = split(",".join(policy))
    # So that a report under way is cleared up, as an interrupt from the keyboard has it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if out is not None:
        outputs.check_folder(out)
    if (trace is None) == (prometheus_url is None):
        raise InputError("give the traffic with either --trace or --prometheus-url")
    world = read_world(
        files,
        fleet_settings,
        [trace] if trace else [],
        startup=duration("--startup", startup),
        profile=profile,
        engine=numbers("--engine", engine),
    )
    warnings = [*world.warnings]
    if trace is not None:
        source = str(trace)
        traffic = read_trace(trace, parse_columns(columns))
    else:
        if not (namespace and model):
            raise InputError("--prometheus-url needs --namespace and --model: whose traffic it is")
        now = time.time()
        source = f"{prometheus_url} {namespace}/{model}"
        request = HistoryRequest(
            namespace,
            model,
            moment("--from", begin, now),
            moment("--to", end, now),
            duration("--step", step),
            HistoryGaps(gaps.value),
            prompt_tokens,
            output_tokens,
        )
        traffic, filled = asyncio.run(trace_from_history(prometheus_url or "", request, world.models, seed))
        warnings += filled
    traffic = shaped(
        traffic, start=start, minutes=minutes, diurnal=diurnal, prompt=prompt_scale, output=output_scale, seed=seed
    ).scaled(rate=rate, seed=seed)
    for warning in warnings:
        _warn(warning)
    with _progress(len(wanted), traffic) as hear:
        comparison = compare(
            traffic, world.variants, wanted, world.manifests, world.fleet_settings, slo, settings, hear, world.nodes
        )
    context = {
        **Scenario(world, traffic, slo, settings).context(source, traffic),
        "clairvoyant": None if comparison.bound is None else dataclasses.asdict(comparison.bound),
    }
    if out is not None:
        outputs.write_folder(out, comparison.runs, comparison.summaries, slo, context)
    if output is Output.JSON:
        typer.echo(outputs.as_json(comparison.summaries, slo, context))
    elif output is Output.CSV:
        typer.echo(outputs.as_csv(comparison.summaries))
    else:
        typer.echo(outputs.table(comparison.summaries, slo, comparison.remarks))


@contextmanager
def _progress(policies: int, traffic: Trace) -> Iterator[Callable[[str], Hear]]:
    """A bar on a terminal, silence elsewhere: a function that opens a policy's bar and gives what moves it."""
    if not sys.stderr.isatty():
        yield lambda _: lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def begin(name: str) -> Hear:
            task = progress.add_task(name, total=max(traffic.duration, 1.0))
            return lambda now: progress.update(task, completed=now)

        yield begin


def _warn(text: str) -> None:
    typer.secho(f"warning: {text}", fg=typer.colors.YELLOW, err=True)
