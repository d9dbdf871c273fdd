"""``modelyard models``: which there are and how far their files are, new ones by URI, and why one is as it is."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.text import Text

from modelyard.cli import options
from modelyard.cli.options import PAIR, Context, Controller, UsageError, pairs
from modelyard.objects import CONTROLLER_NAMESPACE

app = typer.Typer(help="Models: their files on the nodes, and why they are where they are.", add_completion=False)

Namespace = Annotated[str, typer.Option("-n", "--namespace", help="Of BaseModels; without it, cluster-scoped models.")]
COLOURS = {"Ready": "green", "Failed": "red"}


class ModelNotReady(RuntimeError):
    """A model that is waited for has failed; the message says why."""


@app.callback(invoke_without_command=True)
def models(typed: typer.Context, namespace: Namespace = "", context: Context = None) -> None:
    """All models, one a line: state, nodes, size, and how far a transfer is."""
    if typed.invoked_subcommand is None:
        asyncio.run(_list(namespace))


@app.command()
def add(
    uri: Annotated[str, typer.Argument(help="Where the files are, such as hf://OWNER/NAME or s3://BUCKET/PREFIX.")],
    name: Annotated[str, typer.Option(help="Name of the model; else the last part of the URI.")] = "",
    namespace: Namespace = "",
    node_selector: Annotated[
        list[str] | None, typer.Option(metavar=PAIR, help="Label that a node must carry to receive it; repeat.")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar=PAIR, help="Entry of spec.storage.parameters, such as endpoint=URL; repeat."),
    ] = None,
    key: Annotated[
        str, typer.Option(help="Secret with the source's credentials: in its namespace, else in the controller's.")
    ] = "",
    wait: Annotated[bool, typer.Option(help="Wait until it is ready, and tell how far it is.")] = False,
    context: Context = None,
) -> None:
    """Make a model of this URI; its files then come onto the nodes."""
    from modelyard.models.storage import parse, source_uri, storage_parameters

    parsed = parse(uri)
    labels, parameters = pairs("--node-selector", node_selector), pairs("--parameter", parameter)
    for text in storage_parameters.warnings(source_uri(uri, parameters), parameters):
        options.warn(text)
    asyncio.run(_add(uri, name or name_of(str(parsed)), namespace, labels, parameters, key, wait))


@app.command()
def why(
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    namespace: Namespace = "",
    controller_namespace: Controller = CONTROLLER_NAMESPACE,
    context: Context = None,
) -> None:
    """Explain why the model is as it is: its conditions, every node, what happens next. Exit code 1: it is refused."""
    if not asyncio.run(_why(name, namespace, controller_namespace)):
        raise typer.Exit(1)


UNDELIVERED = (
    "not seen by the flow reconcile yet; `modelyard worker` runs it, once `modelyard bootstrap` has deployed it"
)
"""The remark on a model without any condition."""


def name_of(uri: str) -> str:
    """A name for a model of this URI: its last part, as Kubernetes takes it."""
    last = uri.split("://", 1)[-1].rpartition("@")[0] or uri.split("://", 1)[-1]
    found = re.sub(r"[^a-z0-9]+", "-", last.rstrip("/").rpartition("/")[2].lower()).strip("-")
    if not found:
        raise UsageError(f"{uri!r} gives no name: say --name")
    return found[:63].strip("-")


def _state(text: str) -> Text:
    return Text(text, COLOURS.get(text, ""))


async def _list(namespace: str) -> None:
    from modelyard.cluster import Cluster, ClusterSettings
    from modelyard.models.delivery import KINDS

    table = options.grid("KIND", "NAME", "STATE", "NODES", "SIZE", "PROGRESS", "WHY")
    async with Cluster.connect(ClusterSettings()) as cluster:
        await options.check_namespaces(cluster, [namespace])
        for kind in KINDS:
            if namespace and not kind.namespaced:
                continue
            for obj in await cluster.list(kind, namespace or None):
                metadata, status = obj["metadata"], obj.get("status") or {}
                place = metadata.get("namespace")
                name = f"{place}/{metadata['name']}" if place else metadata["name"]
                table.add_row(kind.kind, name, *columns_of(status))
    options.console().print(table if table.row_count else "There are no models. Add one: modelyard models add URI")


def columns_of(status: dict[str, Any]) -> Iterable[Text | str]:
    """Return state, nodes, size, progress and remarks of a model's status, as the list shows them."""
    from modelyard.objects import amount, condition, printable

    delivery = status.get("delivery") or {}
    ready = condition(status, "Ready")
    selected = delivery.get("selected")
    percents = [one["percent"] for one in delivery.get("nodes") or () if one.get("percent") is not None]
    size = delivery.get("bytes")
    yield _state(status.get("state") or "Creating")
    yield f"{delivery.get('ready', 0)}/{selected}" if selected is not None else ""
    yield amount(size) if size else ""
    yield f"{min(percents)} %" if percents else ""
    warnings = [one.get("message") for one in status.get("conditions") or () if one.get("type") == "SpecWarning"]
    problem = "" if ready.get("status") == "True" else f"{ready.get('reason', '')}: {ready.get('message', '')}"
    if not status.get("conditions"):
        problem = UNDELIVERED
    yield "; ".join(printable(str(text)) for text in (problem.strip(": "), *warnings, delivery.get("weights")) if text)


async def _add(
    uri: str, name: str, namespace: str, labels: dict[str, str], parameters: dict[str, str], secret: str, wait: bool
) -> None:
    from modelyard.cluster import Cluster, ClusterSettings
    from modelyard.models.delivery import base_models
    from modelyard.models.execution import read_state, request_model, request_retry
    from modelyard.objects import Key

    kind, key = base_models(namespace), Key(namespace, name)
    async with Cluster.connect(ClusterSettings()) as cluster:
        request = await request_model(cluster, kind, key, uri, labels, parameters, secret)
        if request.failed_before:
            await request_retry(cluster, kind, key)
        typer.echo(f"{kind.kind} {name}: {uri}")
        said = ""
        while wait:
            ended = await read_state(cluster, kind, key, request)
            text = f"{ended.state}: {ended.message or ended.reason}"
            if text != said:
                said = text
                typer.echo(f"  {text}")
            if ended.state == "Ready":
                return
            if ended.state in ("Failed", "Gone"):
                raise ModelNotReady(f"{kind.kind} {name} is not ready: {ended.reason}: {ended.message}")
            await asyncio.sleep(1)


async def _why(name: str, namespace: str, home: str) -> bool:
    """Print it; whether it can be delivered at all."""
    from modelyard.cluster import Cluster, ClusterSettings
    from modelyard.models.delivery import BASE_MODELS, CLUSTER_BASE_MODELS, FINE_TUNED_WEIGHTS, RESOLVED, ModelDelivery
    from modelyard.models.execution import NoSuchModel
    from modelyard.objects import NODES, Key
    from modelyard.reconcile.kernel import Mirror

    console, key = options.console(), Key(namespace, name)
    async with Cluster.connect(ClusterSettings()) as cluster, Mirror(cluster) as mirror:
        await options.check_namespaces(cluster, [namespace])
        await mirror.begin()
        for kind in (BASE_MODELS,) if namespace else (CLUSTER_BASE_MODELS, FINE_TUNED_WEIGHTS):
            delivery = ModelDelivery(kind, home)
            world = {want.called or want.kind: await mirror.read(want, want.spaces(())) for want in delivery.wants}
            if (model := world[kind].get(key)) is not None:
                break
        else:
            where = f"in namespace {namespace}" if namespace else "at cluster scope"
            remedy = "`modelyard models` lists those that there are; one of another namespace is named with -n"
            raise NoSuchModel(f"there is no model {name} {where}: {remedy}")
        plan = delivery.plan(key, world, time.time())
        console.print(f"{kind.kind} {name}: {model.status.get('state', 'Creating')}")
        told = list(model.status["conditions"])
        if not told:
            console.print(f"  {UNDELIVERED}")
        for one in told:
            console.print(f"  {one.get('type')} {one.get('status')}: {one.get('reason')}: {one.get('message')}")
        parts = {leg.node: leg for leg in (plan.details if plan is not None else None) or ()}
        table = options.grid("NODE", "STATE", "REASON", "WHY")
        for node in world[NODES].all():
            leg = parts.get(node.name)
            if leg is None:
                table.add_row(node.name, "", "NotChosen", delivery.not_chosen(model, node, world))
            else:
                table.add_row(node.name, _state(str(leg.stage)), leg.reason, leg.message)
        console.print(table)
        console.print(f"pods that wait for it: {plan.urgency if plan is not None else 0}")
        if plan is not None and plan.due is not None:
            console.print(f"tried again in {max(0.0, plan.due - time.time()):.0f} s")
        # What the next status says, else what the stored one does.
        now = plan.status.conditions if plan is not None and plan.status is not None else ()
        resolved = {str(one.get("type")): str(one.get("status")) for one in told}
        resolved |= {one.type: str(one.status) for one in now}
        return resolved.get(RESOLVED) != "False"
