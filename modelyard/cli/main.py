"""The ``modelyard`` command: its short subcommands, and the others from a file each in this folder.

Nothing heavy is imported before a subcommand runs, so that ``modelyard version`` and ``--help`` answer at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from modelyard import __version__
from modelyard.cli import convert, plan

app = typer.Typer(
    name="modelyard",
    help="Run large-language-model serving on Kubernetes: right-sized, explained, as Prefect flows.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class LateCommand(TyperCommand):
    """Stands for the ``app`` of a module that is imported only when it is wanted."""

    module: ClassVar[str]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """That of the real command, which is what then runs."""
        real = typer.main.get_command(import_module(self.module).app)
        return real.make_context(info_name, args, parent, **extra)


def _late(name: str, text: str) -> None:
    cls = type(f"Late_{name}", (LateCommand,), {"module": f"modelyard.cli.{name}"})
    app.command(name, cls=cls, help=text)(lambda: None)


def _passed_on(name: str, module: tuple[str, ...], text: str) -> None:
    """A process of its own: what the layers above do uses Prefect, which is not imported here."""

    def run(context: typer.Context) -> None:
        command = [sys.executable, "-m", *module, *context.args]
        raise typer.Exit(subprocess.run(command, check=False).returncode)

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, context_settings=anything, add_help_option=False, help=text)(run)


_late("local", "A small but real cluster on this machine, without containers and without root.")
app.command("plan")(plan.plan)
app.command("convert")(convert.convert)
_late("replay", "Replay recorded traffic against a simulated fleet, policy by policy. No cluster is contacted.")
_passed_on(
    "autoscale",
    ("flows.foreground", "autoscale"),
    "Run the autoscaling flow here, in the foreground; every option is passed on to it.",
)


@app.command()
def exporter(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8443,
    instance: Annotated[
        str | None,
        typer.Option(
            envvar="CONTROLLER_INSTANCE",
            help="Only resources labelled wva.llmd.ai/controller-instance with this value; unset: unlabelled ones.",
        ),
    ] = None,
    watch_namespace: Annotated[
        str | None, typer.Option(envvar="WATCH_NAMESPACE", help="Only this namespace; unset: all.")
    ] = None,
) -> None:
    """Serve wva_desired_replicas and its companions from the status of the resources, until stopped."""
    from modelyard.autoscaling.live.exporter import serve
    from modelyard.cluster import Cluster, ClusterSettings

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        for stop in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(stop, task.cancel)
        async with Cluster.connect(ClusterSettings()) as cluster:
            await serve(cluster, host, port, instance=instance, watch_namespace=watch_namespace)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(run())


@app.command()
def crds(
    install: Annotated[bool, typer.Option(help="Apply them to the cluster of the current kubeconfig.")] = False,
    force: Annotated[bool, typer.Option(help="Install them although stored values would be lost.")] = False,
    diff: Annotated[
        bool, typer.Option(help="Show how those of the cluster differ: - would be lost, + new, ~ changed.")
    ] = False,
) -> None:
    """Print the CustomResourceDefinitions as YAML, install them, or compare them with those of a cluster."""
    import yaml

    from modelyard.resources import KINDS
    from modelyard.resources.crd import crd

    manifests = [crd(kind) for kind in KINDS.values()]

    async def apply() -> None:
        from modelyard.cluster import Cluster, ClusterSettings
        from modelyard.cluster.crd_install import crd_differences, install_crds

        async with Cluster.connect(ClusterSettings()) as cluster:
            if diff:
                for name, found in (await crd_differences(cluster, manifests)).items():
                    typer.echo("\n".join((name, *(f"  {one}" for one in (*found,) or ("the same",)))))
            if install:
                for name in await install_crds(cluster, manifests, force=force):
                    typer.echo(f"customresourcedefinition/{name} installed")

    if install or diff:
        asyncio.run(apply())
    else:
        typer.echo(yaml.safe_dump_all(manifests, sort_keys=False), nl=False)


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
