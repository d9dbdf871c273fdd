"""``modelyard profile``: fit a performance profile to a benchmark's results, keep it, and check what it predicts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from modelyard.cli.options import Context, Form, Output, UsageError, console, grid, print_document, warn
from modelyard.objects import CONTROLLER_NAMESPACE

if TYPE_CHECKING:
    from modelyard.autoscaling.sizing import Fit, Point
    from modelyard.benchmarks.measuring import BenchmarkResults, LibraryProfile, ProfileKey
    from modelyard.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="Performance profiles: fit, show, check what they predict.")
T = TypeVar("T")

Source = Annotated[str, typer.Argument(help="Results: a file, a folder or a URI, or a BenchmarkJob: NAMESPACE/NAME.")]
MaxBatch = Annotated[
    int | None, typer.Option("--max-batch", min=1, help="The engine's --max-num-seqs; runs beyond it are left out.")
]
Tokens = Annotated[
    int,
    typer.Option("--step-tokens", min=1, help="Tokens that the engine computes in a step: --max-num-batched-tokens."),
]
OneLength = Annotated[
    bool, typer.Option("--one-length", help="Accept prompts of one length; the profile then holds for that only.")
]
Library = Annotated[
    str, typer.Option("-n", "--namespace", help="Namespace of the library, ConfigMap modelyard-profiles.")
]


@app.command()
def fit(
    source: Source,
    max_batch: MaxBatch = None,
    one_length: OneLength = False,
    step_tokens: Tokens = 2048,
    prompt_tokens: Annotated[
        float | None, typer.Option(min=1, help="Mean tokens of the prompts that will be served; unset: as measured.")
    ] = None,
    output_tokens: Annotated[float | None, typer.Option(min=1, help="Likewise of the answers.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that the KV cache of a replica holds.")] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="NAMESPACE/NAME", help="Give this VariantAutoscaling the profile.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the profile in the library, for reuse.")] = False,
    namespace: Library = CONTROLLER_NAMESPACE,
    output: Form = Output.TABLE,
    context: Context = None,
) -> None:
    """The engine's alpha, beta, gamma, delta with 95 % intervals, and the profile that replicas are sized by. -o yaml:
    the patch for a VariantAutoscaling."""
    from modelyard.autoscaling.fleet import NAMES
    from modelyard.autoscaling.memory import AUTOSCALING_STATE, VariantMemory
    from modelyard.benchmarks.measuring import patch, points
    from modelyard.cli.benchmarks import results_of
    from modelyard.profiles.fitting import fit_profile
    from modelyard.reconcile.plans import parse_memory

    there = _cluster(lambda cluster: _variant(cluster, variant)) if variant else None
    known: dict[str, Any] = {"kv_tokens": kv_tokens}
    if there is not None:
        text = (there["metadata"].get("annotations") or {}).get(AUTOSCALING_STATE)
        known["startup"] = parse_memory(VariantMemory, AUTOSCALING_STATE, text)[0].startup_seconds
    results = results_of(source)
    known |= {"max_batch": max_batch, "tokens": step_tokens, "one_length": one_length}
    found, profile = fit_profile(points(results, warn), prompt_tokens, output_tokens, **known)
    for text in found.warnings:
        warn(text)
    body = patch(profile, source, max_batch, engine=found, measured=max(run.started for run in results.runs))
    key = _key(results, there) if keep else None
    if there is not None or key is not None:
        _cluster(lambda cluster: _write(cluster, body, there, key, namespace))
    if output is not Output.TABLE:
        print_document(json.dumps(body, indent=2), output)
        return
    table = grid("PARAMETER", "ENGINE, MS", "FROM", "TO", "PROFILE, MS")
    for name in NAMES:
        table.add_row(name, *(f"{value:.4g}" for value in (*getattr(found, name), getattr(profile, name).estimate)))
    out = console()
    out.print(table)
    ranges = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in found.ranges.items())
    out.print(f"Fitted to {len(found.points)} runs ({ranges}); usable batch {found.usable_batch}.")
    out.print(f"Explained of the time for each token {found.itl.r_squared:.1%}, of TTFT {found.ttft.r_squared:.1%}.")
    lengths = " + ".join(f"{profile.ranges[name][1]:g}" for name in ("prompt_tokens", "output_tokens"))
    out.print(f"The profile is for requests of {lengths} tokens, as the queueing model wants it.")
    if there is not None:
        out.print(f"VariantAutoscaling {variant} has it.")
    if key is not None:
        out.print(f"Kept as {key.name} in ConfigMap {namespace}/modelyard-profiles.")


@app.command()
def show(
    what: Annotated[
        str | None,
        typer.Argument(help="A VariantAutoscaling, NAMESPACE/NAME, or a profile of the library; unset: all."),
    ] = None,
    namespace: Library = CONTROLLER_NAMESPACE,
    output: Form = Output.TABLE,
    context: Context = None,
) -> None:
    """Profiles that are kept, or one with where it comes from. -o yaml of one: the patch for a VariantAutoscaling."""
    from modelyard.autoscaling.fleet import PROVENANCE, provenance
    from modelyard.benchmarks.measuring import described

    if what is not None and "/" in what:
        there = _cluster(lambda cluster: _variant(cluster, what))
        if not (profile := there["spec"].get("variantProfile")):
            raise UsageError(f"VariantAutoscaling {what} has no variantProfile")
        told = (there["metadata"].get("annotations") or {}).get(PROVENANCE)
        annotations = {"annotations": {PROVENANCE: told}} if isinstance(told, str) else {}
        body = {"metadata": annotations, "spec": {"variantProfile": profile}}
    else:
        library = _cluster(lambda cluster: _library(cluster, namespace))
        if what is None:
            _list(library, output)
            return
        if what not in library:
            known = ", ".join(library) or "none"
            raise UsageError(f"ConfigMap {namespace}/modelyard-profiles has no profile {what}; there are: {known}")
        body = library[what].patch()
        profile = body["spec"]["variantProfile"]
    if output is not Output.TABLE:
        print_document(json.dumps(body, indent=2), output)
        return
    table = grid("FIELD", "VALUE")
    for parameters in profile["perfParms"].values():
        for name, value in parameters.items():
            table.add_row(name, f"{value} ms")
    table.add_row("maxBatchSize", str(profile["maxBatchSize"]))
    for name, text in described(provenance(body)):
        table.add_row(name, text)
    console().print(table)


@app.command()
def check(
    source: Source,
    max_batch: MaxBatch = None,
    one_length: OneLength = False,
    step_tokens: Tokens = 2048,
    tolerance: Annotated[float, typer.Option("--tolerance", min=0, help="Share that a prediction may be off.")] = 0.1,
    context: Context = None,
) -> None:
    """Replay the benchmark's loads against an engine of the fitted parameters, several times; 1 where what was measured
    is further off than any of the times."""
    from modelyard.cli.benchmarks import results_of
    from modelyard.profiles.fitting import PredictedPoint, predicted

    found, runs = _fitted(results_of(source), max_batch, one_length, step_tokens)
    wide = 0
    table = grid("AT", "PROMPT", "OUTPUT", *(name.upper().replace("_", " ") for name in PredictedPoint._fields))
    for point in runs:
        between, cells = predicted(found, point, step_tokens), []
        for name in PredictedPoint._fields:
            low, high, measured = getattr(between.low, name), getattr(between.high, name), getattr(point, name)
            off = between.off(name, measured)
            wide += abs(off) > tolerance
            cells.append(f"{low:.4g}..{high:.4g} for {measured:.4g}" + (f" {off:+.0%}" if abs(off) >= 0.005 else ""))
        table.add_row(*(f"{value:.0f}" for value in point[:3]), *cells)
    out = console()
    out.print(table)
    out.print(f"Predicted for measured, in ms; {wide} of {4 * len(runs)} are more than {tolerance:.0%} off.")
    if wide:
        raise typer.Exit(1)


def _fitted(results: BenchmarkResults, max_batch: int | None, one_length: bool, tokens: int) -> tuple[Fit, list[Point]]:
    from modelyard.benchmarks.measuring import points
    from modelyard.profiles.fitting import fit_engine

    runs = points(results, warn)
    found = fit_engine(runs, tokens=tokens, max_batch=max_batch, one_length=one_length)
    for text in found.warnings:
        warn(text)
    return found, [run for run in runs if max_batch is None or run.concurrency <= max_batch]


def _key(results: BenchmarkResults, variant: dict[str, Any] | None) -> ProfileKey:
    from modelyard.benchmarks.measuring import ProfileKey

    about = results.records[0].measurement
    server, spec = about.server, variant["spec"] if variant else {}
    model, accelerator = spec.get("modelID") or about.model, spec.get("accelerator") or server.gpu_type
    if not (model and accelerator):
        raise UsageError("the results do not say on which accelerator which model was measured: give --variant")
    count = spec.get("acceleratorCount") or server.gpu_count or 1
    return ProfileKey(model, accelerator, count, server.engine or "")


def _list(library: dict[str, LibraryProfile], output: Output) -> None:
    if output is not Output.TABLE:
        print_document(json.dumps({name: one.patch() for name, one in library.items()}, indent=2), output)
        return
    table = grid("PROFILE", "MODEL", "ACCELERATOR", "RUNTIME", "BATCH", "MEASURED")
    for name, one in library.items():
        batch, when = str(one.profile.max_batch_size), str(one.provenance.get("measured", ""))[:40]
        table.add_row(name, one.model, f"{one.accelerator}:{one.count}", one.runtime, batch, when)
    console().print(table)


def _cluster(work: Callable[[Cluster], Awaitable[T]]) -> T:
    from modelyard.cluster import Cluster, ClusterSettings

    async def connected() -> T:
        async with Cluster.connect(ClusterSettings()) as cluster:
            return await work(cluster)

    return asyncio.run(connected())


async def _variant(cluster: Cluster, named: str) -> dict[str, Any]:
    from modelyard.autoscaling.fleet import VARIANTS

    namespace, _, name = named.partition("/")
    if not namespace or not name:
        raise UsageError(f"{named}: name a VariantAutoscaling as NAMESPACE/NAME")
    return await cluster.get(VARIANTS, name, namespace)


async def _library(cluster: Cluster, namespace: str) -> dict[str, LibraryProfile]:
    from modelyard.benchmarks.measuring import LIBRARY, read_library
    from modelyard.cluster import NotFound
    from modelyard.objects import CONFIG_MAPS, Key

    try:
        stored = await cluster.get(CONFIG_MAPS, LIBRARY, namespace)
    except NotFound:
        return {}
    found, wrong = read_library(Key(namespace, LIBRARY), stored.get("data") or {})
    for text in wrong:
        warn(text)
    return found


async def _write(
    cluster: Cluster, body: dict[str, Any], variant: dict[str, Any] | None, key: ProfileKey | None, namespace: str
) -> None:
    from modelyard.autoscaling.fleet import VARIANTS
    from modelyard.benchmarks.measuring import LIBRARY, library_patch
    from modelyard.cluster import NotFound
    from modelyard.objects import CONFIG_MAPS

    if variant is not None:
        metadata = variant["metadata"]
        await cluster.merge_patch(VARIANTS, metadata["name"], body, metadata["namespace"])
    if key is not None:
        entry = library_patch(key, body)
        try:
            await cluster.merge_patch(CONFIG_MAPS, LIBRARY, entry, namespace)
        except NotFound:
            await cluster.create(CONFIG_MAPS, {"metadata": {"name": LIBRARY}, **entry}, namespace)
