"""``modelyard services``: list services, explain one, or render its objects. ``render`` contacts no cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelyard.cli import options
from modelyard.cli.options import Context, Controller, Output, UsageError, print_document, warn
from modelyard.objects import CONTROLLER_NAMESPACE, HPA_VERSIONS, PDB_VERSIONS

if TYPE_CHECKING:
    from modelyard.autoscaling.offline import Manifest
    from modelyard.reconcile.plans import Plan
    from modelyard.workloads.rendering import Refused, Rendered
    from modelyard.workloads.roll_out import Resolved, Standing

app = typer.Typer(help="Services: what they are made of, and why.", add_completion=False)
_ALWAYS = (
    "networking.k8s.io/v1/Ingress",
    "networking.volcano.sh/v1alpha1/ModelServer",
    "networking.volcano.sh/v1alpha1/ModelRoute",
)
CURRENT, BEFORE_1_21 = (
    (f"{hpa}/HorizontalPodAutoscaler", f"{pdb}/PodDisruptionBudget", *_ALWAYS)
    for hpa, pdb in zip(HPA_VERSIONS, PDB_VERSIONS, strict=True)
)
"""What Kubernetes itself serves, of the kinds that differ between servers, and our own that services are made of."""


Namespace = Annotated[str, typer.Option("-n", "--namespace", help="Only of this namespace; without it, all.")]


@app.callback(invoke_without_command=True)
def services(
    typed: typer.Context,
    namespace: Namespace = "",
    controller_namespace: Controller = CONTROLLER_NAMESPACE,
    context: Context = None,
) -> None:
    """All InferenceServices and Models, one a line: model, runtime, pods, where they answer, and what is missing."""
    if typed.invoked_subcommand is None:
        asyncio.run(list_services(namespace, controller_namespace))


@app.command()
def why(
    name: Annotated[str, typer.Argument(help="Name of the service.")],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Its namespace.")] = "default",
    controller_namespace: Controller = CONTROLLER_NAMESPACE,
    context: Context = None,
) -> None:
    """Explain why a service is as it is: model, runtime, components, pods. Exit code 1: it is refused."""
    if not asyncio.run(why_service(name, namespace, controller_namespace)):
        raise typer.Exit(1)


async def _look(namespace: str, home: str) -> list[tuple[Plan, Standing]]:
    from modelyard.cluster import Cluster, ClusterSettings, UnknownKind
    from modelyard.reconcile.kernel import look
    from modelyard.workloads.kthena import ModelRollOut
    from modelyard.workloads.roll_out import ServiceRollOut

    found = []
    async with Cluster.connect(ClusterSettings()) as cluster:
        await options.check_namespaces(cluster, [namespace])
        for lifecycle in (ServiceRollOut(home), ModelRollOut(home)):
            try:
                plans = await look(cluster, lifecycle, [namespace] if namespace else [])
            except UnknownKind:
                continue  # such services are not served here
            found += [(plan, plan.details) for plan in plans.values()]
    return sorted(found, key=lambda one: (one[0].subject.key, one[0].subject.kind.kind))


def _made_of(here: Standing) -> tuple[str, str]:
    from modelyard.resources import Model

    resource, runtime = here.service.resource, here.resolved.runtime
    if isinstance(resource, Model):
        return resource.spec.name or resource.name, ", ".join(one.type for one in resource.spec.backends)
    return here.resolved.named.model, runtime.choice.name if runtime is not None else ""


async def list_services(namespace: str, home: str) -> None:
    """Print all services of a namespace, of all without one."""
    table = options.grid("NAMESPACE", "KIND", "NAME", "MODEL", "RUNTIME", "PODS", "READY", "URL", "WHY")
    for plan, here in await _look(namespace, home):
        states, subject = here.states.values(), plan.subject
        pods = f"{sum(one.ready_pods for one in states)}/{sum(one.wanted for one in states)}"
        url = getattr(here.result, "url", "") or str(here.service.status.get("url") or "")
        stored = {one.get("type"): one.get("status") for one in here.service.status["conditions"]}
        ready = str(stored.get("Ready") or stored.get("Active") or "Unknown")
        told = "" if here.answers and here.problem is None and not plan.awaits and not plan.deeds else plan.message
        table.add_row(
            subject.key.namespace, subject.kind.kind, subject.key.name, *_made_of(here), pods, ready, url, told
        )
    options.console().print(table if table.row_count else "There are no services. docs/services.md has one to apply")


class NoSuchService(ValueError):
    """There is no service of this name; the message says where it was looked for, and what to do."""


async def why_service(name: str, namespace: str, home: str) -> bool:
    """Print one service on one screen; whether none of this name is refused. Raises ``NoSuchService``."""
    found = [one for one in await _look(namespace, home) if one[0].subject.key.name == name]
    if not found:
        raise NoSuchService(
            f"there is no service {name} in namespace {namespace}, or it is being deleted: `modelyard services` lists "
            "those that there are; one of another namespace is named with -n"
        )
    for plan, here in found:
        _explain(plan, here)
    return all(here.problem is None for _, here in found)


def _explain(plan: Plan, here: Standing) -> None:
    console, found = options.console(), here.resolved
    console.print(f"{plan.subject.ref}: {getattr(here.result, 'url', '')}".rstrip(": "))
    for one in here.service.status["conditions"]:
        console.print(f"  {one.get('type')} {one.get('status')}: {one.get('reason')}: {one.get('message')}")
    for one in filter(None, (found.model, *found.weights)):
        ref = one.served.stored.subject.ref
        console.print(f"model: {ref}: {one.state or 'not delivered yet'}: {one.words}")
    if found.runtime is not None:
        console.print(f"runtime: {found.runtime.kind} {found.runtime.choice.name}")
    if here.problem is not None:
        console.print(f"refused: {here.problem.reason}: {here.problem}")
    table = options.grid("COMPONENT", "MODE", "POD", "NODE", "READY", "RESTARTS", "WHY")
    for state in here.states.values():
        for pod in state.pods:
            why = pod.trouble.message if pod.trouble is not None else ""
            table.add_row(state.kind, state.mode, pod.key.name, pod.node, str(pod.ready), str(pod.restarts), why)
        if not state.pods:
            table.add_row(state.kind, state.mode, "", "", "", "", state.message)
    console.print(table)
    for line in here.differences(plan):
        console.print(f"to be done: {line}")
    for line in plan.awaits:
        console.print(f"awaited: {line}")


@app.command("render")
def render_services(
    files: Annotated[
        list[Path],
        typer.Option(
            "-f",
            "--filename",
            help="Manifest file or folder, '-' for standard input; repeat: services, models, runtimes, ConfigMap"
            " inferenceservice-config, Namespaces, CustomResourceDefinitions of what the cluster serves beside.",
        ),
    ],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only the services of this namespace.")] = "",
    old: Annotated[bool, typer.Option("--before-1-21", help="For a server older than Kubernetes 1.21.")] = False,
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print.")] = Output.TABLE,
) -> None:
    """Print what InferenceServices and Models are made of, or why they are refused. Exit code 1: one was refused."""
    from modelyard.autoscaling.offline import read_manifests
    from modelyard.workloads.rendering import Refused

    found = read_manifests(files)
    kinds = ("ome.io", "InferenceService"), ("registry.volcano.sh", "Model")
    services = [one for one in found if (one.group, one.kind) in kinds and namespace in ("", one.key.namespace)]
    if not services:
        where = f" in namespace {namespace}" if namespace else ""
        raise UsageError(f"no InferenceService and no Model{where} in these files - give its manifest with -f")
    _warn_of_settings(found)
    warn_of_fields(found)
    results = [(service, outcome(service, found, BEFORE_1_21 if old else CURRENT)) for service in services]
    if output is Output.TABLE:
        for service, result in results:
            _print(service, result)
    else:
        made = [child.body for _, done in results if not isinstance(done, Refused) for child in done.children]
        print_document(json.dumps({"apiVersion": "v1", "kind": "List", "items": made}, indent=2), output)
    for service, result in results:
        if isinstance(result, Refused):
            warn(f"{service}: {result.reason}: {result}", "error")
    if any(isinstance(result, Refused) for _, result in results):
        raise typer.Exit(1)


def outcome(service: Manifest, found: Sequence[Manifest], kubernetes: Sequence[str] = CURRENT) -> Rendered | Refused:
    """Return what comes of a service among manifests, by the lifecycle that a cluster would have it from."""
    from modelyard.cli.worlds import world_for
    from modelyard.workloads.kthena import ModelRollOut
    from modelyard.workloads.rendering import refused
    from modelyard.workloads.roll_out import RollOut, ServiceRollOut

    lifecycle: RollOut = (
        ModelRollOut(CONTROLLER_NAMESPACE) if service.kind == "Model" else ServiceRollOut(CONTROLLER_NAMESPACE)
    )
    world = world_for(lifecycle, [manifest.body for manifest in found], served_kinds(found, kubernetes))
    stored = world[lifecycle.about].get(service.key)
    if stored is None:
        return refused("metadata", "cannot be read", f"correct it in {service.where}")
    resolved = lifecycle.resolve(stored, world)
    return _mistaken(service, resolved, found) or lifecycle.rendered(stored, resolved, world)


def _mistaken(service: Manifest, resolved: Resolved, found: Iterable[Manifest]) -> Refused | None:
    """Return what is wrong with the files that a service is made of: in a file an unknown field is a mistake."""
    from modelyard.resources import ResourceInvalid, parse
    from modelyard.workloads.rendering import Refused

    if service.kind != "InferenceService":
        return None
    used = {(service.kind, service.key.name)}
    used |= {(offer.served.stored.subject.kind.kind, offer.served.name) for offer in resolved.weights}
    if resolved.model is not None:
        used.add((resolved.model.served.stored.subject.kind.kind, resolved.model.served.name))
    if resolved.runtime is not None:
        used.add((resolved.runtime.kind, resolved.runtime.choice.name))
    for manifest in found:
        near = manifest.key.namespace == service.key.namespace or not manifest.kind.startswith(("Base", "Serving"))
        if manifest.group == "ome.io" and (manifest.kind, manifest.key.name) in used and near:
            try:
                parse(manifest.body)
            except ResourceInvalid as error:
                field, problem = error.problems[0]
                return Refused("InvalidSpec", field, problem, f"correct it in {manifest.where}")
    return None


def warn_of_fields(manifests: Iterable[Manifest]) -> None:
    """Warn of fields without effect, as the condition SpecWarning does in a cluster."""
    from modelyard.resources.field_effects import warning_of

    for manifest in manifests:
        if text := warning_of(manifest.group, manifest.kind, manifest.body):
            warn(f"{manifest}: {text}")


def _warn_of_settings(found: Sequence[Manifest]) -> None:
    from modelyard.models.storage import CONFIG_MAP as MODELS, DeliverySettings, read
    from modelyard.workloads.rendering import CONFIG_MAP, ServingSettings

    maps = {manifest.key.name: manifest.body for manifest in found if manifest.kind == "ConfigMap"}
    _, wrong = DeliverySettings.read(read(maps[MODELS]).text if MODELS in maps else None)
    _, problems = ServingSettings.read(maps.get(CONFIG_MAP, {}).get("data"))
    for problem in [*([wrong] if wrong else []), *problems]:
        warn(problem)


def served_kinds(found: Sequence[Manifest], kubernetes: Sequence[str] = CURRENT) -> frozenset[str]:
    """Return the kinds served: Kubernetes' own, those the files define, AcceleratorClasses if the files have some."""
    from modelyard.workloads.roll_out import CLASSES_SERVED

    served = {*kubernetes}
    if any((one.group, one.kind) == ("ome.io", CLASSES_SERVED.kind) for one in found):
        served.add(str(CLASSES_SERVED))
    for one in found:
        if one.kind == "CustomResourceDefinition":
            spec = one.body.get("spec") or {}
            kind = (spec.get("names") or {}).get("kind")
            served |= {f"{spec.get('group')}/{version.get('name')}/{kind}" for version in spec.get("versions") or ()}
    return frozenset(served)


def _print(service: Manifest, result: Rendered | Refused) -> None:
    from modelyard.objects import VIRTUAL
    from modelyard.workloads.rendering import Refused

    if isinstance(result, Refused):
        return
    modes = ", ".join(f"{kind} {mode}" for kind, mode in result.modes.items()) or VIRTUAL
    typer.echo(f"{service.kind} {service.key}: {modes}" + (f"; {result.url}" if result.url else ""))
    for child in result.children:
        waits = f"  after {', '.join(child.after)}" if child.after else ""
        typer.echo(f"  {child.kind} {child.name}{waits}")
    for gone in result.retired:
        typer.echo(f"  {gone.kind} {gone.name}  deleted after {', '.join(gone.after)}")
    for note in result.notes:
        typer.echo(f"  {note.reason}: {note.message}")
