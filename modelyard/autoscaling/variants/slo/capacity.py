"""Latency targets under the GPU limiter: one exact allocation over all models, most important class first.

As long as what the models want fits, nothing changes. Where it does not, the models that compete for a scarce
accelerator, directly or through others, share what there is by ``mixing.allocate``. Source: WVA SLO reference,
"Solver".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from modelyard.autoscaling.mixing import Demand, Effort, Option, Share, allocate
from modelyard.autoscaling.reasons import Explanation, Reason
from modelyard.autoscaling.settings import FleetSettings
from modelyard.autoscaling.strategy import TickContext
from modelyard.autoscaling.variants.demand import LoadForecast, ModelDemand, Rate
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.pools import LIMITED_BY, Pools
from modelyard.autoscaling.variants.proposal import Changes, Proposal, ReplicaChange, Sized, Variants, VariantTransition
from modelyard.autoscaling.variants.slo.targets import option_of, up_to
from modelyard.objects import Key
from modelyard.objects.selectors import parse_selector

STAGE = "allocation"


class Member(NamedTuple):
    """A variant of a model that takes part: its replicas, what is under way, and the rate of a replica."""

    sized: Sized
    variant: VariantTransition
    rate: Rate

    @property
    def seen(self) -> Observation:
        """What is known of the variant."""
        return self.sized.seen

    @property
    def target(self) -> int:
        """The replicas it is to have."""
        return self.sized.replicas or 0

    @property
    def is_sized(self) -> bool:
        """Whether a replica's rate is known."""
        return self.rate.known and self.rate.objective.problem is None


class CompetingModel(NamedTuple):
    """A model that takes part."""

    demand: ModelDemand
    forecast: LoadForecast
    wanted: Mapping[str, int]
    members: tuple[Member, ...]


def share_capacity(models: Sequence[tuple[ModelDemand, Proposal]], variants: Variants, tick: TickContext) -> Changes:
    """Return what changes about models whose accelerators do not suffice; ``variants`` are all that hold some."""
    fleet, settings = tick.fleet, tick.settings
    taking_part = [m for demand, proposal in models if (m := _model(demand, proposal, variants)) is not None]
    if not taking_part or fleet.nodes_error is not None or not tick.counts_gpus:
        return ()
    try:
        matches = parse_selector(settings.node_selector)
    except ValueError:  # the limiter says so
        return ()
    pools = Pools(fleet, matches)
    ours = {member.seen.key for model in taking_part for member in model.members}
    pools.reserve(sized.seen for key, sized in variants.items() if key not in ours)
    capacity = {name: sum(free.values()) for name, free in pools.free.items()}
    for member in (member for model in taking_part for member in model.members):
        pool, lost = member.seen.pool, member.variant.lost
        capacity[pool] = capacity.get(pool, 0) + max(0, held(member.seen) - lost) * member.seen.gpus
    for member in (member for model in scarce(taking_part, capacity) for member in model.members):
        if not member.is_sized:
            seen = member.seen
            claimed = min(member.target * seen.gpus, sum(pod.gpus for pod in seen.pods))
            capacity[seen.pool] = max(0, capacity[seen.pool] - claimed)
    # Where no node of an accelerator is known nothing can be given, so nothing is taken either.
    affected = scarce(taking_part, capacity, frozenset(pools.total))
    if not affected:
        return ()
    demands = {str(index): demand_of(model, str(index), pools) for index, model in enumerate(affected)}
    allocation = allocate(
        demands.values(), capacity, penalty=settings.transition_penalty, effort=Effort(settings.allocation_effort)
    )
    growth = [_growth(model, allocation.shares[str(index)].replicas) for index, model in enumerate(affected)]
    changes: list[tuple[Key, ReplicaChange]] = []
    for index, model in enumerate(affected):
        elsewhere = {pool for other, grown in enumerate(growth) if other != index for pool in grown}
        share, load = allocation.shares[str(index)], demands[str(index)].load
        changes += _changes(model, share, load, settings, allocation.note, elsewhere)
    return changes


def _model(demand: ModelDemand, proposal: Proposal, variants: Variants) -> CompetingModel | None:
    if demand.forecast is None or proposal.wanted is None or not variants[demand.variants[0].key].decided:
        return None
    members: list[Member] = []
    for seen in demand.variants:
        sized = variants[seen.key]
        transition = sized.proposed.transition
        members.append(
            Member(sized, transition or VariantTransition(seen, seen.current or 0), demand.forecast.rates[seen.name])
        )
    return CompetingModel(demand, demand.forecast, proposal.wanted, tuple(members))


def _growth(model: CompetingModel, replicas: Mapping[str, int]) -> set[str]:
    """Return the accelerators of which a model is given more than it has."""
    return {
        member.seen.pool
        for member in model.members
        if replicas.get(member.seen.name, 0) + member.variant.lost > member.variant.base
    }


def held(seen: Observation) -> int:
    """Return the replicas that hold accelerators of a node: those whose pods say so, and those that are ready."""
    placed = sum(1 for pod in seen.pods if pod.node) // seen.pods_per_replica
    return max(placed, min(seen.ready or 0, seen.current or 0))


def pinned(seen: Observation, pools: Pools) -> int:
    """Return the replicas on nodes that take no new pods: giving them up gives nobody anything."""
    nodes = pools.free.get(seen.pool, {})
    on_others = sum(1 for pod in seen.pods if pod.node and pod.node not in nodes)
    return min(seen.current or 0, on_others // seen.pods_per_replica)


def scarce(
    models: Sequence[CompetingModel], capacity: Mapping[str, int], known: Collection[str] | None = None
) -> list[CompetingModel]:
    """Return the models that compete for an accelerator of which more is wanted than there is, also through others.

    ``known`` are the accelerators that count (``None``: all).
    """
    used: dict[str, int] = defaultdict(int)
    touched: dict[str, list[int]] = defaultdict(list)
    for index, model in enumerate(models):
        for member in model.members:
            pool = member.seen.pool
            used[pool] += max(0, member.target - member.variant.lost) * member.seen.gpus
            touched[pool].append(index)
    open_pools = [p for p, units in used.items() if units > capacity.get(p, 0) and (known is None or p in known)]
    seen_pools, competing = set(open_pools), set[int]()
    while open_pools:
        for index in touched[open_pools.pop()]:
            if index in competing:
                continue
            competing.add(index)
            for pool in {member.seen.pool for member in models[index].members} - seen_pools:
                seen_pools.add(pool)
                open_pools.append(pool)
    return [models[index] for index in sorted(competing)]


def demand_of(model: CompetingModel, name: str, pools: Pools) -> Demand:
    """Return a model as a demand: the planned load, or what saturation asks for beyond it."""
    forecast, group = model.forecast, model.demand.group
    members = [member for member in model.members if member.is_sized]
    load = forecast.planned
    # The covering's last replica is rarely full: what it carries beyond the load is nobody's need.
    if any(m.target > max(m.variant.base, model.wanted.get(m.seen.name, 0)) for m in members):
        load = max(load, sum(m.rate.rate * m.target for m in members))
    options = [_kept(option_of(m.variant, m.rate), min(m.variant.base, pinned(m.seen, pools))) for m in members]
    running = [i for i, option in enumerate(options) if option.current]
    may_sleep = model.demand.zero.enabled and forecast.idle
    if running and not may_sleep and not any(option.minimum for option in options):
        # A model that is used, or may not go to zero, keeps its last replica: others only get what is beyond it.
        last = min(running, key=lambda i: (options[i].cost, options[i].name))
        options[last] = replace(options[last], minimum=1)
    priority = group.service.priority if group.service is not None else 1
    return Demand(name, priority, load, tuple(options), group.effort)


def _kept(option: Option, replicas: int) -> Option:
    if replicas <= option.minimum:
        return option
    upper = option.maximum
    return replace(option, minimum=replicas, maximum=None if upper is None else max(upper, replicas))


def _changes(
    model: CompetingModel, share: Share, load: float, settings: FleetSettings, note: str, elsewhere: Collection[str]
) -> Iterator[tuple[Key, ReplicaChange]]:
    """Yield the model's changes.

    What runs is given up only where another model takes it (``elsewhere``): giving it up for a cheaper mix alone would
    undo, without any delay, what the demand had asked for a tick before.
    """
    note = f" ({note})" if note else ""
    why = Explanation(Reason.OTHER_MIX, note=note)
    if share.served < load * (1 - 1e-9):
        why = Explanation(Reason.SHARE_OF_LOAD, served=share.served, load=load, note=note)
    for member in model.members:
        granted, before = share.replicas.get(member.seen.name), member.sized.replicas
        if granted is None or before is None:
            continue
        base = member.variant.base
        granted += member.variant.lost
        after = up_to(member.variant, granted, settings) if granted > base else granted
        if member.seen.pool not in elsewhere:
            after = max(after, min(before, base))
        change = ReplicaChange(STAGE, before, None)
        if after != before:
            prefix = Explanation(Reason.ALLOCATED, share=why, before=before, after=after)
            change = ReplicaChange(STAGE, before, after, why, why.code, prefix)
        if share.limited:
            change = change._replace(limited_by=LIMITED_BY, scarcity=why)
        yield member.seen.key, change
