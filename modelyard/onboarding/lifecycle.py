"""The life of an onboarding: what it looks at, and what follows from it. It stands for itself as a ConfigMap. Pure."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from modelyard.benchmarks.values import MeasuredRun
from modelyard.benchmarks.world import BENCHMARK_JOBS, EnginePod, benchmark, engine_pod
from modelyard.benchmarks.world import Memory as BenchmarkMemory
from modelyard.models.names import BASE_MODELS
from modelyard.objects import Key, ResourceType
from modelyard.objects.documents import cut
from modelyard.objects.kinds import CONFIG_MAPS, NODES, PODS
from modelyard.objects.parse import epoch, node
from modelyard.onboarding import objects
from modelyard.onboarding.fits import fits
from modelyard.onboarding.plan import Findings, Name, NextSteps, benchmarks, name_of, next_steps
from modelyard.onboarding.progress import REMOVE, SELECT, OnboardMemory, OnboardStanding, step_of, step_phases
from modelyard.onboarding.request import OnboardRequest
from modelyard.reconcile.dispatch import child_claim
from modelyard.reconcile.memory import parse_memory, render_memory
from modelyard.reconcile.plan import CLAIM, Child, Plan, PlanStep, ServedKind, StepId, StepPhase, Subject, Want, World
from modelyard.reconcile.write_rules import WriteRules
from modelyard.workloads import names
from modelyard.workloads.world import CLASSES_SERVED, INFERENCE_SERVICES, RUNTIMES_WANTED, VARIANTS, classes_wanted

MEMORY = "modelyard.dev/onboarding-memory"
"""Annotation: what cannot be seen any more, or may look different later."""
_KINDS: tuple[ResourceType, ...] = (BASE_MODELS, INFERENCE_SERVICES, BENCHMARK_JOBS, VARIANTS)
_BY_KIND = {one.kind: one for one in (*_KINDS, CONFIG_MAPS)}
_CARRIED_OUT = frozenset(kind.kind for kind in (BASE_MODELS, INFERENCE_SERVICES, BENCHMARK_JOBS))
"""Kinds whose objects a child run works on."""
_KEPT = frozenset(("BaseModel", "ConfigMap", "VariantAutoscaling"))


@dataclass(eq=False)
class Onboarding:
    """Onboardings. ``seen`` is where the last look at each is left for whoever follows it.

    ``failed`` says of objects why the run that worked on them has failed for good. ``retried`` has those whose failed
    run is tried again: what their status says is from before.
    """

    seen: MutableMapping[Key, OnboardStanding] = field(default_factory=dict)
    failed: MutableMapping[tuple[Key, Name], str] = field(default_factory=dict)
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
            Want(PODS, engine_pod, label_selector=names.SERVICE, cached=True, use="onboard"),
        )

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """What is to be made, taken away and kept for the onboarding of this name."""
        stored = world[CONFIG_MAPS].get(key)
        if stored is None or stored["metadata"].get("deletionTimestamp"):
            self.seen.pop(key, None)
            return None
        asked, annotations = objects.stored_request(stored), stored["metadata"].get("annotations") or {}
        memory, damaged = parse_memory(OnboardMemory, MEMORY, annotations.get(MEMORY))
        kept_before = memory
        model = _get(world, BASE_MODELS, key.namespace, asked.name)
        refused: Mapping[str, str] = {}
        if model is not None and (model.get("status") or {}).get("state") == "Ready":
            offered, refused = fits(asked, model, world, world[NODES].all())
            if not asked.candidates:
                memory = memory if memory.candidates else memory.model_copy(update={"candidates": offered})
                asked = asked.model_copy(update={"candidates": memory.candidates})
        failed = {name: why for (of, name), why in self.failed.items() if of == key}
        found = replace(self._found(asked, world, memory, refused, now), failed=failed)
        steps = next_steps(asked, found)
        memory = _remembered(asked, found, steps, memory, now)
        self.seen[key] = here = OnboardStanding(asked, found, steps, memory)
        wanted = render_memory(memory)
        keep = {MEMORY: wanted} if wanted != (None if damaged else annotations.get(MEMORY)) else {}
        # Of two looks while it goes, the second has nothing to do but to wait.
        going = [found.there[one]["metadata"] for one in steps.remove]
        delete = tuple(
            Child(_BY_KIND[kind], Key(key.namespace, name), metadata["uid"])
            for (kind, name), metadata in zip(steps.remove, going, strict=True)
            if not metadata.get("deletionTimestamp")
        )
        awaits = (*steps.awaits, *(f"{kind} {name}: gone" for kind, name in steps.remove))
        subject = Subject.of(CONFIG_MAPS, stored)
        apply = tuple(_claimed(_owned(asked, document), now) for document in steps.apply)
        rules = WriteRules.of(_BY_KIND.values())
        plan = Plan(subject, annotations=keep, apply=apply, rules=rules, delete=delete, awaits=awaits)
        if memory.candidates and not kept_before.candidates:
            selected = PlanStep(StepPhase.ACTIVE, step_phases(here)[SELECT].message, keeps=True)
            return replace(plan, steps={SELECT: selected})
        return replace(plan, steps=_steps(here, plan))

    def _found(
        self, asked: OnboardRequest, world: World, memory: OnboardMemory, refused: Mapping[str, str], now: float
    ) -> Findings:
        named = {kind.kind: [asked.name] for kind in (BASE_MODELS, INFERENCE_SERVICES, VARIANTS)}
        named["ConfigMap"] = [objects.class_name(asked)]
        probes = [objects.probe_name(asked, one) for one in asked.candidates]
        named[INFERENCE_SERVICES.kind] = [*named[INFERENCE_SERVICES.kind], *probes]
        jobs = {one.runtime: [name_of(job)[1] for job in benchmarks(asked, one)] for one in asked.candidates}
        named[BENCHMARK_JOBS.kind] = list(chain(*jobs.values()))
        there: dict[Name, dict[str, Any]] = {}
        for kind, called in named.items():
            for name in called:
                if (one := _get(world, _BY_KIND[kind], asked.namespace, name)) is not None:
                    is_retried = (objects.order_key(asked), (kind, name)) in self.retried
                    there[kind, name] = {**one, "status": {}} if is_retried else one
        runs: dict[str, tuple[MeasuredRun, ...]] = {}
        for runtime, called in jobs.items():
            first, *more = [_measured(there.get((BENCHMARK_JOBS.kind, name))) for name in called]
            if first is not None:
                # What was measured of another state of the service is of another engine.
                same = [one.runs for one in more if one is not None and one.service == first.service]
                runs[runtime] = tuple(chain(first.runs, *same))
        pods: list[EnginePod] = [one for one in world[PODS].all() if one.service == asked.name]
        served = next((one.model for one in pods if one.component == names.ENGINE), None)
        return Findings(there, runs, memory.given_up, refused, served, now)


def _claimed(document: objects.Document, now: float) -> objects.Document:
    """Return the object with the claim of the child run that is to work on it."""
    if document["kind"] not in _CARRIED_OUT:
        return document
    metadata = document["metadata"]
    claim = str(child_claim(document, now))
    return {**document, "metadata": {**metadata, "annotations": {**metadata["annotations"], CLAIM: claim}}}


def _get(world: World, kind: ResourceType, namespace: str, name: str) -> dict[str, Any] | None:
    stored: dict[str, Any] | None = world[kind].get(Key(namespace, name))
    return stored


def _steps(here: OnboardStanding, plan: Plan) -> dict[StepId, PlanStep]:
    """Return the steps with what each makes and removes. The first that is active also keeps the memory."""
    made: dict[StepId, list[Mapping[str, Any]]] = {}
    for body in plan.apply:
        made.setdefault(step_of(here.asked, name_of(body)), []).append(body)
    removed: dict[StepId, list[Child]] = {}
    for child in plan.delete:
        step = step_of(here.asked, (child.kind.kind, child.key.name))
        removed.setdefault(StepId(REMOVE, step.item), []).append(child)
    steps, keeps = {}, bool(plan.annotations)
    for step, state in step_phases(here).items():
        unfinished = state.phase is StepPhase.ACTIVE
        steps[step] = replace(
            state,
            apply=tuple(made.get(step, ())),
            delete=tuple(removed.get(step, ())),
            awaits=(str(step),) if unfinished else (),
            keeps=keeps and unfinished,
        )
        keeps = keeps and not unfinished
    return steps


def _measured(job: Mapping[str, Any] | None) -> BenchmarkMemory | None:
    """What a BenchmarkJob has measured, when it is done."""
    done = job is not None and (job.get("status") or {}).get("state") == "Completed"
    return benchmark(job).memory if job is not None and done else None


def _remembered(
    asked: OnboardRequest, found: Findings, steps: NextSteps, memory: OnboardMemory, now: float
) -> OnboardMemory:
    """What is to be kept before the steps are taken."""
    given_up = {name: cut(why, 2000) for name, why in steps.given_up.items()}
    probed = dict(memory.probed)
    for one in asked.candidates:
        name = "InferenceService", objects.probe_name(asked, one)
        if name in steps.remove:
            since = epoch(found.there[name]["metadata"].get("creationTimestamp"))
            if probed.get(one.runtime, (0.0, 0.0))[0] != since:
                probed[one.runtime] = since, float(round(now))
    return memory.model_copy(update={"given_up": given_up or memory.given_up, "probed": probed})


def _owned(asked: OnboardRequest, document: objects.Document) -> objects.Document:
    """What stays has no owner; probes and benchmarks go with the onboarding."""
    kind, name = name_of(document)
    if kind not in _KEPT and name != asked.name:
        return document
    return {**document, "metadata": {**document["metadata"], "ownerReferences": []}}
