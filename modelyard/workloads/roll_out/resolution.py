"""What a service is to be made of: model, weights and the runtime that serves them, or why there is none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from modelyard.models.delivery import BASE_MODELS, CLUSTER_BASE_MODELS, FINE_TUNED_WEIGHTS
from modelyard.objects import Key, texts
from modelyard.reconcile.plans import World
from modelyard.resources import InferenceService
from modelyard.runtimes import NO_RUNTIME, AcceleratorClass, ModelView, Ranking, Wishes, named_keys, not_found, select
from modelyard.workloads.rendering import STORAGE_FIELD, Note, References, Refusal, Refused, references, runs_itself
from modelyard.workloads.roll_out.world import ACCELERATOR_CLASSES, RUNTIMES, Offered, OfferedRuntime, StoredService

RUNTIME, MODEL, GENERATION = "modelyard.dev/runtime", "modelyard.dev/model", "modelyard.dev/generation"
"""Annotations of a status: what was rolled out last, runtime and model as KIND/NAME@GENERATION."""
WEIGHTS = "modelyard.dev/fine-tuned-weights"
"""Annotation of a status: the weights that were rolled out last, as KIND/NAME@GENERATION+NAME@GENERATION."""
ACCEPT = "modelyard.dev/accept-changes"
"""Annotation of a service: which changes of its runtime and its model are rolled out, by commas; ``always``: any."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What was found for a service; ``problem`` says why that is not all it takes.

    ``better``: the runtime that a new service would have, by name; ``notes``: found elsewhere than the service says.
    """

    named: References = field(default_factory=References)
    model: Offered | None = None
    weights: tuple[Offered, ...] = ()
    runtime: OfferedRuntime | None = None
    better: str = ""
    problem: Refused | None = None
    notes: tuple[Note, ...] = ()

    @property
    def inputs(self) -> dict[str, str | None]:
        inputs: dict[str, str | None] = {RUNTIME: None, MODEL: None, WEIGHTS: None}
        if self.runtime is not None:
            inputs[RUNTIME] = f"{self.runtime.kind}/{self.runtime.choice.name}@{self.runtime.generation}"
        if self.model is not None:
            subject = self.model.served.stored.subject
            inputs[MODEL] = f"{subject.kind.kind}/{subject.key.name}@{subject.generation}"
        if self.named.weights:
            subjects = (offer.served.stored.subject for offer in self.weights)
            versions = "+".join(f"{subject.key.name}@{subject.generation}" for subject in subjects)
            inputs[WEIGHTS] = f"{FINE_TUNED_WEIGHTS.kind}/{versions}"
        return inputs


def recorded(service: StoredService) -> dict[str, str]:
    """What was rolled out last."""
    return texts(service.status.get("annotations"))


def unasked(service: StoredService, found: Resolved) -> list[str]:
    """What has changed beneath a service whose spec has not, and which nobody has allowed to be rolled out."""
    before = recorded(service)
    allowed = set(map(str.strip, service.annotations.get(ACCEPT, "").split(",")))
    if before.get(GENERATION) != str(service.subject.generation) or "always" in allowed:
        return []
    moved = {name: now for name, now in found.inputs.items() if now and before.get(name) not in (None, now)}
    differing = ((before[name], now) for name, now in moved.items() if now not in allowed)
    return [f"{was} was rolled out, and now it would be {now}" for was, now in differing]


def resolve(
    service: StoredService, world: World, choose: Callable[[StoredService, Resolved, World], Resolved] | None = None
) -> Resolved:
    """Look up what the service names, and choose the runtime where it names none: a live one stays with its own.

    ``choose`` adds the runtime in another way; it may raise ``Refusal``.
    """
    if not isinstance(service.resource, InferenceService):
        assert service.problem is not None
        return Resolved(problem=service.problem)
    try:
        named = references(service.resource)
    except Refusal as refusal:
        return Resolved(problem=refusal.refused)
    home = service.key.namespace
    model = find_model(named.model, home, world, named.model_kind)
    if model is None and named.storage:
        model = find_model_by_uri(named.storage, home, world)
        named = named._replace(model=model.served.name if model is not None else "")
    weights = [world[FINE_TUNED_WEIGHTS].get(Key("", name)) for name in named.weights]
    result = Resolved(named, model, tuple(weight for weight in weights if weight is not None))
    try:
        if named.model and model is None:
            problem = f"model {named.model} does not exist"
            problem += f" as a BaseModel of namespace {home}" if named.model_kind == BASE_MODELS.kind else ""
            raise Refusal("BaseModelNotFound", "spec.model.name", problem, "make it, or name another one")
        if named.storage and model is None and not named.storage.startswith("pvc://"):
            problem = f"no BaseModel of namespace {home} and no ClusterBaseModel has {named.storage}"
            remedy = "make one with this storageUri, which brings its files to the nodes, or name a claim (pvc://)"
            raise Refusal("BaseModelNotFound", STORAGE_FIELD, problem, remedy)
        resolved = (choose or _with_runtime)(service, result, world)
        return replace(resolved, notes=tuple(_kind_notes(resolved)))
    except Refusal as refusal:
        return Resolved(named, model, result.weights, problem=refusal.refused)


def _kind_notes(resolved: Resolved) -> Iterator[Note]:
    named = resolved.named
    if resolved.model is not None and named.model_kind:
        used = resolved.model.served.stored.subject.kind.kind
        if used != named.model_kind:
            yield _kind_note("spec.model.kind", named.model_kind, named.model, used)
    if resolved.runtime is not None and named.runtime_kind not in ("", resolved.runtime.kind):
        yield _kind_note("spec.runtime.kind", named.runtime_kind, named.runtime, resolved.runtime.kind)


def _kind_note(field: str, kind: str, name: str, used: str) -> Note:
    message = f"{field}: there is no {kind} {name}: the {used} of this name is used; write kind: {used}"
    return Note("KindNotFound", message)


def find_model(name: str, namespace: str, world: World, kind: str = "") -> Offered | None:
    """Return the model that a name means: the BaseModel of the namespace, else the ClusterBaseModel.

    ``kind`` BaseModel allows the first only. ClusterBaseModel turns the order round, and does not exclude the first,
    because API servers with the published schema write it into every service that says no kind.
    """
    own, cluster = (BASE_MODELS, namespace), (CLUSTER_BASE_MODELS, "")
    places = {BASE_MODELS.kind: (own,), CLUSTER_BASE_MODELS.kind: (cluster, own)}.get(kind, (own, cluster))
    for models, place in places if name else ():
        model: Offered | None = world[models].get(Key(place, name))
        if model is not None:
            return model
    return None


def find_model_by_uri(uri: str, namespace: str, world: World) -> Offered | None:
    """Return the model whose files are at a storage URI, by the same order, then by name."""
    for models in (world[BASE_MODELS].by("namespace", namespace), world[CLUSTER_BASE_MODELS].all()):
        specs: list[tuple[Offered, Any]] = [(model, model.served.stored.spec) for model in models]
        same = [model for model, spec in specs if spec is not None and spec.storage.storage_uri == uri]
        if same:
            return min(same, key=lambda model: model.served.name)
    return None


def offered_runtimes(namespace: str, world: World) -> list[OfferedRuntime]:
    """Return the runtimes that services of a namespace may use: its own, then those of the cluster."""
    own, cluster = RUNTIMES
    return [*world[own].by("namespace", namespace), *world[cluster].all()]


def accelerator_classes(world: World) -> dict[str, AcceleratorClass] | None:
    """Return the AcceleratorClasses by name, ``None`` where the cluster serves no such kind."""
    if ACCELERATOR_CLASSES not in world:
        return None
    return {entry.name: entry for entry in world[ACCELERATOR_CLASSES].all()}


def rank(
    model: ModelView,
    namespace: str,
    world: World,
    *,
    wishes: Wishes | None = None,
    named: str = "",
    named_kind: str = "",
    current: tuple[str, str] | None = None,
) -> Ranking:
    """Rank the runtimes of a world for a model: the one selection of controller, command line and onboarding."""
    return select(
        model,
        [runtime.choice for runtime in offered_runtimes(namespace, world)],
        namespace=namespace,
        wishes=wishes,
        named=named,
        named_kind=named_kind,
        current=current,
        classes=accelerator_classes(world),
    )


def _with_runtime(service: StoredService, found: Resolved, world: World) -> Resolved:
    named, home, better = found.named, service.key.namespace, ""
    offered = offered_runtimes(home, world)
    if found.model is None:
        if not named.runtime:
            return found
        by_key = {runtime.key: runtime for runtime in offered}
        keys = named_keys(named.runtime, home, named.runtime_kind)
        chosen = next((by_key[key] for key in keys if key in by_key), None)
        if chosen is None:
            problem = not_found(named.runtime, home, named.runtime_kind)
            raise Refusal("RuntimeNotFound", "spec.runtime.name", problem, "make it, or name another one")
        if chosen.choice.disabled:
            problem = f"runtime {named.runtime} is disabled"
            raise Refusal("RuntimeDisabled", "spec.runtime.name", problem, "enable it, or name another one")
    else:
        ranking = rank(
            found.model.view,
            home,
            world,
            wishes=service.wishes,
            named=named.runtime,
            named_kind=named.runtime_kind,
            current=_current(service),
        )
        if ranking.chosen is None:
            assert ranking.problem is not None
            # A service that was rolled out on a runtime keeps what runs when that is gone.
            unbound = ranking.problem.code == NO_RUNTIME and _current(service) is None
            if unbound and isinstance(service.resource, InferenceService) and runs_itself(service.resource):
                return found
            name = found.model.served.name
            remedy = f"see 'modelyard runtimes explain {name}', or name a runtime in spec.runtime.name"
            refused = Refusal(ranking.problem.code, "spec.runtime", ranking.problem.message, remedy).refused
            return Resolved(named, found.model, found.weights, problem=refused)
        chosen = next(one for one in offered if one.choice is ranking.chosen.runtime)
        better = ranking.better.runtime.name if ranking.better is not None else ""
    if chosen.resource is None:
        problem = f"{chosen.kind} {chosen.choice.name} cannot be read: {chosen.choice.problem}"
        raise Refusal("RuntimeInvalid", "spec.runtime", problem, "have it corrected, or name another one")
    return Resolved(named, found.model, found.weights, chosen, better)


def _current(service: StoredService) -> tuple[str, str] | None:
    kind, _, text = recorded(service).get(RUNTIME, "").partition("/")
    name = text.partition("@")[0]
    return (service.key.namespace if kind == "ServingRuntime" else "", name) if name else None
