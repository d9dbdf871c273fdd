"""`modelyard local`: a whole cluster on this machine, for people. A thin skin over `modelyard.local.stack`."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from modelyard.cli.model_options import options_from
from modelyard.cli.options import Form, Output, UsageError, check_namespaces, faults, grid, print_document
from modelyard.hosts import HostsFile
from modelyard.local import (
    EVERYTHING,
    Component,
    LocalClusterError,
    LocalStack,
    Overview,
    StackSettings,
    collect,
    python_path_environment,
)
from modelyard.local.binaries import SERVERS, ensure, locate
from modelyard.objects import describe_url_problem

app = typer.Typer(
    name="local",
    help="A small but real cluster on this machine: etcd, the Kubernetes servers, GPU nodes with simulated engines, "
    "Prometheus. No containers, no root.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


SAMPLE = Path(__file__).resolve().parents[2] / "config/samples/local/llama.yaml"
"""Engines and what scales them; there in a checkout."""

Name = Annotated[str, typer.Option("--name", help="Instances of different names live side by side.")]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="Folder of the instance. [default: by its name, under MODELYARD_HOME or the XDG state folder]"
    ),
]


def _stack(name: str, directory: Path | None, settings: StackSettings | None = None) -> LocalStack:
    return LocalStack(settings, name=name, directory=directory, bound_to_this_process=False)


def _running(name: str, directory: Path | None) -> LocalStack:
    stack = _stack(name, directory)
    if not stack.running:
        raise LocalClusterError(f"the local cluster {name!r} does not run; start it by `modelyard local up`")
    return stack


@app.command()
def binaries() -> None:
    """Find or obtain every program the local cluster consists of, once, and say where it is."""
    for program, path in ensure(list(SERVERS), typer.echo).items():
        typer.echo(f"{program}: {path}")


@app.command()
@options_from(StackSettings, leave_out=("retention", "extra_args", "binaries"))
def up(
    given: dict[str, Any],
    name: Name = "default",
    directory: Directory = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground; Ctrl-C stops the cluster (its data is kept).")
    ] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds until everything must be ready.")] = 180,
) -> None:
    """Start the cluster and wait until it is ready.

    Programs that are not on this machine (KUBEBUILDER_ASSETS, PATH, cache) are downloaded, or built once where the
    network does not reach their publishers. A running cluster is left as it is.
    """
    console = Console(stderr=True)
    begun = time.monotonic()

    def progress(line: str) -> None:
        console.print(f"[green]•[/] {line} [dim]({time.monotonic() - begun:.1f} s)[/]", highlight=False)

    try:
        settings = StackSettings.model_validate(given)
        stack = _stack(name, directory, settings)
        if foreground:
            stack.prepare(progress)
            _exec_supervisor(stack)
        if stack.running and stack.stored_settings() not in (None, settings):
            console.print(
                "[yellow]This cluster already runs, with other settings than these; "
                "`modelyard local down --keep-data` first to change them.[/]"
            )
        with console.status("starting"):
            stack.start(progress, timeout)
    except ValidationError as error:
        raise LocalClusterError("; ".join(faults(error, StackSettings))) from None
    except ValueError as error:
        raise LocalClusterError(str(error)) from None
    _print_next(stack)


def _exec_supervisor(stack: LocalStack) -> None:
    if stack.running:
        raise LocalClusterError(f"the local cluster {stack.name!r} already runs; `modelyard local status` shows it")
    command = stack.command()
    typer.echo(f"running in the foreground; state and logs in {stack.paths.root}", err=True)
    os.chdir(stack.paths.root)
    os.execve(command[0], command, {**os.environ, **python_path_environment()})


def _print_next(stack: LocalStack) -> None:
    state = stack.state
    components = {} if state is None else state.components
    suffix = "" if stack.name == "default" else f" --name {stack.name}"
    out = Console(highlight=False, soft_wrap=True)
    out.print(f"\nKubernetes  {stack.server}" if Component.APISERVER in components else "")
    if Component.PROMETHEUS in components:
        out.print(f"Prometheus  {stack.prometheus_url}")
    out.print(f"Kubeconfig  {stack.kubeconfig}\n")
    out.print("Next:")
    out.print(f'  export KUBECONFIG="{stack.kubeconfig}"')
    if Component.AGENT in components:
        out.print(f'  export CURL_HOME="{stack.paths.root}"    # curl http://NAME.NAMESPACE.svc:PORT/')
    kubectl = locate("kubectl")
    named = "kubectl" if shutil.which("kubectl") else str(kubectl)
    if kubectl is not None:
        out.print(f"  {named} get nodes,pods -A")
    out.print(f"  modelyard local status{suffix}")
    out.print(f"  modelyard local down{suffix}")
    if set(EVERYTHING) <= components.keys() and kubectl is not None and SAMPLE.is_file():
        sample = SAMPLE.relative_to(Path.cwd()) if SAMPLE.is_relative_to(Path.cwd()) else SAMPLE
        out.print("\nEngines that scale with their load:")
        out.print("  modelyard crds --install")
        out.print(f"  {named} apply -f {sample}")
        out.print('  eval "$(modelyard server --port 4200 --background)"')
        out.print(f"  modelyard autoscale --shift 3600 -n chat --prometheus {stack.prometheus_url} &")
        out.print(f"  modelyard local load{suffix} &")
        out.print(f"  {named} -n chat get va -o wide --watch")


@app.command()
def status(name: Name = "default", directory: Directory = None, output: Form = Output.TABLE) -> None:
    """Show components, nodes and pods. The exit code is 0 only if all components and nodes are ready."""
    overview = collect(_stack(name, directory))
    if output is not Output.TABLE:
        print_document(overview.model_dump_json(indent=2), output)
    else:
        # Where nobody looks at it (a file, a pipe), nothing is folded to a screen's width.
        _print_overview(overview, Console(highlight=False, width=None if sys.stdout.isatty() else 200))
    if not overview.healthy:
        raise typer.Exit(1)


def _print_overview(overview: Overview, console: Console) -> None:
    healthy = "[green]healthy[/]" if overview.healthy else "[red]not healthy[/]"
    console.print(f"Local cluster [bold]{overview.name}[/]: {overview.phase}, {healthy}")
    if overview.message:
        console.print(overview.message, markup=False)
    if overview.phase == "absent":
        console.print("Start it by: modelyard local up")
        return
    _table(
        console,
        ["component", "version", "state", "pid", "restarts", "address", "memory", "last exit"],
        [
            [
                *(r.name, r.version, r.phase, r.pid, r.restarts, r.address),
                None if r.memory_bytes is None else f"{r.memory_bytes / 1024**2:.0f} MiB",
                r.last_exit,
            ]
            for r in overview.components
        ],
    )
    if overview.problem:
        console.print(overview.problem, style="red", markup=False)
    if overview.nodes:
        rows = [
            [n.name, "ready" if n.ready else "not ready", n.product, f"{n.gpus_allocated} of {n.gpus}"]
            for n in overview.nodes
        ]
        _table(console, ["node", "state", "accelerator", "GPUs allocated"], rows)
    if overview.pods:
        _table(
            console,
            ["namespace", "pod", "phase", "ready", "restarts", "node", "address", "GPUs", "reason"],
            [
                [p.namespace, p.name, p.phase, p.ready, p.restarts, p.node, p.address, p.gpus, p.reason]
                for p in overview.pods
            ],
        )
    for line in overview.services:
        console.print(f"Service {line}", style="red", markup=False)
    if overview.events:
        console.print("Latest events:")
        for event in overview.events[-8:]:
            console.print(f"  {event.at:%H:%M:%S} {event.component}: {event.message}", markup=False)
    console.print(f"Kubeconfig {overview.kubeconfig}", soft_wrap=True)
    console.print(f"Logs       {overview.directory}/logs", soft_wrap=True)


def _table(console: Console, columns: list[str], rows: list[list[Any]]) -> None:
    table = grid(*columns)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    console.print(table)
    console.print()


@app.command()
def load(
    name: Name = "default",
    directory: Directory = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Where the engines are.")] = "chat",
    model: Annotated[str, typer.Option("--model", help="What they serve.")] = "meta-llama/Llama-3.1-8B-Instruct",
    rate: Annotated[float, typer.Option("--rate", help="Requests per second.")] = 4.0,
    minutes: Annotated[float, typer.Option("--minutes", help="For how long.")] = 5.0,
    prompt_tokens: Annotated[float, typer.Option(min=1, help="Mean prompt tokens of a request.")] = 800,
    output_tokens: Annotated[float, typer.Option(min=1, help="Mean output tokens.")] = 200,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Of every engine.")] = 8000,
) -> None:
    """Send requests to the ready engines of a namespace. The exit code is 0 only if all were answered."""
    from modelyard.cluster import Cluster, ClusterSettings
    from modelyard.local import ReadyPods, serve
    from modelyard.objects import PODS
    from modelyard.traffic.traces import from_rates

    stack = _running(name, directory)
    if not (rate > 0 and minutes > 0):
        raise LocalClusterError(f"--rate and --minutes must be above 0, not {rate:g} and {minutes:g}")
    trace = from_rates([0.0, minutes * 60], [rate], prompt_tokens, output_tokens)

    async def send() -> bool:
        async with Cluster.connect(ClusterSettings(kubeconfig=stack.kubeconfig)) as cluster:
            await check_namespaces(cluster, [namespace])
            if not await cluster.list(PODS, namespace):
                raise LocalClusterError(
                    f"namespace {namespace} has no pods to send requests to; `kubectl apply` engines, or name another "
                    "namespace with -n"
                )
            seen = await serve(cluster, ReadyPods(namespace, port), model, trace, typer.echo)
        times = f"TTFT p50 {seen.ttft.p50:.2f}, p95 {seen.ttft.p95:.2f} s; ITL p50 {seen.itl.p50:.3f} s"
        typer.echo(f"{seen.answered} of {seen.requests} requests answered; {times}")
        return seen.answered == seen.requests

    if not asyncio.run(send()):
        raise typer.Exit(1)


@app.command()
def router(
    name: Name = "default",
    directory: Directory = None,
    replicas: Annotated[int, typer.Option("--replicas", min=0, help="Router pods.")] = 1,
    arguments: Annotated[
        list[str] | None, typer.Option("--arg", help="A further argument of `modelyard router` (repeat).")
    ] = None,
) -> None:
    """Run a router on the cluster: requests for the names of ModelRoutes go to the pods of their ModelServers."""
    from modelyard.cluster import Cluster, ClusterSettings
    from modelyard.local import ADDRESS, install

    stack = _running(name, directory)

    async def apply() -> str:
        async with Cluster.connect(ClusterSettings(kubeconfig=stack.kubeconfig)) as cluster:
            return await install(cluster, replicas, arguments or ())

    url = asyncio.run(apply())
    typer.echo(f'export CURL_HOME="{stack.paths.root}"')
    typer.echo(f"curl {ADDRESS}/v1/models")
    typer.echo(f"export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=none    # clients that cannot resolve that name")


@app.command()
def address(
    url: Annotated[str, typer.Argument(help="URL of a Service, such as http://chat.shop.svc.cluster.local:8080.")],
    name: Name = "default",
    directory: Directory = None,
) -> None:
    """Print a Service's URL with its address in place of its name, for clients that cannot resolve it."""
    stack = _stack(name, directory)
    if problem := describe_url_problem(url):
        raise UsageError(problem)
    located = HostsFile(stack.paths.root / "hosts").located(url)
    if located == url:
        raise LocalClusterError(
            f"no Service of the local cluster {name!r} has the name in {url}; `kubectl get services -A` lists them"
        )
    typer.echo(located)


@app.command()
def down(
    name: Name = "default",
    directory: Directory = None,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Keep objects, metrics and logs for the next `up`.")
    ] = False,
) -> None:
    """Stop everything in order and remove the cluster; also cleans up after a killed supervisor."""
    console = Console(stderr=True)
    stack = _stack(name, directory)
    if stack.state is None and not stack.running:
        typer.echo(f"there is no local cluster {name!r} in {stack.paths.root}")
        return
    with console.status("stopping"):
        stack.stop(lambda line: console.print(f"[green]•[/] {line}", highlight=False), keep_data=keep_data)
    typer.echo(f"stopped; data kept in {stack.paths.root}" if keep_data else f"stopped; removed {stack.paths.root}")


@app.command()
def kubeconfig(
    name: Name = "default",
    directory: Directory = None,
    content: Annotated[bool, typer.Option("--content", help="Print the file itself instead of its path.")] = False,
) -> None:
    """Print the path of the administrator's kubeconfig: `export KUBECONFIG=$(modelyard local kubeconfig)`."""
    stack = _stack(name, directory)
    if not stack.kubeconfig.is_file():
        raise LocalClusterError(f"no local cluster {name!r} in {stack.paths.root}; start it by `modelyard local up`")
    typer.echo(stack.kubeconfig.read_text(encoding="utf-8") if content else str(stack.kubeconfig))


@app.command()
def logs(
    what: Annotated[str, typer.Argument(help="A component, `supervisor`, or a pod as NAMESPACE/NAME or NAME.")],
    name: Name = "default",
    directory: Directory = None,
    lines: Annotated[int, typer.Option("--lines", min=1, help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing what is added.")] = False,
) -> None:
    """Print the output of a component or of a pod's containers."""
    paths = _log_files(_stack(name, directory), what)
    command = ["tail", "-n", str(lines), *(["-F"] if follow else []), *map(str, paths)]
    sys.stdout.flush()
    os.execvp(command[0], command)


def _log_files(stack: LocalStack, what: str) -> list[Path]:
    if what in {"supervisor", *Component}:
        candidates = [stack.paths.log(what)]
    else:
        namespace, _, pod = what.rpartition("/")
        candidates = sorted((stack.paths.logs / "pods").glob(f"{namespace or '*'}_{pod}_*/*.log"))
    found = [path for path in candidates if path.is_file()]
    if not found:
        raise LocalClusterError(
            f"no log of {what!r} in {stack.paths.logs}; components are {', '.join(Component)}, pods are in `status`"
        )
    return found
