"""What is under way for a variant, for how long it may be, and whether enough replicas report to decide at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from modelyard.autoscaling.configuration import FleetSettings, Mode
from modelyard.autoscaling.decisions import Count, Explanation, Reason
from modelyard.autoscaling.variants.attribution import GROUP_INDEX_LABEL
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.proposal import VariantTransition
from modelyard.autoscaling.variants.replicas import unseen

_PARTIAL_SLACK = 1e-9


def transition_limit(seen: Observation, settings: FleetSettings) -> float:
    """Return the seconds a scaling may take: the fleet's limit, or twice the learnt start-up if that is longer."""
    limit = settings.transition_limit
    return max(limit, min(2 * (seen.memory.startup_seconds or 0.0), 3 * limit))  # what was learnt may be wrong


def observe_transition(seen: Observation, settings: FleetSettings, now: float) -> VariantTransition:
    """Return what is under way for one variant."""
    current, desired, memory = seen.current, seen.desired, seen.memory
    assert current is not None
    base = current
    ours = desired is not None and memory.transition_target == desired
    if seen.mode is Mode.DIRECT and not ours and (desired is None or desired < seen.spec):
        # Another controller or a user asked for more (our own moves are remembered before they are made). It is not
        # taken back without the test for shrinking.
        base = seen.spec
    elif desired and desired != current:
        # A variant at zero only moves if we sent it on its way and a scaler has to act on it.
        waking = seen.mode is Mode.SIGNAL and memory.transition_target == desired
        if current > 0 or waking:
            base = desired
    if not (base != current or seen.pending > 0 or seen.surge > 0):
        return VariantTransition(seen, base)
    since = memory.transition_since
    # Without a target the clock is of replicas that become ready, and says nothing about ones that are missing.
    waiting = memory.transition_target is None and base == current == desired
    if since is None or not (waiting or memory.transition_target == base):
        since = now
    heading = base if base != current else None
    if now - since < transition_limit(seen, settings):
        coming = max(0, base - current) + seen.pending
        return VariantTransition(seen, base, coming, moving=True, since=since, heading=heading)
    # A long rolling update alone is no scaling that failed.
    overdue = base != current or seen.pending > 0
    timed_out_from = heading
    if timed_out_from is not None:
        base = heading = current
        since = now
    lost = min(seen.pending, base) if overdue else 0
    return VariantTransition(seen, base, 0, False, overdue, timed_out_from, since, heading, lost)


def first_to_go(variant: VariantTransition) -> int:
    """Return the lost replicas that a scale-down takes before any that serves."""
    # A ReplicaSet deletes first what is not ready; in a rolling update there are two, and both shrink. Whatever numbers
    # its replicas deletes the highest number first.
    seen, late = variant.seen, variant.lost
    if not late or seen.surge or seen.workload_id is None:
        return 0
    if seen.workload_id.kind == "Deployment":
        return late if len({pod.owner for pod in seen.pods}) <= 1 else 0
    ready = [pod.labels.get(GROUP_INDEX_LABEL, pod.key.name.rpartition("-")[2]) for pod in seen.pods if pod.ready]
    if not all(number.isdecimal() for number in ready):
        return 0
    return min(late, max(0, (seen.current or 0) - 1 - max(map(int, ready), default=-1)))


def describe_transition(variant: VariantTransition) -> Explanation:
    """Return which variant is on its way where."""
    seen = variant.seen
    stuck = next((pod for pod in seen.pods if pod.unschedulable), None)
    pod: object = ""
    if stuck is not None:
        pod = Explanation(Reason.POD_UNSCHEDULABLE, pod=stuck.key.name, why=stuck.unschedulable)
    if variant.base != seen.current:
        return Explanation(Reason.HEADING, name=seen.name, base=variant.base, current=seen.current, pod=pod)
    if not seen.pending:
        replicas = Count(seen.current or 0, "replica")
        return Explanation(Reason.SURGING, name=seen.name, surge=seen.surge, replicas=replicas, pod=pod)
    return Explanation(Reason.STARTING, name=seen.name, ready=seen.ready, current=seen.current, pod=pod)


def given_up(variant: VariantTransition, settings: FleetSettings) -> Explanation:
    """Return the explanation of an abandoned scaling."""
    seen, heading, limit = variant.seen, variant.timed_out_from, transition_limit(variant.seen, settings)
    return Explanation(Reason.GIVEN_UP, name=seen.name, current=seen.current, heading=heading, limit=limit)


class Partial(NamedTuple):
    """Too few of the ready pods report: since when, and the seconds still to hold (negative: that time is over)."""

    since: float
    left: float


def partial_metrics(variants: Sequence[Observation], settings: FleetSettings, now: float) -> Partial | None:
    """Return ``None`` when enough ready pods report."""
    ready, reporting = sum(seen.ready or 0 for seen in variants), sum(seen.reporting for seen in variants)
    if reporting < ready:
        ready -= sum(unseen(seen, now - settings.warm_up) for seen in variants)
    if reporting >= settings.reporting_share * ready - _PARTIAL_SLACK:
        return None
    known = [seen.memory.partial_since for seen in variants if seen.memory.partial_since is not None]
    since = min(known, default=now)
    left = settings.partial_limit - (now - since)
    return Partial(since, left if left > 0 else -1.0)
