"""The ``modelyard`` command without what needs Prefect, which ``deployments.command`` adds.

Its short subcommands are here, the others in a file each in this folder. Nothing heavy is imported before a subcommand
runs, so that ``--version`` and ``--help`` answer at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from modelyard import __version__
from modelyard.cli import convert, plan
from modelyard.cli.options import Context, RunFlow, warn
from modelyard.objects import CONTROLLER_NAMESPACE

OWN = ("modelyard", "tasks", "flows", "deployments")
"""Packages whose errors are meant for people."""

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
        return typer.main.get_command(import_module(self.module).app).make_context(info_name, args, parent, **extra)


def _late(name: str, text: str) -> None:
    cls = type(f"Late_{name}", (LateCommand,), {"module": f"modelyard.cli.{name}"})
    app.command(name, cls=cls, help=text)(lambda: None)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _modelyard(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


_late("local", "A small but real cluster on this machine, without containers and without root.")
_late("models", "Models: their files on the nodes, and why they are where they are.")
app.command("plan")(plan.plan)
app.command("convert")(convert.convert)
_late("runtimes", "Which runtime serves a model, and why each other one does not.")
_late("services", "Services: what they are made of, and why.")
_late("benchmarks", "Benchmarks: measure one run, show results, compare them.")
_late("profile", "Performance profiles: fit one to a benchmark, check what it predicts.")
_late("onboard", "From a model's URI and a target to a service of the right size.")
_late("router", "Send requests for a model name to the best pod, as ModelRoutes and ModelServers say.")
_late("gateway", "ModelRoutes and ModelServers as InferencePools and HTTPRoutes.")
_late("route", "Where requests for a model name go, and why.")
_late("node", "A model's files on this node: fetch, check, remove. For Jobs.")
_late("replay", "Replay recorded traffic against a simulated fleet, policy by policy. No cluster is contacted.")


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
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", envvar="WATCH_NAMESPACE", help="Only this namespace; unset: all.")
    ] = None,
    lease: Annotated[
        list[str] | None,
        typer.Option(
            help="A Lease that keeps writers apart, whose holder is shown; repeat. "
            "Unset: modelyard-autoscale and modelyard-reconcile; '' for none."
        ),
    ] = None,
    lease_namespace: Annotated[str, typer.Option(help="Where these Leases are.")] = CONTROLLER_NAMESPACE,
    context: Context = None,
) -> None:
    """Serve wva_desired_replicas and its companions from the status of the resources, until stopped."""
    from modelyard.autoscaling.live import serve
    from modelyard.cluster import Cluster, ClusterSettings
    from modelyard.objects import Key

    names = ["modelyard-autoscale", "modelyard-reconcile"] if lease is None else lease

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        for stop in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(stop, task.cancel)
        async with Cluster.connect(ClusterSettings()) as cluster:
            leases = [Key(lease_namespace, name) for name in names if name]
            await serve(cluster, host, port, instance=instance, watch_namespace=namespace, leases=leases)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(run())


@app.command()
def crds(
    install: Annotated[bool, typer.Option(help="Apply them to the cluster.")] = False,
    force: Annotated[bool, typer.Option(help="Install them although stored values would be lost.")] = False,
    diff: Annotated[
        bool, typer.Option(help="Show how those of the cluster differ: - would be lost, + new, ~ changed.")
    ] = False,
    context: Context = None,
) -> None:
    """Print the CustomResourceDefinitions as YAML, install them, or compare them with those of a cluster."""
    import yaml

    from modelyard.resources import KINDS, crd

    manifests = [crd(kind) for kind in KINDS.values()]

    async def apply() -> None:
        from modelyard.cluster import Cluster, ClusterSettings, crd_differences, install_crds

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


def main(run_flow: RunFlow | None = None) -> None:
    """Run it; ``run_flow`` is for commands that run a flow, as the domain has no Prefect.

    Errors of our own are a line each that says what to do, not a traceback. Exit codes: ``cli.options``. With
    ``plan --exit-code``, misspelled or not, 2 says that something would change, and nothing else.
    """
    certain = any(one.startswith("--exit") for one in sys.argv)
    try:
        app(obj=run_flow)
    except plan.WouldChange:
        raise
    except SystemExit as end:
        if certain and end.code == 2:
            sys.exit(1)
        raise
    except Exception as error:
        causes = list(_causes(error))
        if not all(type(cause).__module__.partition(".")[0] in OWN for cause in causes):
            raise
        for text in dict.fromkeys(text for cause in causes for text in getattr(cause, "problems", [str(cause)])):
            warn(text, "error")
        sys.exit(1 if certain else max(getattr(cause, "exit_code", 1) for cause in causes))


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _causes(one)
    else:
        yield error


if __name__ == "__main__":
    main()
