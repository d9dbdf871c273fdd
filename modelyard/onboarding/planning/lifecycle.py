"""The life of an onboarding: what it looks at, and what follows from it. It stands for itself as a ConfigMap. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from modelyard.benchmarks.jobs import BENCHMARK_JOBS, EnginePod, Memory as BenchmarkMemory, benchmark, engine_pod
from modelyard.benchmarks.records import MeasuredRun
from modelyard.models.delivery import BASE_MODELS
from modelyard.objects import CONFIG_MAPS, NODES, PODS, Key, ResourceType, cut, epoch, node
from modelyard.onboarding.planning import objects, progress
from modelyard.onboarding.planning.fits import fits
from modelyard.onboarding.planning.plan import Findings, Name, NextSteps, name_of, next_steps
from modelyard.onboarding.planning.progress import (
    OnboardMemory,
    OnboardStanding,
    object_of,
    objects_of_steps,
    step_phases,
)
from modelyard.onboarding.request import OnboardRequest
from modelyard.reconcile.plans import (
    CLAIM,
    Child,
    Plan,
    PlanStep,
    ServedKind,
    StepId,
    StepPhase,
    Subject,
    Want,
    World,
    WriteRules,
    child_claim,
    parse_memory,
    render_memory,
)
from modelyard.workloads.rendering import ENGINE, SERVICE
from modelyard.workloads.roll_out import CLASSES_SERVED, INFERENCE_SERVICES, RUNTIMES_WANTED, VARIANTS, classes_wanted

MEMORY = "modelyard.dev/onboarding-memory"
"""Annotation: what cannot be seen any more, or may look different later."""
_KINDS: tuple[ResourceType, ...] = (BASE_MODELS, INFERENCE_SERVICES, BENCHMARK_JOBS, VARIANTS)
_BY_KIND = {one.kind: one for one in (*_KINDS, CONFIG_MAPS)}
_CARRIED_OUT = frozenset(kind.kind for kind in (BASE_MODELS, INFERENCE_SERVICES, BENCHMARK_JOBS))
"""Kinds whose objects a child run works on."""
_KEPT = frozenset(("BaseModel", "ConfigMap", "VariantAutoscaling"))


@dataclass(eq=False)
class Onboarding:
    """Onboardings. Plans have an ``OnboardStanding``.

    ``failed`` says of objects why the run that worked on them has failed for good, ``waiting`` for which turn their run
    waits (empty: for none). ``retried`` has those whose failed run is tried again: what their status says is from
    before.
    """

    failed: MutableMapping[tuple[Key, Name], str] = field(default_factory=dict)
    waiting: MutableMapping[tuple[Key, Name], str] = field(default_factory=dict)
    retried: set[tuple[Key, Name]] = field(default_factory=set)
    served: frozenset[ServedKind] = frozenset()

    name = "onboard"
    about = CONFIG_MAPS
    asks = (CLASSES_SERVED,)

    @property
    def wants(self) -> tuple[Want[Any], ...]:
        """What it makes, and what a model can be served by."""
        return (
            Want(CONFIG_MAPS, dict, label_selector=objects.LABEL, use="onboard"),
            *(Want(kind, dict, use="onboard") for kind in _KINDS),
            *RUNTIMES_WANTED,
            *classes_wanted(self.served),
            Want(NODES, node, cached=True, use="onboard"),
            Want(PODS, engine_pod, label_selector=SERVICE, cached=True, use="onboard"),
        )

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """What is to be made, taken away and kept for the onboarding of this name."""
        stored = world[CONFIG_MAPS].get(key)
        if stored is None or stored["metadata"].get("deletionTimestamp"):
            return None
        asked, annotations = objects.stored_request(stored), stored["metadata"].get("annotations") or {}
        memory, damaged = parse_memory(OnboardMemory, MEMORY, annotations.get(MEMORY))
        fresh = not memory.candidates
        model = _get(world, (BASE_MODELS.kind, asked.name), key.namespace)
        refused: Mapping[str, str] = {}
        if model is not None and (model.get("status") or {}).get("state") == "Ready":
            offered, refused = fits(asked, model, world, world[NODES].all())
            if not asked.candidates:
                memory = memory.model_copy(update={"candidates": offered}) if fresh else memory
                asked = asked.model_copy(update={"candidates": memory.candidates})
        found = self._found(asked, world, memory, refused, now)
        steps = next_steps(asked, found)
        memory = _remembered(asked, found, steps, memory, now)
        here = OnboardStanding(asked, found, steps, memory)
        wanted = render_memory(memory)
        keep = {MEMORY: wanted} if wanted != (None if damaged else annotations.get(MEMORY)) else {}
        delete = tuple(
            Child(_BY_KIND[kind], Key(key.namespace, name), metadata["uid"])
            for kind, name in steps.remove
            # Of two looks while it goes, the second has nothing to do but to wait.
            if not (metadata := found.there[kind, name]["metadata"]).get("deletionTimestamp")
        )
        awaits = (*steps.awaits, *(f"{kind} {name}: gone" for kind, name in steps.remove))
        subject = Subject.of(CONFIG_MAPS, stored)
        apply = tuple(_manifest(asked, document, now) for document in steps.apply)
        rules = WriteRules.of(_BY_KIND.values())
        plan = Plan(subject, annotations=keep, apply=apply, rules=rules, delete=delete, awaits=awaits, details=here)
        if memory.candidates and fresh:
            selected = PlanStep(StepPhase.ACTIVE, step_phases(here)[progress.SELECT].message, keeps=True)
            return replace(plan, steps={progress.SELECT: selected})
        return replace(plan, steps=_steps(here, plan, self.waiting))

    def _found(
        self, asked: OnboardRequest, world: World, memory: OnboardMemory, refused: Mapping[str, str], now: float
    ) -> Findings:
        made = objects_of_steps(asked)
        kept = (VARIANTS.kind, asked.name), (CONFIG_MAPS.kind, objects.class_name(asked))
        there: dict[Name, dict[str, Any]] = {}
        for name in chain(*made.values(), kept):
            if (stored := _get(world, name, asked.namespace)) is not None:
                is_retried = (objects.order_key(asked), name) in self.retried
                there[name] = {**stored, "status": {}} if is_retried else stored
        runs: dict[str, tuple[MeasuredRun, ...]] = {}
        for runtime in (candidate.runtime for candidate in asked.candidates):
            first, *more = [_measured(there.get(name)) for name in made[StepId(progress.MEASURE, runtime)]]
            if first is not None:
                # What was measured of another state of the service is of another engine.
                same = [one.runs for one in more if one is not None and one.service == first.service]
                runs[runtime] = tuple(chain(first.runs, *same))
        pods: list[EnginePod] = [one for one in world[PODS].all() if one.service == asked.name]
        served = next((one.model for one in pods if one.component == ENGINE), None)
        failed = {name: why for (key, name), why in self.failed.items() if key == objects.order_key(asked)}
        return Findings(there, runs, memory.given_up, refused, served, now, failed)


def _manifest(asked: OnboardRequest, document: objects.Document, now: float) -> objects.Document:
    """Objects that stay have no owner; probes and benchmarks go with the onboarding."""
    kind, name = name_of(document)
    if kind in _KEPT or name == asked.name:
        document = {**document, "metadata": {**document["metadata"], "ownerReferences": []}}
    if kind not in _CARRIED_OUT:
        return document
    metadata, claim = document["metadata"], str(child_claim(document, now))
    return {**document, "metadata": {**metadata, "annotations": {**metadata["annotations"], CLAIM: claim}}}


def _get(world: World, name: Name, namespace: str) -> dict[str, Any] | None:
    stored: dict[str, Any] | None = world[_BY_KIND[name[0]]].get(Key(namespace, name[1]))
    return stored


def _steps(here: OnboardStanding, plan: Plan, waiting: Mapping[tuple[Key, Name], str]) -> dict[StepId, PlanStep]:
    """The first that is active also keeps the memory."""
    step_of = {name: step for step, names in objects_of_steps(here.asked).items() for name in names}
    made, removed = defaultdict[StepId, list[Mapping[str, Any]]](list), defaultdict[StepId, list[Child]](list)
    for body in plan.apply:
        made[step_of.get(name_of(body), progress.SERVE)].append(body)
    for child in plan.delete:
        removed[StepId(progress.REMOVE, step_of[child.kind.kind, child.key.name].item)].append(child)
    phases = step_phases(here)
    first = next((step for step, state in phases.items() if state.phase is StepPhase.ACTIVE), None)

    def message(step: StepId, state: PlanStep) -> str:
        obj = object_of(here, step) if state.phase is StepPhase.ACTIVE else None
        return (obj is not None and waiting.get((plan.subject.key, name_of(obj)))) or state.message

    return {
        step: replace(
            state,
            message=message(step, state),
            apply=tuple(made[step]),
            delete=tuple(removed[step]),
            awaits=(str(step),) if state.phase is StepPhase.ACTIVE else (),
            keeps=bool(plan.annotations) and step == first,
        )
        for step, state in phases.items()
    }


def _measured(job: Mapping[str, Any] | None) -> BenchmarkMemory | None:
    done = job is not None and (job.get("status") or {}).get("state") == "Completed"
    return benchmark(job).memory if job is not None and done else None


def _remembered(
    asked: OnboardRequest, found: Findings, steps: NextSteps, memory: OnboardMemory, now: float
) -> OnboardMemory:
    given_up = {name: cut(why, 2000) for name, why in steps.given_up.items()}
    probed = dict(memory.probed)
    for one in asked.candidates:
        name = "InferenceService", objects.probe_name(asked, one)
        if name in steps.remove:
            since = epoch(found.there[name]["metadata"].get("creationTimestamp"))
            if probed.get(one.runtime, (0.0, 0.0))[0] != since:
                probed[one.runtime] = since, float(round(now))
    return memory.model_copy(update={"given_up": given_up or memory.given_up, "probed": probed})
