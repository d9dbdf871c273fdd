"""`modelyard gateway`: ModelRoutes and ModelServers as the kinds of a cluster that runs an inference gateway."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from modelyard.cli.options import Context, Controller, Files, Namespaces, UsageError, check_namespaces, warn
from modelyard.objects import CONTROLLER_NAMESPACE

app = typer.Typer(add_completion=False)


@app.command()
def gateway(
    name: Annotated[str, typer.Option("--gateway", help="The Gateway that routes attach to: NAME or NAMESPACE/NAME.")],
    files: Files = None,
    picker: Annotated[str, typer.Option(help="Service of the endpoint picker, in every pool's namespace.")] = (
        "modelyard-router"
    ),
    picker_port: Annotated[int, typer.Option(min=1, max=65535, help="Its port.")] = 9002,
    rewrites: Annotated[
        bool,
        typer.Option(help="The picker leaves the model's name in the body as it is: print InferenceModelRewrites too."),
    ] = False,
    namespace: Namespaces = None,
    controller_namespace: Controller = CONTROLLER_NAMESPACE,
    context: Context = None,
) -> None:
    """Print InferencePools and HTTPRoutes that say the same; what they cannot say goes to standard error."""
    import yaml

    from modelyard.autoscaling.configuration import documents
    from modelyard.routing import ROUTES, SERVERS, Gateway, Route, RouteTable, Server, render, route, server

    table: RouteTable | None = None
    routes: list[Route]
    servers: list[Server]
    if files:
        found = [one for path in files for one in documents(path, "give a manifest with -f")]
        kept = [one for one in found if isinstance(one, dict) and one.get("kind") in (ROUTES.kind, SERVERS.kind)]
        for one in kept:
            if not isinstance((one.get("metadata") or {}).get("name"), str):
                raise UsageError(f"-f: a {one['kind']} without metadata.name")
            one["metadata"].setdefault("namespace", "default")
        inside = [one for one in kept if not namespace or one["metadata"]["namespace"] in namespace]
        routes = [route(one) for one in inside if one["kind"] == ROUTES.kind]
        servers = [server(one) for one in inside if one["kind"] == SERVERS.kind]
    else:
        routes, servers, table = asyncio.run(_cluster(namespace or [], controller_namespace))
    space, _, short = name.rpartition("/")
    to = Gateway(short, space, picker, picker_port, rewrites)
    made = render(routes, {one.key: one for one in servers}, to, table)
    for what, why in made.remarks:
        warn(f"{what}: {why}")
    typer.echo(yaml.safe_dump_all(made.objects, sort_keys=False), nl=False)


async def _cluster(namespaces: list[str], home: str) -> Any:
    from modelyard.cluster import Cluster, ClusterSettings
    from modelyard.router.process import look
    from modelyard.routing import RoutedFleet

    fleet = RoutedFleet()
    async with Cluster.connect(ClusterSettings()) as cluster:
        await check_namespaces(cluster, namespaces)
        await look(cluster, fleet, namespaces, home)
    return list(fleet.routes.values()), [backend.server for backend in fleet.backends.values()], fleet.table
