"""The SLO form under the GPU limiter: one exact allocation over all models, most important class first.

As long as what the groups want fits, nothing changes. Where it does not, the groups that compete for a scarce
accelerator, directly or through others, share what there is by ``mixing.allocate``. Source: WVA SLO reference,
"Solver".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from modelyard.autoscaling.decision import Step
from modelyard.autoscaling.fleet import Fleet
from modelyard.autoscaling.mixing import Demand, Effort, Option, Share, allocate
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.variants.pools import LIMITED_BY, Pools, pool_of_state
from modelyard.autoscaling.variants.slo.targets import option_of, up_to
from modelyard.autoscaling.variants.state import Group, State, work_of
from modelyard.autoscaling.variants.transition import lost
from modelyard.objects.selectors import parse_selector


def share_capacity(fleet: Fleet, groups: Sequence[Group], active: Sequence[State], settings: FleetSettings) -> None:
    """Lower or move the targets of groups whose accelerators do not suffice; ``active`` are all variants."""
    mine = [g for g in groups if g.slo is not None and g.slo.forecast and g.states[0].decided]
    if not mine or fleet.nodes_error is not None:
        return
    try:
        matches = parse_selector(settings.node_selector)
    except ValueError:  # the limiter says so
        return
    pools = Pools(fleet, matches)
    ours = {id(state) for group in mine for state in group.states}
    pools.reserve(state for state in active if id(state) not in ours)
    capacity = {name: sum(free.values()) for name, free in pools.free.items()}
    for group in mine:
        for state in group.states:
            pool = pool_of_state(state)
            capacity[pool] = capacity.get(pool, 0) + max(0, held(state) - lost(state)) * state.gpus
    for group in scarce(mine, capacity):
        for state in group.states:
            if work_of(state).problem or not work_of(state).known:
                pool = pool_of_state(state)
                claimed = min((state.target or 0) * state.gpus, sum(pod.gpus for pod in state.pods))
                capacity[pool] = max(0, capacity[pool] - claimed)
    # Where no node of an accelerator is known nothing can be given, so nothing is taken either.
    affected = scarce(mine, capacity, frozenset(pools.total))
    if not affected:
        return
    demands = {str(index): demand_of(group, str(index), pools) for index, group in enumerate(affected)}
    found = allocate(
        demands.values(), capacity, penalty=settings.transition_penalty, effort=Effort(settings.allocation_effort)
    )
    growth = [_growth(group, found.shares[str(index)].replicas) for index, group in enumerate(affected)]
    for index, group in enumerate(affected):
        share = found.shares[str(index)]
        elsewhere = {pool for other, grown in enumerate(growth) if other != index for pool in grown}
        _apply(group, share, demands[str(index)].load, settings, found.note, elsewhere)


def _growth(group: Group, replicas: Mapping[str, int]) -> set[str]:
    """Accelerators of which a group is given more than it has."""
    return {pool_of_state(s) for s in group.states if replicas.get(s.name, 0) + lost(s) > s.base}


def held(state: State) -> int:
    """Replicas of the variant that hold accelerators of a node: those whose pods say so, and those that are ready."""
    size = state.workload.pods_per_replica if state.workload is not None else 1
    placed = sum(1 for pod in state.pods if pod.node) // size
    return max(placed, min(state.ready or 0, state.current or 0))


def pinned(state: State, pools: Pools) -> int:
    """Replicas on nodes that take no new pods: giving them up gives nobody anything."""
    size = state.workload.pods_per_replica if state.workload is not None else 1
    nodes = pools.free.get(pool_of_state(state), {})
    return min(state.current or 0, sum(1 for pod in state.pods if pod.node and pod.node not in nodes) // size)


def scarce(groups: Sequence[Group], capacity: Mapping[str, int], known: Collection[str] | None = None) -> list[Group]:
    """Groups that compete for an accelerator of which more is wanted than there is, directly or through others.

    ``known`` are the accelerators that count (``None``: all).
    """
    used: dict[str, int] = defaultdict(int)
    touched: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        for state in group.states:
            pool = pool_of_state(state)
            used[pool] += max(0, (state.target or 0) - lost(state)) * state.gpus
            touched[pool].append(index)
    open_pools = [p for p, units in used.items() if units > capacity.get(p, 0) and (known is None or p in known)]
    seen_pools, seen = set(open_pools), set[int]()
    while open_pools:
        for index in touched[open_pools.pop()]:
            if index in seen:
                continue
            seen.add(index)
            for pool in {pool_of_state(state) for state in groups[index].states} - seen_pools:
                seen_pools.add(pool)
                open_pools.append(pool)
    return [groups[index] for index in sorted(seen)]


def demand_of(group: Group, name: str, pools: Pools) -> Demand:
    """A group as a demand: the planned load, or what saturation asks for beyond it."""
    work = group.slo
    assert work is not None
    states = [s for s in group.states if work_of(s).known and not work_of(s).problem]
    load = work.planned
    if any((s.target or 0) > s.base for s in states):
        load = max(load, sum(work_of(s).rate * (s.target or 0) for s in states))
        # The covering's last replica is rarely full: what it carries beyond the load is nobody's need.
        if all((s.target or 0) <= max(s.base, work.wanted.get(s.name, 0)) for s in states):
            load = work.planned
    options = [_kept(option_of(state), min(state.base, pinned(state, pools))) for state in states]
    running = [i for i, option in enumerate(options) if option.current]
    if running and not (group.zero.enabled and work.idle) and not any(option.minimum for option in options):
        # A model that is used, or may not go to zero, keeps its last replica: others only get what is beyond it.
        last = min(running, key=lambda i: (options[i].cost, options[i].name))
        options[last] = replace(options[last], minimum=1)
    return Demand(name, work.service.priority, load, tuple(options), group.effort)


def _kept(option: Option, replicas: int) -> Option:
    if replicas <= option.minimum:
        return option
    upper = option.maximum
    return replace(option, minimum=replicas, maximum=None if upper is None else max(upper, replicas))


def _apply(
    group: Group, share: Share, load: float, settings: FleetSettings, note: str, elsewhere: Collection[str]
) -> None:
    """Set the group's targets. What runs is given up only where another group takes it (``elsewhere``): giving it up
    for a cheaper mix alone would undo, without any delay, what the demand had asked for a tick before."""
    served = share.served
    text = (
        f"accelerators are scarce: {served:.4g} of {load:.4g} requests/s can be served within the targets"
        if served < load * (1 - 1e-9)
        else "accelerators are scarce: served by another mix than the cheapest"
    )
    if note:
        text += f" ({note})"
    for state in group.states:
        granted = share.replicas.get(state.name)
        before = state.target
        if granted is None or before is None:
            continue
        granted += lost(state)
        after = up_to(state, granted, settings) if granted > state.base else granted
        if pool_of_state(state) not in elsewhere:
            after = max(after, min(before, state.base))
        if share.limited:
            work_of(state).limited = text
            state.limited_by = LIMITED_BY
        if after != before:
            message = f"{text}: {before} → {after}; {state.message}"
            state.fold(Step("allocation", before, after, text, "CapacityLimited"), message)
