"""What a service is to be made of: model, weights and the runtime that serves them, or why there is none. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from modelyard.models.names import BASE_MODELS, CLUSTER_BASE_MODELS, FINE_TUNED_WEIGHTS
from modelyard.objects import Key
from modelyard.reconcile.plan import World
from modelyard.resources import InferenceService
from modelyard.runtimes import NO_RUNTIME, AcceleratorClass, ModelView, Ranking, Wishes, select
from modelyard.workloads.components import References, references, runs_itself, texts
from modelyard.workloads.values import Refusal, Refused
from modelyard.workloads.world import ACCELERATOR_CLASSES, RUNTIMES, Offered, OfferedRuntime, StoredService

RUNTIME, MODEL, GENERATION = "modelyard.dev/runtime", "modelyard.dev/model", "modelyard.dev/generation"
"""Annotations of a status: what was rolled out last, runtime and model as KIND/NAME@GENERATION."""
ACCEPT = "modelyard.dev/accept-changes"
"""Annotation of a service: which changes of its runtime and its model are rolled out, by commas; ``always``: any."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What was found for a service; ``problem`` says why that is not all it takes.

    ``better`` is the runtime, by name, that a new service of this kind would have.
    """

    named: References = field(default_factory=References)
    model: Offered | None = None
    weights: tuple[Offered, ...] = ()
    runtime: OfferedRuntime | None = None
    better: str = ""
    problem: Refused | None = None

    @property
    def inputs(self) -> dict[str, str | None]:
        """What the service is made of beside its own spec, as it is recorded."""
        found: dict[str, str | None] = {RUNTIME: None, MODEL: None}
        if self.runtime is not None:
            found[RUNTIME] = f"{self.runtime.kind}/{self.runtime.choice.name}@{self.runtime.generation}"
        if self.model is not None:
            subject = self.model.served.stored.subject
            found[MODEL] = f"{subject.kind.kind}/{subject.key.name}@{subject.generation}"
        return found


def recorded(service: StoredService) -> dict[str, str]:
    """What was rolled out last."""
    return texts(service.status.get("annotations"))


def unasked(service: StoredService, found: Resolved) -> list[str]:
    """What has changed beneath a service whose spec has not, and which nobody has allowed to be rolled out."""
    before = recorded(service)
    if before.get(GENERATION) != str(service.subject.generation):
        return []
    allowed = set(map(str.strip, service.annotations.get(ACCEPT, "").split(",")))
    moved = {name: now for name, now in found.inputs.items() if now and before.get(name) not in (None, now)}
    return (
        []
        if "always" in allowed
        else [
            f"{before[name]} was rolled out, and now it would be {now}"
            for name, now in moved.items()
            if now not in allowed
        ]
    )


def resolve(service: StoredService, world: World) -> Resolved:
    """Look up what the service names, and choose the runtime where it names none: a live one stays with its own."""
    if not isinstance(service.resource, InferenceService):
        assert service.problem is not None
        return Resolved(problem=service.problem)
    try:
        named = references(service.resource)
    except Refusal as refusal:
        return Resolved(problem=refusal.refused)
    home = service.key.namespace
    model = find_model(named.model, home, world, named.model_kind)
    found = [world[FINE_TUNED_WEIGHTS].get(Key("", name)) for name in named.weights]
    result = Resolved(named, model, tuple(one for one in found if one is not None))
    try:
        if named.model and model is None:
            problem = f"model {named.model} is not there"
            raise Refusal("BaseModelNotFound", "spec.model.name", problem, "make it, or name another one")
        return _with_runtime(service, result, world)
    except Refusal as refusal:
        return Resolved(named, model, result.weights, problem=refusal.refused)


def find_model(name: str, namespace: str, world: World, kind: str = "") -> Offered | None:
    """Return the model that a name means: the BaseModel of the namespace, else the ClusterBaseModel.

    ``kind`` BaseModel allows the first only. ClusterBaseModel restricts nothing, because the API server sets it as the
    default.
    """
    for models, place in ((BASE_MODELS, namespace), (CLUSTER_BASE_MODELS, "")):
        model: Offered | None = world[models].get(Key(place, name)) if name else None
        if model is not None or kind == BASE_MODELS.kind:
            return model
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
    current: tuple[str, str] | None = None,
) -> Ranking:
    """Rank the runtimes of a world for a model: the one selection of controller, command line and onboarding."""
    return select(
        model,
        [runtime.choice for runtime in offered_runtimes(namespace, world)],
        namespace=namespace,
        wishes=wishes,
        named=named,
        current=current,
        classes=accelerator_classes(world),
    )


def _with_runtime(service: StoredService, found: Resolved, world: World) -> Resolved:
    named, home, better = found.named, service.key.namespace, ""
    offered = offered_runtimes(home, world)
    if found.model is None:
        if not named.runtime:
            return found
        chosen = next((one for one in offered if one.choice.name == named.runtime), None)
        if chosen is None:
            problem = f"runtime {named.runtime} is neither in namespace {home} nor one of the cluster"
            raise Refusal("RuntimeNotFound", "spec.runtime.name", problem, "make it, or name another one")
        if chosen.choice.disabled:
            problem = f"runtime {named.runtime} is disabled"
            raise Refusal("RuntimeDisabled", "spec.runtime.name", problem, "enable it, or name another one")
    else:
        ranking = rank(
            found.model.view, home, world, wishes=service.wishes, named=named.runtime, current=_current(service)
        )
        if ranking.chosen is None:
            assert ranking.problem is not None
            # A service that was rolled out on a runtime keeps what runs when that is gone.
            unbound = ranking.problem.code == NO_RUNTIME and _current(service) is None
            if unbound and isinstance(service.resource, InferenceService) and runs_itself(service.resource):
                return found
            remedy = f"see 'modelyard runtimes explain {named.model}', or name a runtime in spec.runtime.name"
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
