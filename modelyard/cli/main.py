"""The ``modelyard`` command: one file per subject in this folder, put together here.

Nothing heavy is imported before a subcommand runs, so that ``modelyard version`` and ``--help`` answer at once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import typer

from modelyard import __version__
from modelyard.cli import crds, exporter, plan
from modelyard.cli.lazy import LateCommand

app = typer.Typer(
    name="modelyard",
    help="Run large-language-model serving on Kubernetes: right-sized, explained, as Prefect flows.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _late(name: str, text: str) -> None:
    app.command(name, cls=LateCommand.of(f"modelyard.cli.{name}"), help=text)(lambda: None)


def _passed_on(name: str, module: tuple[str, ...], text: str) -> None:
    """A process of its own: what the layers above do uses Prefect, which is not imported here."""

    def run(context: typer.Context) -> None:
        command = [sys.executable, "-m", *module, *context.args]
        raise typer.Exit(subprocess.run(command, check=False).returncode)

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, context_settings=anything, add_help_option=False, help=text)(run)


_late("local", "A small but real cluster on this machine, without containers and without root.")
app.command("plan")(plan.plan)
_late("replay", "Replay recorded traffic against a simulated fleet, policy by policy. No cluster is contacted.")
_passed_on(
    "autoscale",
    ("flows.foreground", "autoscale"),
    "Run the autoscaling flow here, in the foreground; every option is passed on to it.",
)
app.command("exporter")(exporter.exporter)
app.command("crds")(crds.crds)
_passed_on(
    "demo",
    ("deployments.demo.run",),
    "One model, two accelerators, real traffic, scaled by the deployed flow; about five minutes.",
)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point of the console script. Errors of our own are one line that says what to do, not a traceback."""
    try:
        app()
    except Exception as error:
        causes = list(_causes(error))
        if not all(type(cause).__module__.startswith("modelyard.") for cause in causes):
            raise
        for text in dict.fromkeys(str(cause) for cause in causes):
            typer.secho(f"error: {text}", fg=typer.colors.RED, err=True)
        sys.exit(1)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The errors themselves, also of what ran side by side."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _causes(one)
    else:
        yield error


if __name__ == "__main__":
    main()
