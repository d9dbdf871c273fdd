"""Service class, price and profile (written or learnt) of variants; a failure concerns its variant only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from modelyard.autoscaling.configuration import FleetSettings, ObjectNotice, SizingAim
from modelyard.autoscaling.decisions import Explanation, Parts, Reason
from modelyard.autoscaling.fleet import ACCELERATOR_LABEL, Fleet, SLOSpec
from modelyard.autoscaling.memory import SLOMemory
from modelyard.autoscaling.mixing import LOWEST_PRIORITY
from modelyard.autoscaling.sizing import LEAST
from modelyard.autoscaling.variants.attribution import Performances
from modelyard.autoscaling.variants.classes import (
    DEFAULT,
    ServiceClass,
    ServiceClasses,
    class_references,
    slo_look_alikes,
)
from modelyard.autoscaling.variants.costs import UnitCosts
from modelyard.autoscaling.variants.objective import Objective
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.profile import Profile, ProfileInvalid, identity_mismatch, parse_profile
from modelyard.autoscaling.variants.slo import online
from modelyard.metrics.vocabulary import PodPerformance
from modelyard.objects import Notice

NOBODY = SLOSpec("", "", 1, "", "", {}, {}, 1)
BATCH = 256
"""Requests at a time that an engine is taken to work on where nobody says so, as by default; ITL binds long before."""


def read_objectives(
    fleet: Fleet, variants: Sequence[Observation], performances: Performances, settings: FleetSettings
) -> tuple[list[Observation], list[ObjectNotice]]:
    """Return the variants, with an objective where a profile exists or is learnt, and remarks on ConfigMaps."""
    aimed = settings.aim is SizingAim.ATTAINMENT and (settings.target_ttft > 0 or settings.target_itl > 0)
    having = [seen.variant.slo is not None or (aimed and _can_learn(seen, performances)) for seen in variants]
    if not any(having):
        return list(variants), []
    costs = UnitCosts(fleet.config_maps, settings)
    classes = ServiceClasses(fleet.config_maps, settings, class_references(fleet.variants))
    result: list[Observation] = []
    for seen, has_objective in zip(variants, having, strict=True):
        if not has_objective:
            result.append(seen)
            continue
        memory, performance = seen.memory.slo or SLOMemory(), _performance(seen, performances)
        start = Objective(seen.variant.slo, 0.0, memory, performance)
        try:
            spec, notices = seen.variant.slo, tuple[Notice, ...]()
            if spec is None:
                objective = _by_model(seen, start, classes, settings)
            else:
                objective, notices = _by_spec(seen, start, spec, costs, classes)
            if spec is None or (settings.estimator and objective.problem is None):
                objective = _learnt(seen, objective, fleet, settings)
            is_same = objective.cost == seen.variant.cost
            variant = seen.variant if is_same else replace(seen.variant, cost=objective.cost)
            result.append(seen._replace(variant=variant, objective=objective, notices=(*seen.notices, *notices)))
        except Exception as error:  # this variant's alone
            problem = Explanation(Reason.OBJECTIVE_UNREADABLE, error=f"{type(error).__name__}: {error}")
            result.append(seen._replace(objective=start._replace(problem=problem)))
    look_alikes = slo_look_alikes(fleet.config_maps, settings, {seen.key.namespace for seen in variants}, classes.used)
    return result, [*costs.notices, *classes.notices, *look_alikes]


def _can_learn(seen: Observation, performances: Performances) -> bool:
    if seen.variant.form != "saturation" or not seen.handling.reading.uses_load:
        return False
    if seen.memory.slo is not None and seen.memory.slo.speed is not None:
        return True
    return bool(performances) and any(pod.steady_itl is not None for pod in _performance(seen, performances))


def _performance(seen: Observation, performances: Performances) -> list[PodPerformance]:
    reported = (performances.get((*pod.key, seen.variant.model_id)) for pod in seen.pods)
    return [pod for pod in reported if pod is not None]


def _by_model(seen: Observation, start: Objective, classes: ServiceClasses, settings: FleetSettings) -> Objective:
    """The class of a model in saturation form, else the fleet's targets."""
    variant = seen.variant
    service = classes.resolve(variant.key.namespace, NOBODY, variant.model_id, by_reference=False).service
    if service is None:
        where = "the fleet's settings (target_ttft, target_itl)"
        service = ServiceClass(DEFAULT, LOWEST_PRIORITY, settings.target_ttft, settings.target_itl, where)
    return start._replace(cost=variant.cost, service=service)


def _learnt(seen: Observation, objective: Objective, fleet: Fleet, settings: FleetSettings) -> Objective:
    sizes = fleet.signals.sizes.get((seen.key.namespace, seen.variant.model_id))
    memory = online.learn(seen, objective, sizes.prompt if sizes is not None else (), settings, fleet.now)
    objective = objective._replace(memory=memory)
    known = online.known(memory)
    if known.speed is None:
        if objective.profile is not None:
            return objective
        return objective._replace(problem=Explanation(Reason.NOT_LEARNT, seen=known.seen, least=LEAST))
    alpha, beta, _, delta = known.speed
    batch = objective.profile.max_batch if objective.profile is not None else BATCH
    learnt = Explanation(Reason.PROFILE_LEARNT, alpha=alpha, beta=beta, delta=delta)
    return objective._replace(profile=Profile(*known.speed, batch), learnt=learnt)


def _by_spec(
    seen: Observation, start: Objective, spec: SLOSpec, costs: UnitCosts, classes: ServiceClasses
) -> tuple[Objective, tuple[Notice, ...]]:
    variant, reading = seen.variant, seen.handling.reading
    namespace, model = variant.key.namespace, variant.model_id
    notices: list[Notice] = []
    profile, profile_problem, problems = None, None, list[Explanation]()
    try:
        profile = parse_profile(spec)
    except ProfileInvalid as error:
        profile_problem = Explanation(Reason.PROFILE_INVALID, problem=error)
        problems.append(profile_problem)
    resolved = classes.resolve(namespace, spec, model, reading.class_by_reference)
    if resolved.service is None:
        problems.append(Explanation(Reason.CLASS_NOT_FOUND, problem=resolved.note))
    elif resolved.note:
        notices.append(Notice("SLOClassNotFound", resolved.note, "Warning"))
    unit_cost, price_problem = costs.price(namespace, spec.accelerator), None
    if unit_cost is None:
        facts = {"source": costs.source, "accelerator": spec.accelerator, "cost": variant.cost}
        price_problem = Explanation(Reason.PRICE_MISSING, **facts)
        if reading.needs_price and not problems:
            problems.append(price_problem)
    if (mismatch := identity_mismatch(spec, model)) is not None:
        notices.append(Notice("VariantIDMismatch", mismatch, "Warning"))
    label = variant.labels.get(ACCELERATOR_LABEL)
    if label and label != spec.accelerator:
        differs = f"differs from spec.accelerator = {spec.accelerator!r}, which counts"
        notices.append(Notice("AcceleratorMismatch", f"label {ACCELERATOR_LABEL} = {label!r} {differs}", "Warning"))
    cost = variant.cost if unit_cost is None else unit_cost * spec.accelerator_count
    problem = Parts(problems) if problems else None
    objective = start._replace(profile=profile, profile_problem=profile_problem, service=resolved.service)
    objective = objective._replace(cost=cost, problem=problem, unit_cost=unit_cost, price_problem=price_problem)
    return objective, tuple(notices)
