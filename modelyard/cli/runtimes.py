"""``modelyard runtimes``: which runtime serves a model, and why each other one does not. Nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelyard.cli import options
from modelyard.cli.images import check_images
from modelyard.objects import Key

if TYPE_CHECKING:
    from modelyard.autoscaling.offline import Manifest
    from modelyard.runtimes import Ranking, RejectionReason, Runtime, RuntimeVerdict

app = typer.Typer(
    help="Which runtime serves a model, and why each other one does not.", no_args_is_help=True, add_completion=False
)


class ModelMissing(ValueError):
    """There is no such model. The message says where it was looked for, and what to do."""


app.command("check-images")(check_images)


@app.command()
def explain(
    model: Annotated[
        str, typer.Argument(help="NAME of a BaseModel of the namespace, else of a ClusterBaseModel; or KIND/NAME.")
    ],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Namespace of the service.")] = "default",
    files: options.Files = None,
    folder: Annotated[
        Path | None,
        typer.Option("--model-files", help="Folder with the model's files, which fill in what its spec leaves empty."),
    ] = None,
    named: Annotated[
        str, typer.Option("--runtime", help="NAME or KIND/NAME: explain this choice, as of a service that names it.")
    ] = "",
    mode: Annotated[
        str, typer.Option(help="Deployment mode of the service: RawDeployment, MultiNode or PDDisaggregated.")
    ] = "",
    output: options.Form = options.Output.TABLE,
    context: options.Context = None,
) -> None:
    """Rank every runtime for a model, with all that is for and against it. Exit code 1: none serves it."""
    from modelyard.autoscaling.offline import read_manifests
    from modelyard.cli.worlds import world_of
    from modelyard.models.detection import detect
    from modelyard.objects import OF_RUNTIMES
    from modelyard.runtimes import Wishes, parse_model, warnings
    from modelyard.workloads.roll_out import (
        CLASSES_SERVED,
        MODELS_WANTED,
        RUNTIMES_WANTED,
        accelerator_classes,
        classes_wanted,
        find_model,
        rank,
    )

    model_kind, model = _reference("MODEL", model, MODELS)
    runtime_kind, named = _reference("--runtime", named, RUNTIMES)
    if mode and mode not in OF_RUNTIMES:
        raise options.UsageError(f"--mode {mode}: is no deployment mode - write one of {', '.join(OF_RUNTIMES)}")
    if folder is not None and not folder.is_dir():
        raise ModelMissing(f"--model-files {folder}: is no folder - give the one that has the model's config.json")
    read = [one for one in read_manifests(files) if one.group == "ome.io"] if files else []
    objects = [one.body for one in read] if files else asyncio.run(_from_cluster(model, namespace))
    classes = classes_wanted(frozenset([CLASSES_SERVED] if any(one["kind"] == CLASSES for one in objects) else []))
    world = world_of((*MODELS_WANTED, *RUNTIMES_WANTED, *classes), objects)
    offer = find_model(model, namespace, world, model_kind)
    if offer is None:
        raise _missing(model, namespace, objects, files is not None)
    facts = detect(folder) if folder else None
    view = offer.view
    if facts is not None:
        subject = offer.served.stored.subject
        place = subject.kind.kind, subject.key
        view = parse_model(next(one for one in objects if _place_of(one) == place), facts)
    ranking = rank(view, namespace, world, wishes=Wishes(mode=mode), named=named, named_kind=runtime_kind)
    told = [verdict.runtime for verdict in ranking.verdicts]
    remarks = [
        *_mistakes(read, namespace),
        *(facts.problems if facts else ()),
        *ranking.model.remarks,
        *warnings(told, accelerator_classes(world)),
    ]
    if output is options.Output.TABLE:
        _print(ranking, remarks)
    else:
        options.print_document(json.dumps(described(ranking, remarks), indent=2), output)
    if ranking.chosen is None:
        raise typer.Exit(1)


def described(ranking: Ranking, remarks: Iterable[str] = ()) -> dict[str, Any]:
    """The whole ranking as plain values."""
    from modelyard.models.detection import current
    from modelyard.runtimes import label

    model, chosen = ranking.model, ranking.chosen
    return {
        "model": {
            "name": model.name,
            "namespace": model.namespace or None,
            "kind": label(model.kind),
            "size": model.size_text or None,
            "capabilities": current(model.capabilities),
        },
        "chosen": None if chosen is None else _place(chosen.runtime),
        "problem": _reason(ranking.problem) if ranking.problem else None,
        "runtimes": [_verdict(ranking, verdict, rank) for rank, verdict in enumerate(ranking.verdicts, 1)],
        "warnings": list(remarks),
    }


def _verdict(ranking: Ranking, verdict: RuntimeVerdict, rank: int) -> dict[str, Any]:
    return {
        "rank": rank if verdict.accepted else None,
        **_place(verdict.runtime),
        "verdict": _word(ranking, verdict),
        "mode": verdict.runtime.mode,
        "priority": verdict.priority if verdict.accepted else None,
        "accelerator": verdict.accelerator or None,
        "reasons": [_reason(reason) for reason in verdict.reasons],
        "notes": list(verdict.notes),
    }


def _reason(reason: RejectionReason) -> dict[str, str]:
    return {"code": reason.code, "message": reason.message}


def _place(runtime: Runtime) -> dict[str, Any]:
    return {"name": runtime.name, "namespace": runtime.namespace or None}


def _word(ranking: Ranking, verdict: RuntimeVerdict) -> str:
    return "chosen" if verdict is ranking.chosen else "fits" if verdict.accepted else "rejected"


def _print(ranking: Ranking, remarks: Iterable[str]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from modelyard.objects import printable
    from modelyard.runtimes import label

    watched, model = sys.stdout.isatty(), ranking.model
    console = options.console()
    name = f"{model.namespace}/{model.name}" if model.namespace else model.name
    console.print(Text(printable(f"Model {name}: {label(model.kind)}, {model.size_text or 'of unknown size'}")))
    table = Table(box=box.SIMPLE_HEAD if watched else None, pad_edge=False, header_style="bold")
    for column in ("RANK", "RUNTIME", "VERDICT", "PRIORITY"):
        table.add_column(column, overflow="fold", no_wrap=not watched)
    table.add_column("WHY", overflow="fold", ratio=1 if watched else None)
    for rank, verdict in enumerate(ranking.verdicts, 1):
        runtime, word = verdict.runtime, _word(ranking, verdict)
        said = "; ".join((*(reason.message for reason in verdict.reasons), *verdict.notes))
        table.add_row(
            str(rank) if verdict.accepted else "-",
            printable(f"{runtime.namespace}/{runtime.name}" if runtime.namespace else runtime.name),
            Text(word, style={"chosen": "green", "fits": "", "rejected": "yellow"}[word]),
            str(verdict.priority) if verdict.accepted else "-",
            printable(said),
        )
    if ranking.verdicts:
        with console.capture() as drawn:
            console.print(table)
        typer.echo("\n".join(line.rstrip() for line in drawn.get().splitlines()))
    if ranking.problem is not None:
        # The table has the reasons.
        said = ranking.problem.message.partition(". Excluded runtimes: ")[0]
        if ranking.problem.code == "RuntimeNotSupported":
            said = said.partition(": ")[0]
        console.print(Text.assemble((ranking.problem.code, "red"), f": {printable(said)}"))
    for remark in remarks:
        console.print(Text.assemble(("warning", "yellow"), f": {printable(remark)}"))


MODELS, RUNTIMES = ("BaseModel", "ClusterBaseModel"), ("ServingRuntime", "ClusterServingRuntime")
CLASSES = "AcceleratorClass"


def _reference(option: str, text: str, kinds: tuple[str, ...]) -> tuple[str, str]:
    kind, slash, name = text.rpartition("/")
    if slash and kind not in kinds:
        problem = f"{option} {text}: {kind!r} is no kind of it"
        raise options.UsageError(f"{problem} - write NAME, or KIND/NAME with a kind of {', '.join(kinds)}")
    return kind, name


def _mistakes(manifests: Iterable[Manifest], namespace: str) -> Iterator[str]:
    from modelyard.resources import ResourceInvalid, parse

    for manifest in manifests:
        namespaced = not manifest.kind.startswith("Cluster")
        if manifest.kind in (*MODELS, *RUNTIMES) and not (namespaced and manifest.key.namespace != namespace):
            try:
                parse(manifest.body)
            except ResourceInvalid as error:
                field, problem = error.problems[0]
                yield f"{manifest.where}: {manifest.kind} {manifest.key.name}: {field}: {problem}"


def _place_of(body: Mapping[str, Any]) -> tuple[str, Key]:
    from modelyard.objects import key_of

    key = key_of(body)
    return body["kind"], key if not body["kind"].startswith("Cluster") else Key("", key.name)


def _missing(model: str, namespace: str, objects: Iterable[Mapping[str, Any]], in_files: bool) -> ModelMissing:
    if not in_files:
        return ModelMissing(
            f"model {model} not found in namespace {namespace} or at cluster scope "
            "- check the name, or give its namespace with -n"
        )
    there = ", ".join(sorted({one["metadata"]["name"] for one in objects if one["kind"] in MODELS})[:10]) or "none"
    return ModelMissing(
        f"model {model} is not in these files, neither in namespace {namespace} nor for the whole cluster "
        f"(there: {there}) - give its manifest with -f, or its namespace with -n"
    )


async def _from_cluster(model: str, namespace: str) -> list[Mapping[str, Any]]:
    from modelyard.cluster import Cluster, ClusterSettings, NotFound
    from modelyard.models.delivery import BASE_MODELS, CLUSTER_BASE_MODELS
    from modelyard.objects import ResourceType
    from modelyard.workloads.roll_out import ACCELERATOR_CLASSES, CLASSES_SERVED, RUNTIMES as OFFERED

    def typed(kind: ResourceType, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**body, "apiVersion": kind.api_version, "kind": kind.kind}

    objects: list[Mapping[str, Any]] = []
    async with Cluster.connect(ClusterSettings()) as cluster:
        await options.check_namespaces(cluster, [namespace])
        for kind in (BASE_MODELS, CLUSTER_BASE_MODELS):
            with contextlib.suppress(NotFound):
                objects.append(typed(kind, await cluster.get(kind, model, namespace if kind.namespaced else None)))
        for kind in [*OFFERED, *([ACCELERATOR_CLASSES] if await cluster.serves(*CLASSES_SERVED) else [])]:
            found = await cluster.list(kind, namespace if kind.namespaced else None)
            objects += (typed(kind, body) for body in found.items)
    return objects
