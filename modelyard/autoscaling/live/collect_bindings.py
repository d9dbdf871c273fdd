"""Read AutoscalingPolicyBindings, their policies, targets, pods and metrics.

One scrape per pod, one query per expression, whatever the number of bindings. A binding that cannot be read completely
says so in its own view; it never stops another.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from modelyard.autoscaling.configuration import FleetSettings, fleet_handling, handling_of
from modelyard.autoscaling.fleet import BindingView
from modelyard.autoscaling.live import wants
from modelyard.autoscaling.live.binding_claims import binding_claims, claims_beyond, reachable
from modelyard.autoscaling.live.collect import Selection, read_workloads
from modelyard.autoscaling.live.policy_state import PolicyState
from modelyard.autoscaling.pipeline import binding_strategy
from modelyard.autoscaling.reading.bindings import (
    ListedBindings,
    TargetPods,
    TargetSpec,
    backends_of,
    binding_view,
    give_way,
    policy_of,
    resolve_workload,
    scrapes,
    target_plans,
    target_pods,
)
from modelyard.autoscaling.variants import INSTANCE_LABEL
from modelyard.cluster import Forbidden, UnknownKind
from modelyard.metrics.prometheus import Expressions
from modelyard.objects import Key, Workload, parse_selector
from modelyard.reconcile.kernel import Mirror

log = logging.getLogger(__name__)


async def list_bindings(
    mirror: Mirror, settings: FleetSettings, selection: Selection, state: PolicyState
) -> ListedBindings:
    """The first half: what there is to observe. ``observe_bindings`` can then run beside other reading."""
    spaces = selection.spaces(settings)
    selected = parse_selector(selection.label_selector)
    state.listed_policies = ()
    try:
        stored = (await mirror.read(wants.bindings(selection.label_selector), spaces)).within(spaces)
    except UnknownKind:
        return ListedBindings()
    except Forbidden as error:
        log.warning("AutoscalingPolicyBindings are not handled: %s", error)
        return ListedBindings()
    listed = await reachable(mirror, stored)
    # Which bindings are ours is found out here and not by the API server: the others are rivals to know of.
    bindings = tuple(spec for spec in listed if _is_ours(spec.view, settings) and selected(spec.view.labels))
    if not bindings:
        return ListedBindings()
    places = {spec.view.key.namespace for spec in bindings}
    try:
        found = (await mirror.read(wants.EVERY_POLICY, places)).within(places)
    except (UnknownKind, Forbidden) as error:
        return ListedBindings(bindings, {}, str(error))
    state.listed_policies = found
    ours = {spec.view.key for spec in bindings}
    others = binding_claims(spec for spec in listed if spec.view.key not in ours)
    result = ListedBindings(bindings, {policy.key: policy for policy in found})
    others += await claims_beyond(mirror, result.homes, spaces, selection.label_selector)
    return replace(result, others=tuple(others))


def _is_ours(view: BindingView, settings: FleetSettings) -> bool:
    return not view.deleting and view.labels.get(INSTANCE_LABEL) == (settings.controller_instance or None)


async def observe_bindings(
    mirror: Mirror, expressions: Expressions, settings: FleetSettings, listed: ListedBindings, state: PolicyState
) -> tuple[BindingView, ...]:
    """The second half: workloads, pods, pages and queries of these bindings."""
    if not listed.bindings:
        return ()
    homes = listed.homes
    wanted = {id_ for binding in listed.bindings for target in binding.targets for id_ in target.candidates}
    named = {Key(t.workload.namespace, t.workload.name) for b in listed.bindings for t in b.targets if t.is_alias}
    (workloads, errors), pods, answers = await asyncio.gather(
        read_workloads(mirror, wanted, homes, partial=True, backends=named),
        mirror.read(wants.LIVE_PODS, homes, partial=True),
        expressions.numbers(one for b in listed.bindings for one in b.queries(policy_of(b, listed)[0])),
    )
    for place, error in pods.errors.items():
        if place in homes:
            log.warning("pods of policy targets cannot be measured: %s", error)

    backends = backends_of(workloads.values())

    def find(spec: TargetSpec) -> tuple[Workload | None, str | None, TargetPods]:
        workload, problem = resolve_workload(spec, workloads, backends, errors)
        if workload is None:
            return None, problem, TargetPods()
        return workload, None, target_pods(pods, workload, spec.match_labels, state.startup.get(workload.id))

    plans = {binding.view.key: target_plans(binding, listed, find) for binding in listed.bindings}
    give_way(listed.bindings, plans)
    wanted_pages = scrapes(plans.values())
    pages = await state.scraper.scrape(wanted_pages, clock=mirror.cluster.now)
    default = fleet_handling(settings)
    from_start = scrapes(
        plans[b.view.key]
        for b in listed.bindings
        if binding_strategy(handling_of(b.view.annotations, default).compatibility).histograms_from_start
    )
    measured = state.histories.measure(wanted_pages, pages, from_start.keys())
    state.startup = {
        plan.workload.id: plan.pods.startup_seconds
        for targets in plans.values()
        for plan in targets
        if plan.workload is not None and plan.pods.startup_seconds is not None
    }
    return tuple(binding_view(b, listed, plans[b.view.key], answers, measured) for b in listed.bindings)
