"""``modelyard benchmarks``: measure one run (what the Jobs of a BenchmarkJob do), show results, compare them.

Results are named by a file (``run.json``, ``summary.csv``, Parquet), the folder of a benchmark, a folder of history,
the URI of a folder in a bucket, or a BenchmarkJob (NAMESPACE/NAME).
"""

from __future__ import annotations

import asyncio
import os
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelyard.cli.options import (
    Context,
    Form,
    Output,
    Terminated,
    UsageError,
    console,
    grid,
    print_document,
    raise_at_sigterm,
    warn,
)

if TYPE_CHECKING:
    from modelyard.benchmarks.measuring import BenchmarkResults, ComparedRuns
    from modelyard.benchmarks.records import MeasuredRun, Measurement

app = typer.Typer(no_args_is_help=True, help="Benchmarks: measure one run, show results, compare them.")

FAILED, REFUSED, RETRY = 1, 2, 75
"""Exit codes: something must be changed; nothing was started, since it could bring no result; trying again may help."""
PROGRAM = "GENAI_BENCH"
"""The variable with the path of genai-bench; unset: of a virtual environment that is made where it is missing."""


Source = Annotated[str, typer.Argument(help="A file, a folder or a URI of results, or a BenchmarkJob: NAMESPACE/NAME.")]
_BENCHMARK_JOB = re.compile(r"([a-z0-9][-a-z0-9]*)/([a-z0-9][-a-z0-9.]*)")
SHOWN = ("requests_rate", "output_rate", "ttft_p50", "ttft_p95", "itl_p50", "itl_p95", "latency_p95")
TITLES = ("REQ/S", "TOKENS/S", "TTFT P50", "TTFT P95", "ITL P50", "ITL P95", "LATENCY P95")


@app.command()
def measure(
    measurement: Annotated[
        Path | None,
        typer.Option("--measurement", help="File with a measurement as JSON; unset: the variable MEASUREMENT."),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="Where the report goes, besides stdout.")] = None,
    program: Annotated[
        Path | None, typer.Option("--program", envvar=PROGRAM, help="genai-bench; unset: it is made in the cache.")
    ] = None,
) -> None:
    """Measure one scenario at one concurrency with genai-bench, and store what it found. For Jobs, or by hand."""
    from modelyard.benchmarks.measuring import measure as measuring
    from modelyard.benchmarks.records import VERSION, MeasureError, secrets, without

    hidden, code = secrets(os.environ), REFUSED
    with raise_at_sigterm():
        try:
            asked = _asked(measurement)
            measuring.check_before(asked)
            code = FAILED
            result = measuring.measure(asked, program or _obtained(VERSION), os.environ, typer.echo)
        except MeasureError as error:
            result = measuring.failed(error, hidden)
        except (Terminated, KeyboardInterrupt):
            interrupted = MeasureError("Interrupted", "ended by a signal; the run is measured again", retryable=True)
            result = measuring.failed(interrupted)
        except Exception as error:  # Without a report the status could say no more than that there is none.
            typer.echo(without(traceback.format_exc(), hidden), err=True)
            result, code = measuring.failed(measuring.unexpected(error, hidden)), FAILED
    body = measuring.fitted(result)
    if report is not None:
        report.write_text(body, encoding="utf-8")
    if result.outcome == "Failed":
        typer.echo(f"{result.reason}: {result.message}", err=True)
    typer.echo(body)
    if result.outcome == "Failed":
        raise typer.Exit(RETRY if result.retryable else code)


def _asked(file: Path | None) -> Measurement:
    from pydantic import ValidationError

    from modelyard.benchmarks.records import MEASUREMENT, MeasureError, Measurement
    from modelyard.resources import explain

    try:
        text = os.environ.get(MEASUREMENT, "") if file is None else file.read_text(encoding="utf-8")
        return Measurement.model_validate_json(text)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no text"
        raise MeasureError("MeasurementInvalid", f"--measurement {file}: {why}; name a file with JSON") from None
    except ValidationError as error:
        problems = explain(Measurement, error)[:5]
        faults = "; ".join(f"{path}: {text.replace(' - ', '; ', 1)}" for path, text in problems)
        raise MeasureError("MeasurementInvalid", f"{file or MEASUREMENT}: {faults}") from None


def _obtained(version: str) -> Path:
    from modelyard.benchmarks.records import MeasureError
    from modelyard.local import BinaryNotFound
    from modelyard.local.binaries import genai_bench

    try:
        return genai_bench.ensure(version, lambda text: typer.echo(text, err=True))
    except BinaryNotFound as error:
        raise MeasureError("ProgramMissing", str(error)) from None


@app.command()
def show(source: Source, output: Form = Output.TABLE, context: Context = None) -> None:
    """The runs of a benchmark, one a line."""
    found = results_of(source)
    if output is not Output.TABLE:
        print_document(_json([_document(run) for run in found.runs]), output)
        return
    table = grid("SCENARIO", "AT", "REQUESTS", "FAILED", *TITLES)
    for run in found.runs:
        figures = (_cell(run, metric) for metric in SHOWN)
        table.add_row(run.scenario, str(run.concurrency), str(run.requests), str(run.failed), *figures)
    console().print(table)


@app.command()
def compare(
    before: Annotated[
        str, typer.Argument(metavar="A", help="Results as they were: a file, folder, URI or BenchmarkJob.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="Those that are held against them.")],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="End with 1 where this holds for any run: 'ttft_p95>+10%' (a change), 'itl_p50>30ms'; repeat.",
        ),
    ] = None,
    output: Form = Output.TABLE,
    context: Context = None,
) -> None:
    """How the runs of B differ from those of A with the same scenario and concurrency; a gate for pipelines."""
    from modelyard.benchmarks.measuring import compare as comparing

    conditions = [comparing.parse_condition(text) for text in fail_if or ()]
    one, other = results_of(before), results_of(after)
    found = comparing.pairs(one, other)
    if not any(pair.before and pair.after for pair in found):
        raise UsageError(f"{before}, {after}: no scenario was measured at the same concurrency in both")
    problems = comparing.tripped(conditions, found)
    if output is not Output.TABLE:
        runs = [_change(pair) for pair in found]
        print_document(_json({"before": before, "after": after, "runs": runs, "problems": problems}), output)
    else:
        _print(found)
    if problems:
        raise comparing.GateTripped(problems)


def results_of(source: str) -> BenchmarkResults:
    """The results that a source names. Raises ``MeasureError``."""
    from modelyard.benchmarks.measuring import load

    if not Path(source).exists() and (named := _BENCHMARK_JOB.fullmatch(source)):
        return asyncio.run(_kept(*named.groups()))
    return load(source)


async def _kept(namespace: str, name: str) -> BenchmarkResults:
    from modelyard.benchmarks.jobs import BENCHMARK_JOBS
    from modelyard.benchmarks.measuring import kept
    from modelyard.benchmarks.records import MeasureError
    from modelyard.cluster import Cluster, ClusterError, ClusterSettings

    try:
        async with Cluster.connect(ClusterSettings()) as cluster:
            found = kept(await cluster.get(BENCHMARK_JOBS, name, namespace))
    except ClusterError as error:
        raise MeasureError("OutputNotFound", f"{namespace}/{name}: no file or folder, and: {error}") from None
    if not found.records:
        raise MeasureError("OutputNotFound", f"BenchmarkJob {namespace}/{name} has measured nothing yet")
    return found


def _document(run: MeasuredRun | None) -> dict[str, Any] | None:
    return None if run is None else {**run.model_dump(), "error_share": run.error_share}


def _change(pair: ComparedRuns) -> dict[str, Any]:
    from modelyard.benchmarks.measuring import METRICS

    changes = {metric: pair.change(metric) for metric in METRICS}
    return {
        "scenario": pair.scenario,
        "concurrency": pair.concurrency,
        "before": _document(pair.before),
        "after": _document(pair.after),
        "change": {metric: value if value != float("inf") else None for metric, value in changes.items()},
    }


def _json(document: Any) -> str:
    import orjson

    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _print(found: list[ComparedRuns]) -> None:
    out = console()
    for scenario in dict.fromkeys(pair.scenario for pair in found):
        out.print(scenario)
        table = grid("AT", *TITLES[:-1], "FAILED")
        for pair in (pair for pair in found if pair.scenario == scenario):
            if pair.before is None or pair.after is None:
                warn(f"{pair.name}: measured in {'B' if pair.before is None else 'A'} only")
                continue
            cells = []
            for metric in SHOWN[:-1]:
                change = pair.change(metric)
                cells.append(f"{_cell(pair.after, metric)} {'' if change is None else f'{change:+.0%}'}".rstrip())
            table.add_row(str(pair.concurrency), *cells, f"{pair.before.error_share:.1%} {pair.after.error_share:.1%}")
        out.print(table)


def _cell(run: MeasuredRun, metric: str) -> str:
    from modelyard.benchmarks.measuring import LATENCIES, figure

    value = figure(run, metric)
    if value is None:
        return "-"
    if metric in LATENCIES:
        return f"{value * 1000:.3g}ms" if value < 1 else f"{value:.3g}s"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
