"""``modelyard runtimes``: which runtime serves a model, and why each other one does not. Nothing is written."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from modelyard.cli import options

if TYPE_CHECKING:
    from modelyard.runtimes import ModelView, Ranking, Reason, Runtime, RuntimeVerdict

app = typer.Typer(
    help="Which runtime serves a model, and why each other one does not.", no_args_is_help=True, add_completion=False
)


class ModelMissing(ValueError):
    """There is no such model. The message says where it was looked for, and what to do."""


class Seen(NamedTuple):
    """What there is to choose from. ``classes`` is ``None`` where no AcceleratorClasses are served or given."""

    model: Mapping[str, Any]
    runtimes: Sequence[Mapping[str, Any]]
    classes: Sequence[Mapping[str, Any]] | None


@app.callback()
def _group() -> None:
    """A group, although it has one command."""


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="Name of a BaseModel of the namespace, else of a ClusterBaseModel.")],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Namespace of the service.")] = "default",
    files: options.Files = None,
    folder: Annotated[
        Path | None,
        typer.Option("--model-files", help="Folder with the model's files, which fill in what its spec leaves empty."),
    ] = None,
    named: Annotated[str, typer.Option("--runtime", help="Explain this choice, as of a service that names it.")] = "",
    mode: Annotated[
        str, typer.Option(help="Deployment mode of the service: RawDeployment, MultiNode or PDDisaggregated.")
    ] = "",
    output: options.Form = options.Output.TABLE,
    context: options.Context = None,
) -> None:
    """Rank every runtime for a model, with all that is for and against it. Exit code 1: none serves it."""
    from modelyard.models.detection import detect
    from modelyard.runtimes import AcceleratorClass, Wishes, parse_model, parse_runtime, select, warnings
    from modelyard.runtimes.values import MODES

    if mode and mode not in MODES:
        raise options.UsageError(f"--mode {mode}: is no deployment mode - write one of {', '.join(MODES)}")
    if folder is not None and not folder.is_dir():
        raise ModelMissing(f"--model-files {folder}: is no folder - give the one that has the model's config.json")
    seen = _from_files(files, model, namespace) if files else asyncio.run(_from_cluster(model, namespace))
    facts = detect(folder) if folder else None
    # A newer peer may have stored what is not known here; in a file it is a mistake.
    unknown: Literal["forbid", "accept"] = "forbid" if files else "accept"
    runtimes = [parse_runtime(one, unknown) for one in seen.runtimes]
    classes = None
    if seen.classes is not None:
        classes = {one.name: one for one in map(AcceleratorClass.of, seen.classes)}
    ranking = select(
        parse_model(seen.model, facts, unknown),
        runtimes,
        namespace=namespace,
        named=named,
        wishes=Wishes(mode=mode),
        classes=classes,
    )
    told = [verdict.runtime for verdict in ranking.verdicts]
    remarks = [*(facts.problems if facts else ()), *ranking.model.remarks, *warnings(told, classes)]
    if output is options.Output.TABLE:
        _print(ranking, remarks)
    else:
        options.print_document(json.dumps(described(ranking, remarks), indent=2), output)
    if ranking.chosen is None:
        raise typer.Exit(1)


def described(ranking: Ranking, remarks: Iterable[str] = ()) -> dict[str, Any]:
    """The whole ranking as plain values."""
    from modelyard.models.detection import current
    from modelyard.runtimes.matching import label

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


def _reason(reason: Reason) -> dict[str, str]:
    return {"code": reason.code, "message": reason.message}


def _place(runtime: Runtime) -> dict[str, Any]:
    return {"name": runtime.name, "namespace": runtime.namespace or None}


def _word(ranking: Ranking, verdict: RuntimeVerdict) -> str:
    return "chosen" if verdict is ranking.chosen else "fits" if verdict.accepted else "rejected"


def _print(ranking: Ranking, remarks: Iterable[str]) -> None:
    """A table that wraps where somebody watches, and one line per runtime where nobody does."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from modelyard.objects.documents import printable

    watched = sys.stdout.isatty()
    console = options.console()
    console.print(Text(printable(_about(ranking.model))))
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


def _about(model: ModelView) -> str:
    from modelyard.runtimes.matching import label

    name = f"{model.namespace}/{model.name}" if model.namespace else model.name
    return f"Model {name}: {label(model.kind)}, {model.size_text or 'of unknown size'}"


MODELS, RUNTIMES = ("BaseModel", "ClusterBaseModel"), ("ServingRuntime", "ClusterServingRuntime")
CLASSES = "AcceleratorClass"


def _from_files(files: list[Path], model: str, namespace: str) -> Seen:
    from modelyard.autoscaling.offline.manifests import read_manifests

    found = [one for one in read_manifests(files) if one.group == "ome.io"]
    models = [one for one in found if one.kind in MODELS and one.key.name == model]
    # That of the namespace comes before that of the cluster.
    models.sort(key=lambda one: MODELS.index(one.kind))
    usable = [one for one in models if one.kind == MODELS[1] or one.key.namespace == namespace]
    if not usable:
        there = ", ".join(sorted({one.key.name for one in found if one.kind in MODELS})[:10]) or "none"
        raise ModelMissing(
            f"model {model} is not in these files, neither in namespace {namespace} nor for the whole cluster "
            f"(there: {there}) - give its manifest with -f, or its namespace with -n"
        )
    classes = [one.body for one in found if one.kind == CLASSES]
    return Seen(usable[0].body, [one.body for one in found if one.kind in RUNTIMES], classes or None)


async def _from_cluster(model: str, namespace: str) -> Seen:
    from modelyard.cluster import Cluster, ClusterSettings, NotFound, ResourceType, UnknownKind
    from modelyard.resources import BaseModel, ClusterBaseModel, ClusterServingRuntime, ServingRuntime

    async with Cluster.connect(ClusterSettings()) as cluster:
        try:
            body = await cluster.get(ResourceType.of_resource(BaseModel), model, namespace)
        except NotFound:
            try:
                body = await cluster.get(ResourceType.of_resource(ClusterBaseModel), model)
            except NotFound:
                raise ModelMissing(
                    f"model {model} not found in namespace {namespace} or at cluster scope "
                    "- check the name, or give its namespace with -n"
                ) from None
        runtimes = [
            dict(one) | {"kind": kind.kind}
            for kind in (ServingRuntime, ClusterServingRuntime)
            for one in (
                await cluster.list(ResourceType.of_resource(kind), namespace if kind.namespaced else None)
            ).items
        ]
        try:
            served = await cluster.resolve("ome.io/", CLASSES)
            classes: Sequence[Mapping[str, Any]] | None = list((await cluster.list(served)).items)
        except UnknownKind:
            classes = None
    return Seen(body, runtimes, classes)
