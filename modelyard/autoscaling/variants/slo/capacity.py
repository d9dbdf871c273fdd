"""Latency targets under the GPU limiter: one exact allocation over all models, most important class first.

As long as what the models want fits, nothing changes. Where it does not, the models that compete for a scarce
accelerator, directly or through others, share what there is by ``mixing.allocate``, together with those that want more
than a quota allows. Only scarce accelerators move from one model to another: for a quota nothing that runs is taken
away. Source: WVA SLO reference, "Solver".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from modelyard.autoscaling.configuration import FleetSettings
from modelyard.autoscaling.decisions import Explanation, Reason, TickContext
from modelyard.autoscaling.fleet import Quota
from modelyard.autoscaling.mixing import Demand, Option, Share, allocate
from modelyard.autoscaling.variants.demand import LoadForecast, ModelDemand, Rate
from modelyard.autoscaling.variants.observation import Observation
from modelyard.autoscaling.variants.pools import LIMITED_BY, Pools
from modelyard.autoscaling.variants.proposal import Changes, Proposal, ReplicaChange, Sized, Variants, VariantTransition
from modelyard.autoscaling.variants.slo.targets import option_of, up_to
from modelyard.fairness import WorkBudget
from modelyard.objects import Key, parse_selector

STAGE = "allocation"
UNLIMITED = 10**9
"""Replicas of a variant that nothing limits."""


class QuotaRow(NamedTuple):
    """The GPUs of a pool that a quota allows, in a namespace or (``""``) in all together."""

    name: str
    namespace: str
    pool: str
    allowed: int

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"quota {self.name} does not suffice ({self.allowed} {self.pool or 'GPUs'} allowed{where})"


class Member(NamedTuple):
    """A participating variant, its rate and quotas by row; ``pool_row``: its accelerators' (empty: none counted)."""

    sized: Sized
    variant: VariantTransition
    rate: Rate
    quotas: Mapping[str, QuotaRow]
    pool_row: str

    @property
    def seen(self) -> Observation:
        return self.sized.seen

    @property
    def target(self) -> int:
        return self.sized.replicas or 0

    @property
    def is_sized(self) -> bool:
        return self.rate.known and self.rate.objective.problem is None

    @property
    def rows(self) -> tuple[str, ...]:
        return (self.pool_row, *self.quotas) if self.pool_row else tuple(self.quotas)

    @property
    def units(self) -> int:
        return max(0, self.target - self.variant.lost) * self.seen.gpus

    @property
    def claimed(self) -> int:
        """The accelerators that are its own where its rate is not known."""
        return min(self.target * self.seen.gpus, sum(pod.gpus for pod in self.seen.pods))


class CompetingModel(NamedTuple):
    """A model that takes part."""

    demand: ModelDemand
    forecast: LoadForecast
    wanted: Mapping[str, int]
    members: tuple[Member, ...]


def share_capacity(models: Sequence[tuple[ModelDemand, Proposal]], variants: Variants, tick: TickContext) -> Changes:
    """Return what changes about models whose accelerators do not suffice; ``variants`` are all that hold some."""
    fleet, settings = tick.fleet, tick.settings
    counts_gpus = tick.counts_gpus and fleet.nodes_error is None
    competitors = [
        m
        for demand, proposal in models
        if (m := _competitor(demand, proposal, variants, tick, counts_gpus)) is not None
    ]
    if not competitors or not (counts_gpus or tick.quotas):
        return ()
    try:
        matches = parse_selector(settings.node_selector)
    except ValueError:  # the limiter says so
        return ()
    members = [member for model in competitors for member in model.members]
    pools = Pools(fleet, matches) if counts_gpus else None
    capacity = {"": UNLIMITED}
    short, affected = set[str](), set[int]()
    if pools is not None:
        ours = {member.seen.key for member in members}
        pools.reserve(sized.seen for key, sized in variants.items() if key not in ours)
        capacity |= {_pool_row(name): sum(free.values()) for name, free in pools.free.items()}
        for member in members:
            row, lost = member.pool_row, member.variant.lost
            capacity[row] = capacity.get(row, 0) + max(0, held(member.seen) - lost) * member.seen.gpus
        for member in (member for index in scarce(competitors, capacity)[0] for member in competitors[index].members):
            if not member.is_sized:
                capacity[member.pool_row] = max(0, capacity[member.pool_row] - member.claimed)
        # Where no node of an accelerator is known nothing can be given, so nothing is taken either.
        affected, short = scarce(competitors, capacity, set(map(_pool_row, pools.total)))
    within_quotas = _within_quotas(members, variants)
    capacity |= within_quotas
    used: dict[str, int] = defaultdict(int)
    for member in members:
        for row in member.quotas:
            used[row] += member.units
    over = {row for row, units in used.items() if units > capacity[row]}
    limited = {i for i, model in enumerate(competitors) if any(not over.isdisjoint(m.quotas) for m in model.members)}
    taking_part = {index: competitors[index] for index in sorted(affected | limited)}
    if not taking_part:
        return ()
    for index, model in enumerate(competitors):
        for member in model.members:
            if index not in taking_part:
                _withdraw(capacity, member.rows, member.units)
            elif not member.is_sized:
                _withdraw(capacity, member.quotas if index in affected else member.rows, member.claimed)
    staying = {
        member.seen.key
        for index, model in taking_part.items()
        for member in model.members
        if index not in affected or (member.pool_row not in short and not over.isdisjoint(member.quotas))
    }
    demands = {str(index): _demand_of(model, str(index), pools, staying) for index, model in taking_part.items()}
    effort = WorkBudget(settings.allocation_effort)
    allocation = allocate(demands.values(), capacity, penalty=settings.transition_penalty, effort=effort)
    growth: dict[int, set[str]] = {}
    for index, model in taking_part.items():
        replicas = allocation.shares[str(index)].replicas
        growth[index] = {
            m.seen.pool for m in model.members if replicas.get(m.seen.name, 0) + m.variant.lost > m.variant.base
        }
    changes: list[tuple[Key, ReplicaChange]] = []
    for index, model in taking_part.items():
        elsewhere = {pool for other, grown in growth.items() if other != index for pool in grown}
        keeps = {m.seen.key for m in model.members if m.seen.pool not in elsewhere} | staying
        share, load = allocation.shares[str(index)], demands[str(index)].load
        changes += _changes(model, share, load, settings, allocation.note, keeps, over)
    return changes


def _pool_row(pool: str) -> str:
    # Pools have names that tenants choose: they must not meet those of quotas.
    return f"pool {pool}"


def _withdraw(capacity: dict[str, int], rows: Iterable[str], units: int) -> None:
    for row in rows:
        capacity[row] = max(0, capacity[row] - units)


def _competitor(
    demand: ModelDemand, proposal: Proposal, variants: Variants, tick: TickContext, counts_gpus: bool
) -> CompetingModel | None:
    if demand.forecast is None or proposal.wanted is None or not variants[demand.variants[0].key].decided:
        return None
    members: list[Member] = []
    for seen in demand.variants:
        sized = variants[seen.key]
        transition = sized.proposed.transition or VariantTransition(seen, seen.current or 0)
        row = _pool_row(seen.pool) if counts_gpus else ""
        members.append(Member(sized, transition, demand.forecast.rates[seen.name], _quotas(seen, tick.quotas), row))
    return CompetingModel(demand, demand.forecast, proposal.wanted, tuple(members))


def _quotas(seen: Observation, quotas: Sequence[Quota]) -> dict[str, QuotaRow]:
    """Quotas of all namespaces together and of its own, by capacity row."""
    return {
        f"quota {index}/{namespace}/{seen.pool}": QuotaRow(quota.name, namespace, seen.pool, allowed)
        for index, quota in enumerate(quotas)
        for namespace in ("", seen.key.namespace)
        if (allowed := quota.cap(namespace, seen.pool)) is not None
    }


def _within_quotas(members: Sequence[Member], variants: Variants) -> dict[str, int]:
    """At least what the members hold now."""
    holding: dict[str, list[Member]] = defaultdict(list)
    for member in members:
        for row in member.quotas:
            holding[row].append(member)
    ours = {member.seen.key for member in members}
    outsiders = [variant.seen for variant in variants.values() if variant.seen.key not in ours]
    left: dict[str, int] = {}
    for row, holders in holding.items():
        quota = holders[0].quotas[row]
        sharing = [s for s in outsiders if s.pool == quota.pool and quota.namespace in ("", s.key.namespace)]
        beyond = sum((seen.current or 0) * seen.gpus for seen in sharing)
        lost = sum(member.variant.lost * member.seen.gpus for member in holders)
        now = sum(max(0, (m.seen.current or 0) - m.variant.lost) * m.seen.gpus for m in holders)
        left[row] = max(quota.allowed - beyond - lost, now)
    return left


def held(seen: Observation) -> int:
    """Return the replicas that hold accelerators of a node: those whose pods say so, and those that are ready."""
    placed = sum(1 for pod in seen.pods if pod.node) // seen.pods_per_replica
    return max(placed, min(seen.ready or 0, seen.current or 0))


def _pinned(seen: Observation, pools: Pools) -> int:
    # Replicas on nodes that take no new pods: giving them up gives nobody anything.
    nodes = pools.free.get(seen.pool, {})
    on_others = sum(1 for pod in seen.pods if pod.node and pod.node not in nodes)
    return min(seen.current or 0, on_others // seen.pods_per_replica)


def scarce(
    models: Sequence[CompetingModel], capacity: Mapping[str, int], counted: Collection[str] | None = None
) -> tuple[set[int], set[str]]:
    """Return the models that compete, also through others, for scarce accelerators, and these rows (of ``counted``)."""
    used: dict[str, int] = defaultdict(int)
    touched: dict[str, list[int]] = defaultdict(list)
    for index, model in enumerate(models):
        for member in model.members:
            used[member.pool_row] += member.units
            touched[member.pool_row].append(index)
    short = {row for row, units in used.items() if units > capacity.get(row, 0) and (counted is None or row in counted)}
    open_rows, seen_rows, competing = list(short), set(short), set[int]()
    while open_rows:
        for index in touched[open_rows.pop()]:
            if index in competing:
                continue
            competing.add(index)
            for row in {member.pool_row for member in models[index].members} - seen_rows:
                seen_rows.add(row)
                open_rows.append(row)
    return competing, short


def _demand_of(model: CompetingModel, name: str, pools: Pools | None, staying: Collection[Key]) -> Demand:
    # The planned load, or what saturation asks for beyond it.
    forecast, group = model.forecast, model.demand.group
    members = [member for member in model.members if member.is_sized]
    load = forecast.planned
    # The covering's last replica is rarely full: what it carries beyond the load is nobody's need.
    if any(m.target > max(m.variant.base, model.wanted.get(m.seen.name, 0)) for m in members):
        load = max(load, sum(m.rate.rate * m.target for m in members))
    options: list[Option] = []
    for member in members:
        variant, rows = member.variant, member.rows
        option = option_of(variant, member.rate)
        option = (
            replace(option, accelerator=rows[0], also=rows[1:]) if rows else replace(option, accelerator="", units=1)
        )
        least = min(variant.base, _pinned(member.seen, pools)) if pools is not None else 0
        if member.seen.key in staying:
            least = max(least, min(member.target, variant.base) - variant.lost)
        options.append(_kept(option, least))
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
    model: CompetingModel,
    share: Share,
    load: float,
    settings: FleetSettings,
    note: str,
    keeps: Collection[Key],
    over: Collection[str],
) -> Iterator[tuple[Key, ReplicaChange]]:
    """Yield the model's changes; ``over`` are the quotas that do not suffice.

    What runs is given up only to another model (``keeps``: the others), never for a cheaper mix: no delay would apply.
    """
    note = f" ({note})" if note else ""
    quota = next((quota for m in model.members for row, quota in m.quotas.items() if row in over), None)
    scarcity = quota or "accelerators are scarce"
    why = Explanation(Reason.OTHER_MIX, scarcity=scarcity, note=note)
    if share.served < load * (1 - 1e-9):
        why = Explanation(Reason.SHARE_OF_LOAD, scarcity=scarcity, served=share.served, load=load, note=note)
    for member in model.members:
        granted, before = share.replicas.get(member.seen.name), member.sized.replicas
        if granted is None or before is None:
            continue
        base = member.variant.base
        granted += member.variant.lost
        after = up_to(member.variant, granted, settings) if granted > base else granted
        if member.seen.key in keeps:
            after = max(after, min(before, base))
        change = ReplicaChange(STAGE, before, None)
        if after != before:
            prefix = Explanation(Reason.ALLOCATED, share=why, before=before, after=after)
            change = ReplicaChange(STAGE, before, after, why, why.code, prefix)
        if share.limited:
            limited_by = LIMITED_BY if quota is None else f"quota {quota.name}"
            change = change._replace(limited_by=limited_by, scarcity=why)
        yield member.seen.key, change
