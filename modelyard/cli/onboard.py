"""``modelyard onboard``: from a model's URI and a target to a service of the right size, or what it would apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelyard.cli.model_options import options_from, parse_options
from modelyard.cli.options import Context, Form, Output, RunFlow, UsageError, console, grid, print_document, warn
from modelyard.onboarding import OnboardInput, OnboardRequest

if TYPE_CHECKING:
    from modelyard.benchmarks.records import MeasuredRun
    from modelyard.onboarding.planning import CandidateChoice

app = typer.Typer(add_completion=False)


class NothingChosen(ValueError):
    """No candidate can be chosen; the message says why and what could be."""


@app.command()
@options_from(OnboardInput, arguments=("uri",))
def onboard(
    given: dict[str, Any],
    typed: typer.Context,
    measured: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUNTIME=SOURCE",
            help="With --dry-run: results to choose by, a file, folder, URI or BenchmarkJob (NAMESPACE/NAME); repeat.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be applied.")] = False,
    output: Form = Output.TABLE,
    context: Context = None,
) -> None:
    """Bring a model to a service of the right size, here, in the foreground, recorded by the Prefect server at
    PREFECT_API_URL. With --dry-run print what finds out how fast each candidate is, with --measured what is chosen.
    """
    if dry_run:
        if "trace" in given or "service_class" in given:
            raise UsageError("--dry-run reads no trace and no service class: give load and targets in numbers")
        if "prices" in given and "candidates" not in given:
            raise UsageError("--dry-run does not see which runtimes there are: name them, --candidate for --price")
        given.pop("check_seconds", None)
        _print_plan(parse_options(OnboardRequest, given), measured, output)
        return
    if measured or output is not Output.TABLE:
        raise UsageError("--measured, --output: are for --dry-run")
    run_flow: RunFlow | None = typed.obj
    if run_flow is None:
        raise UsageError("there is nothing here that runs flows: give --dry-run")
    if "trace" in given:
        given["trace"] = str(given["trace"].resolve())
    run_flow("onboard", parse_options(OnboardInput, given).model_dump(mode="json", exclude_unset=True))


def _print_plan(asked: OnboardRequest, measured: list[str] | None, output: Output) -> None:
    from modelyard.onboarding.planning import base_model, benchmarks, certainty, choose, chosen, probe

    if not measured:
        made = [base_model(asked)]
        made += [obj for each in asked.candidates for obj in (probe(asked, each), benchmarks(asked, each)[0])]
        _print(made, output)
        return
    runs = _runs(asked, measured)
    verdict = choose(asked, runs)
    if output is Output.TABLE:
        _table(verdict)
        for runtime, usable in runs.items():
            console().print(f"{runtime}: {certainty(asked, usable)}")
    if verdict.chosen is None:
        raise NothingChosen(verdict.problem)
    _print([base_model(asked), *chosen(asked, verdict.chosen)], output)


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
    from modelyard.onboarding.planning import COLUMNS, outcome, row

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
