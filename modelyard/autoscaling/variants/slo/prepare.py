"""First stage of whatever aims at latency targets: what is known before a group is decided, for all of them at once.

``autoscaling.decide`` calls ``read_variants`` before it groups and ``measure_groups`` after. Both work variant by
variant or group by group: what one of them breaks, it breaks alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from modelyard.autoscaling.accelerators import ACCELERATOR_LABEL
from modelyard.autoscaling.config_maps import ObjectNotice
from modelyard.autoscaling.fleet import Fleet, SLOSpec
from modelyard.autoscaling.memory.variants import SLOMemory
from modelyard.autoscaling.mixing.model import LOWEST_PRIORITY
from modelyard.autoscaling.settings import FleetSettings, SizingAim
from modelyard.autoscaling.sizing.learning import LEAST
from modelyard.autoscaling.variants.attribution import Performances
from modelyard.autoscaling.variants.slo import feedback, online
from modelyard.autoscaling.variants.slo.aim import attain
from modelyard.autoscaling.variants.slo.classes import (
    DEFAULT,
    ServiceClass,
    ServiceClasses,
    class_references,
    slo_look_alikes,
)
from modelyard.autoscaling.variants.slo.costs import UnitCosts
from modelyard.autoscaling.variants.slo.load import measure_load
from modelyard.autoscaling.variants.slo.outlook import look_ahead
from modelyard.autoscaling.variants.slo.profile import Profile, ProfileInvalid, identity_mismatch, parse_profile
from modelyard.autoscaling.variants.slo.sizing import size_groups, size_rows
from modelyard.autoscaling.variants.slo.work import VariantWork
from modelyard.autoscaling.variants.state import Group, State
from modelyard.metrics.values import PodPerformance
from modelyard.objects import Notice

NOBODY = SLOSpec("", "", 1, "", "", {}, {}, 1)
BATCH = 256
"""Requests at a time that an engine is taken to work on where nobody says so, as by default; ITL binds long before."""
NOT_LEARNT = "aims at latency targets once its engine's speed is learnt"


def read_variants(
    fleet: Fleet, states: Sequence[State], performances: Performances, settings: FleetSettings
) -> list[ObjectNotice]:
    """Give every state its ``slo`` that has a profile, or of which one can be learnt; returns what to say about
    ConfigMaps."""
    aimed = settings.aim is SizingAim.ATTAINMENT and (settings.target_ttft > 0 or settings.target_itl > 0)
    found = [state for state in states if state.variant.slo is not None or (aimed and _shows(state, performances))]
    if not found:
        return []
    costs = UnitCosts(fleet.config_maps, settings)
    classes = ServiceClasses(fleet.config_maps, settings, class_references(fleet.variants))
    for state in found:
        spec = state.variant.slo
        state.slo = VariantWork(spec, memory=state.memory.slo or SLOMemory(), performance=_done(state, performances))
        try:
            if spec is not None:
                _read(state, state.slo, spec, costs, classes)
            else:
                _take_class(state, state.slo, classes, settings)
            if spec is None or (settings.estimator and not state.slo.problem):
                _learn(state, state.slo, fleet, settings)
        except Exception as error:  # this variant's alone
            state.slo.problem = f"its latency targets could not be read: {type(error).__name__}: {error}"
    namespaces = {state.variant.key.namespace for state in states}
    return [
        *costs.notices,
        *classes.notices,
        *slo_look_alikes(fleet.config_maps, settings, namespaces, classes.used),
    ]


def _shows(state: State, performances: Performances) -> bool:
    """Whether a variant in saturation form shows how fast its engine is, or did."""
    variant = state.variant
    if variant.form != "saturation" or not state.rules.plans_ahead:
        return False
    if state.memory.slo is not None and state.memory.slo.speed is not None:
        return True
    return any(one.steady_itl is not None for one in _done(state, performances))


def _done(state: State, performances: Performances) -> list[PodPerformance]:
    """What the variant's pods did."""
    found = (performances.get((*pod.key, state.variant.model_id)) for pod in state.pods)
    return [one for one in found if one is not None]


def _take_class(state: State, work: VariantWork, classes: ServiceClasses, settings: FleetSettings) -> None:
    """The class that has a model in saturation form, else the fleet's targets."""
    variant = state.variant
    work.cost = variant.cost
    work.service = classes.resolve(variant.key.namespace, NOBODY, variant.model_id, by_reference=False).service
    if work.service is None:
        where = "the fleet's settings (target_ttft, target_itl)"
        work.service = ServiceClass(DEFAULT, LOWEST_PRIORITY, settings.target_ttft, settings.target_itl, where)


def _learn(state: State, work: VariantWork, fleet: Fleet, settings: FleetSettings) -> None:
    """Take what the engine shows of its speed for its profile, once enough was seen."""
    sizes = fleet.signals.sizes.get((state.variant.key.namespace, state.variant.model_id))
    online.learn(state, sizes.prompt if sizes is not None else (), settings, fleet.now)
    found = online.known(state)
    if found.speed is None:
        if work.profile is None:
            work.problem = f"{NOT_LEARNT} ({found.seen:.0f} of {LEAST} observations)"
        return
    alpha, beta, _, delta = found.speed
    work.profile = Profile(*found.speed, work.profile.max_batch if work.profile is not None else BATCH)
    work.learnt = (
        f"learnt from what was seen of the engine: a step takes {alpha:.3g} ms, {beta:.2g} ms more with each "
        f"request and {delta:.2g} ms with each prompt token"
    )


def _read(state: State, work: VariantWork, spec: SLOSpec, costs: UnitCosts, classes: ServiceClasses) -> None:
    variant = state.variant
    namespace, model = variant.key.namespace, variant.model_id
    try:
        work.profile = parse_profile(spec)
    except ProfileInvalid as error:
        work.profile_problem = work.problem = str(error)
    found = classes.resolve(namespace, spec, model, state.rules.class_by_reference)
    work.service = found.service
    if found.service is None:
        work.problem = "; ".join(filter(None, (work.problem, found.note)))
    elif found.note:
        _warn(state, "SLOClassNotFound", found.note)
    work.unit_cost = costs.price(namespace, spec.accelerator)
    if work.unit_cost is None:
        work.price_problem = (
            f"ConfigMap {costs.source} has no price for accelerator {spec.accelerator!r}: add the key"
            f" {spec.accelerator} with a cost; until then a replica counts with spec.variantCost = {variant.cost:g}"
        )
        if state.rules.needs_price:
            work.problem = work.problem or work.price_problem
        work.cost = variant.cost
    else:
        work.cost = work.unit_cost * spec.accelerator_count
    if work.cost != variant.cost:
        state.variant = replace(variant, cost=work.cost)
    if (mismatch := identity_mismatch(spec, model)) is not None:
        _warn(state, "VariantIDMismatch", mismatch)
    label = variant.labels.get(ACCELERATOR_LABEL)
    if label and label != spec.accelerator:
        text = (
            f"label {ACCELERATOR_LABEL} = {label!r} differs from spec.accelerator = {spec.accelerator!r}, which counts"
        )
        _warn(state, "AcceleratorMismatch", text)


def _warn(state: State, reason: str, message: str) -> None:
    state.notices = (*state.notices, Notice(reason, message, "Warning"))


class Forecasting(NamedTuple):
    """How groups with targets are measured, sized and explained; ``size`` gives errors by group."""

    measure: Callable[[Group, Sequence[Group], Performances, Fleet, FleetSettings], None]
    size: Callable[[Sequence[Group], FleetSettings, float], Mapping[Group, str]]
    look_ahead: Callable[[Sequence[Group], FleetSettings], None]


def measure_groups(
    parts: Iterable[tuple[Forecasting, Sequence[Group]]],
    groups: Sequence[Group],
    performances: Performances,
    fleet: Fleet,
    settings: FleetSettings,
) -> Mapping[Group, str]:
    """Loads, corrections and rates of all groups with targets, the ``parts`` of all ``groups``; returns errors."""
    errors: dict[Group, str] = {}
    serving: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        serving.setdefault((group.namespace, group.model_id), []).append(group)
    for forecasting, mine in parts:
        good: list[Group] = []
        for group in mine:
            try:
                together = serving[group.namespace, group.model_id]
                forecasting.measure(group, together, performances, fleet, settings)
                good.append(group)
            except Exception as error:  # this group's alone
                errors[group] = f"{type(error).__name__}: {error}"
        errors |= forecasting.size(good, settings, fleet.now)
    return errors


def _measure(
    group: Group, together: Sequence[Group], performances: Performances, fleet: Fleet, settings: FleetSettings
) -> None:
    measure_load(group, together, performances, fleet, settings)
    feedback.recall(group.states, settings)


def _size(groups: Sequence[Group], settings: FleetSettings, now: float) -> Mapping[Group, str]:
    try:
        feedback.learn(groups, settings, now)
    except Exception:  # then group by group: a correction that is not learnt this time is learnt the next
        for group in groups:
            with suppress(Exception):
                feedback.learn([group], settings, now)
    errors = size_groups(groups, lambda rows: size_rows(rows, settings))
    if settings.aim is SizingAim.ATTAINMENT:
        for group in groups:
            try:
                attain(group, settings, now)
            except Exception as error:  # this group's alone
                errors.setdefault(group, f"{type(error).__name__}: {error}")
    return errors


FORECASTING = Forecasting(_measure, _size, look_ahead)
