"""The life of a BenchmarkJob: one Kubernetes Job for each run, one after the other, until all are measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from modelyard.benchmarks.jobs.probe import made_service
from modelyard.benchmarks.jobs.series import RUN_PODS, BenchmarkLook, Chosen, RunDeeds
from modelyard.benchmarks.jobs.settings import CONFIG_MAP, KEY, BenchmarkSettings
from modelyard.benchmarks.jobs.story import Here, told, warnings
from modelyard.benchmarks.jobs.targets import Load
from modelyard.benchmarks.jobs.world import (
    BENCHMARK_JOBS,
    LABEL,
    MEMORY,
    PUBLISHED_FINALIZER,
    StoredBenchmark,
    benchmark,
    engine_pod,
    run_job,
    run_pod,
    wish,
)
from modelyard.models.delivery import world as models_world
from modelyard.models.storage import settings as models_settings
from modelyard.objects import JOBS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS, Key, namespace
from modelyard.reconcile.plans import (
    FAILED,
    FIELDS_IGNORED,
    Child,
    Plan,
    PlanStep,
    StepId,
    StepPhase,
    Want,
    World,
    WriteRules,
    render_memory,
    settings_wanted,
    with_spec_warning,
)
from modelyard.workloads.rendering import names
from modelyard.workloads.roll_out import INFERENCE_SERVICES, MODELS_WANTED, SERVICES_WANTED

SETTINGS = "benchmark-settings"


@dataclass(eq=False)
class BenchmarkRuns:
    """BenchmarkJobs. ``home`` is the controller's namespace, where the settings are. Plans have a ``Here``."""

    home: str

    name = "benchmark"
    about = BENCHMARK_JOBS

    @property
    def wants(self) -> tuple[Want[Any], ...]:
        """BenchmarkJobs, what they measure, their Jobs and pods, claims, and what administrators say."""
        return (
            Want(BENCHMARK_JOBS, benchmark, wish=wish),
            SERVICES_WANTED._replace(namespace="", use="benchmarks"),
            *MODELS_WANTED,
            Want(
                PODS,
                engine_pod,
                label_selector=names.SERVICE,
                cached=True,
                indexes=_OF_PODS,
                use="benchmarks",
                namespace="",
            ),
            Want(JOBS, run_job, label_selector=LABEL, indexes=_OF_JOBS, namespace=""),
            Want(PODS, run_pod, label_selector=LABEL, indexes={"job": lambda one: (one.job,)}, called=RUN_PODS),
            Want(NAMESPACES, namespace, use="services"),
            Want(PERSISTENT_VOLUME_CLAIMS, models_world.claim, cached=True, namespace=""),
            settings_wanted(self.home, CONFIG_MAP, lambda data: BenchmarkSettings.read(data.get(KEY)), SETTINGS),
            models_settings.delivery_settings_wanted(self.home),
        )

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """What is to be made, taken away, kept and told for the BenchmarkJob of this name."""
        one: StoredBenchmark | None = world[BENCHMARK_JOBS].get(key)
        if one is None or one.subject.deleting:
            if one is None or PUBLISHED_FINALIZER not in one.finalizers:
                return None
            removing = Plan(one.subject, "Removing", finalizer=False, finalizer_name=PUBLISHED_FINALIZER)
            return replace(removing, by_shift=True)
        here, deeds = BenchmarkLook(one, world, now, self.chosen(world)).result()
        if here.memory.ended or here.refused:
            made = made_service(one, world)
            probes = () if made is None else (Child(INFERENCE_SERVICES, made.key, made.subject.uid),)
            deeds = replace(deeds, delete=(*deeds.delete, *probes))
        wanted = render_memory(here.memory)
        stored = render_memory(one.memory) if one.damaged is None else ""
        annotations = {MEMORY: wanted} if wanted != stored else {}
        if one.failed_before and not deeds.apply and not deeds.delete:
            annotations[FAILED] = None
        ineffective = [(FIELDS_IGNORED, text) for text in (warnings(one.spec) if one.spec is not None else ())]
        plan = with_spec_warning(told(here, now), one.status, ineffective)
        return replace(
            plan,
            annotations=annotations,
            apply=deeds.apply,
            rules=WriteRules.of((JOBS, INFERENCE_SERVICES)),
            delete=deeds.delete,
            awaits=deeds.awaits,
            due=deeds.due,
            noted=True,
            by_shift=True,
            steps=_steps(one, here, deeds, bool(annotations)),
            details=here,
        )

    def chosen(self, world: World) -> Chosen:
        """What administrators have set, and what is wrong with it."""
        chosen, problem = next(iter(world[SETTINGS].all()), (BenchmarkSettings(), None))
        return chosen, next(iter(world[models_settings.WANTED].all()), models_settings.DeliverySettings()), problem


def _steps(one: StoredBenchmark, here: Here, deeds: RunDeeds, keeps: bool) -> dict[StepId, PlanStep]:
    """A run is on record once the object's memory has it, so that the end of a run belongs to its own step."""
    recorded = {Load(run.scenario, run.concurrency) for run in one.memory.runs}
    load = next((load for load in here.loads if load not in recorded), None)
    if here.memory.failed:
        state = StepPhase.FAILED
    elif here.refused or load is None:
        return {}
    else:
        state = StepPhase.ACTIVE if deeds.awaits else StepPhase.WAITING
    begun = load is not None and (one.memory.began or here.load is not None)
    step = StepId("measure", str(load)) if begun else StepId("prepare")
    message = here.memory.failed or here.message
    share = len(here.memory.runs) / max(1, len(here.loads))
    return {step: PlanStep(state, message, share, (), deeds.apply, (), deeds.delete, deeds.awaits, keeps)}


_OF_PODS: Final = {"service": lambda one: ((one.key.namespace, one.service),)}
_OF_JOBS: Final = {"owner": lambda one: (one.owner,), "target": lambda one: (one.target,)}
