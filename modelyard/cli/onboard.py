"""``modelyard onboard``: from a model's URI and a target to a service of the right size, or what it would apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelyard.cli.options import Context, Form, Output, UsageError, console, faults, grid, print_document, warn

if TYPE_CHECKING:
    from modelyard.benchmarks.values import MeasuredRun
    from modelyard.onboarding.choose import CandidateChoice
    from modelyard.onboarding.request import OnboardRequest

app = typer.Typer(add_completion=False)

foreground: Callable[[str, dict[str, Any]], None] | None = None
"""Runs a flow by its name and parameters in this terminal; set by the command that has Prefect."""


class NothingChosen(ValueError):
    """No candidate can be chosen; the message says why and what could be."""


@app.command()
def onboard(
    typed: typer.Context,
    uri: Annotated[str, typer.Argument(help="Where the model's files are, such as hf://OWNER/NAME.")],
    name: Annotated[str, typer.Option(help="Name of the model and of its service.")],
    results: Annotated[str, typer.Option(help="Storage URI for what is measured.")],
    candidate: Annotated[
        list[str] | None,
        typer.Option(metavar="RUNTIME=ACCELERATOR[:COUNT]@PRICE", help="What may serve it; repeat."),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="ACCELERATOR=PRICE", help="Instead: all runtimes that fit, on these; repeat."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Expected requests per second.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Tokens of a prompt.")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer.")] = None,
    trace: Annotated[Path | None, typer.Option(help="CSV of requests, for what is not said of the load.")] = None,
    ttft: Annotated[float | None, typer.Option(help="Target of the time to first token, ms.")] = None,
    itl: Annotated[float | None, typer.Option(help="Target of the time between two tokens, ms.")] = None,
    percentile: Annotated[float | None, typer.Option(help="Of the TTFT target; unset: its mean.")] = None,
    service_class: Annotated[
        str | None, typer.Option(metavar="CONFIGMAP/KEY", help="Instead of targets: a service class that is there.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="The most that the service may cost an hour.")] = None,
    min_replicas: Annotated[
        int | None, typer.Option(help="Replicas that autoscaling keeps at least, however little comes.")
    ] = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Its namespace.")] = "default",
    parameter: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of the model's storage, such as endpoint; repeat.")
    ] = None,
    node_selector: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A label of nodes that receive the files; repeat.")
    ] = None,
    level: Annotated[
        list[int] | None,
        typer.Option(help="Requests at a time to measure with; repeat. None: as many as the figures need."),
    ] = None,
    max_level: Annotated[int | None, typer.Option(help="Without --level: the highest (32).")] = None,
    precision: Annotated[
        float | None,
        typer.Option(help="Without --level: half a 95 % interval may be this share of the latency it decides (0.1)."),
    ] = None,
    minutes: Annotated[int | None, typer.Option(help="The most minutes of a run (5).")] = None,
    requests: Annotated[int | None, typer.Option(help="The most requests of a run (300).")] = None,
    patience: Annotated[
        int | None, typer.Option(help="Minutes after which a service that is not ready is given up (30).")
    ] = None,
    check_seconds: Annotated[
        float | None, typer.Option(help="Seconds of the check under load at the end (60); 0: none.")
    ] = None,
    time_compression: Annotated[
        float | None, typer.Option(help="How many times faster than life simulated engines run (10: `make demo`).")
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUNTIME=SOURCE",
            help="With --dry-run: what to choose by: a candidate's results, a file, folder, URI or BenchmarkJob "
            "(NAMESPACE/NAME); repeat.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be applied.")] = False,
    output: Form = Output.TABLE,
    context: Context = None,
) -> None:
    """Bring a model to a service of the right size, here, in the foreground, recorded by the Prefect server at
    PREFECT_API_URL. With --dry-run print what finds out how fast each candidate is, with --measured what is chosen.
    """
    from modelyard.onboarding.request import OnboardRequest, ServingCandidate

    try:
        candidates = [ServingCandidate.of(text).model_dump() for text in candidate or ()]
    except ValueError as error:
        raise UsageError(f"--candidate {error}") from None
    prices = _pairs("--price", price)
    for accelerator, cost in prices.items():
        if not cost.replace(".", "", 1).isdecimal():
            raise UsageError(f"--price {accelerator}={cost}: write ACCELERATOR=PRICE, as H100=4.5")
    given = {field: value for field, value in typed.params.items() if field in OnboardRequest.model_fields}
    given |= {
        "candidates": candidates,
        "prices": {accelerator: float(cost) for accelerator, cost in prices.items()},
        "parameters": _pairs("--parameter", parameter),
        "node_selector": _pairs("--node-selector", node_selector),
        "levels": level,
    }
    given = {field: value for field, value in given.items() if value is not None}
    if dry_run:
        if trace is not None or service_class is not None:
            raise UsageError("--dry-run reads no trace and no service class: give load and targets in numbers")
        if prices and not candidates:
            raise UsageError("--dry-run does not see which runtimes there are: name them, --candidate for --price")
        _print_plan(given, measured, output)
        return
    if measured or output is not Output.TABLE:
        raise UsageError("--measured, --output: are for --dry-run")
    if foreground is None:
        raise UsageError("there is nothing here that runs flows: give --dry-run")
    more = {"trace": trace and str(trace.resolve()), "check_seconds": check_seconds}
    foreground("onboard", given | {field: value for field, value in more.items() if value is not None})


def _print_plan(given: dict[str, Any], measured: list[str] | None, output: Output) -> None:
    from pydantic import ValidationError

    from modelyard.onboarding.choose import choose
    from modelyard.onboarding.levels import certainty
    from modelyard.onboarding.objects import base_model, chosen, probe
    from modelyard.onboarding.plan import benchmarks
    from modelyard.onboarding.request import OnboardRequest

    try:
        asked = OnboardRequest.model_validate(given)
    except ValidationError as error:
        raise UsageError(*faults(error, OnboardRequest)) from None
    if not measured:
        made = [base_model(asked)]
        made += [one for each in asked.candidates for one in (probe(asked, each), benchmarks(asked, each)[0])]
        _print(made, output)
        return
    runs = _runs(asked, measured)
    verdict = choose(asked, runs)
    if output is Output.TABLE:
        _table(verdict)
        for runtime, found in runs.items():
            console().print(f"{runtime}: {certainty(asked, found)}")
    if verdict.chosen is None:
        raise NothingChosen(verdict.problem)
    _print([base_model(asked), *chosen(asked, verdict.chosen)], output)


def _pairs(option: str, texts: Iterable[str] | None) -> dict[str, str]:
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"{option} {text}: write KEY=VALUE")
        found[name] = value
    return found


def _runs(asked: OnboardRequest, measured: list[str]) -> dict[str, tuple[MeasuredRun, ...]]:
    from modelyard.cli.benchmarks import results_of

    sources = dict(one.partition("=")[::2] for one in measured)
    known = {one.runtime for one in asked.candidates}
    for runtime, source in sources.items():
        if runtime not in known or not source:
            raise UsageError(f"--measured {runtime}: write RUNTIME=SOURCE with one of {', '.join(sorted(known))}")
    wanted = f"D({asked.prompt_tokens},{asked.output_tokens})"
    found = {}
    for runtime, source in sources.items():
        runs = results_of(source).runs
        of_load = [run for run in runs if run.scenario == wanted]
        if not of_load:
            there = ", ".join(sorted({run.scenario for run in runs})) or "nothing"
            raise UsageError(f"--measured {runtime}: {source} has no run of {wanted}, but {there}")
        for run in of_load:
            if run.unusable:
                warn(f"run {run.scenario} at {run.concurrency} of {source} is left out: {run.unusable}")
        found[runtime] = tuple(run for run in of_load if not run.unusable)
    return found


def _table(verdict: CandidateChoice) -> None:
    from modelyard.onboarding.progress import outcome
    from modelyard.onboarding.report import COLUMNS, row

    table = grid(*COLUMNS)
    for one in verdict.assessed:
        table.add_row(*row(one))
    console().print(table)
    if verdict.chosen is not None:
        console().print(outcome(verdict))
        for text in verdict.chosen.speed.warnings if verdict.chosen.speed is not None else ():
            console().print(f"profile: {text}")


def _print(made: list[dict[str, Any]], output: Output) -> None:
    if output is Output.YAML:
        import yaml

        typer.echo(yaml.safe_dump_all(made, sort_keys=False, allow_unicode=True), nl=False)
    elif output is Output.JSON:
        import orjson

        print_document(orjson.dumps(made, option=orjson.OPT_INDENT_2).decode(), output)
    else:
        for one in made:
            console().print(f"would apply {one['kind']} {one['metadata']['namespace']}/{one['metadata']['name']}")
