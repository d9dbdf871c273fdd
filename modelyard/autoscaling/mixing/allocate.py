"""Replicas for all demands at once, within what accelerators there are.

Demands that do not compete are covered one by one; groups that share a scarce accelerator go to the integer program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum

from modelyard.autoscaling.mixing.covering import cheapest
from modelyard.autoscaling.mixing.greedy import greedy, keep_minimums, units_used
from modelyard.autoscaling.mixing.model import Allocation, Capacity, Demand, Replicas, Share
from modelyard.fairness import WorkBudget

EFFORT = 20_000_000
"""What one allocation may look at where nothing else is said."""


def allocate(
    demands: Iterable[Demand],
    capacity: Mapping[str, int] | None,
    *,
    penalty: float = 0.1,
    effort: WorkBudget | None = None,
) -> Allocation:
    """The replicas of every demand, never more than ``capacity`` (units by accelerator; ``None``: no limit).

    Minimums come first, the most important class's before the others', as far as there is room. Then each class is
    served as well as possible in order of priority, partly if need be, and last at the least cost with transition
    penalty. An accelerator missing from ``capacity`` has no units.

    ``effort`` bounds the work over everything (``None``: ``EFFORT``). Where it is used up, or the solver fails, the
    classes that have an answer keep it, the others are served greedily from what is left, ``method`` is "greedy" and
    ``note`` says for which. Two demands of one name are a ``ValueError``.
    """
    demands = tuple(demands)
    if len({d.name for d in demands}) != len(demands):
        raise ValueError("two demands have the same name; names must be unique")
    wanted = {d.name: cheapest(d, penalty) for d in demands}
    if capacity is None:
        return _answer(demands, wanted, wanted, penalty, "covering", "")
    # With the solver, only where there is a capacity to share: it is slower to load than a small fleet to decide on.
    from modelyard.autoscaling.mixing.exact import exact

    limits = Capacity(capacity)
    replicas: Replicas = dict(wanted)
    methods, notes = {"covering"}, []
    effort = WorkBudget(EFFORT) if effort is None else effort
    for group in competing(demands, limits):
        if all(units <= limits.of(row) for row, units in units_used(group, wanted).items()):
            continue
        answer = exact(group, keep_minimums(group, limits), limits, penalty, effort)
        methods.add("exact" if answer.complete else "greedy")
        replicas.update(answer.replicas)
        notes += answer.notes
    method = next(m for m in ("greedy", "exact", "covering") if m in methods)
    return _answer(demands, replicas, wanted, penalty, method, "; ".join(notes))


def allocate_greedy(demands: Sequence[Demand], capacity: Mapping[str, int], *, penalty: float = 0.1) -> Allocation:
    """The greedy allocation of all demands, for comparison."""
    wanted = {d.name: cheapest(d, penalty) for d in demands}
    return _answer(demands, greedy(demands, Capacity(capacity), penalty), wanted, penalty, "greedy", "asked for")


def competing(demands: Sequence[Demand], capacity: Capacity) -> list[list[Demand]]:
    """Groups of demands that share, directly or through others, an accelerator that can become short."""
    most: dict[str, int] = {}
    for demand in demands:
        for option in demand.options:
            option.take(most, demand.most(option) if demand.load > 0 else option.minimum)
    scarce = {a for a, units in most.items() if units > capacity.of(a)}
    groups: dict[frozenset[str], list[Demand]] = {}
    for demand in demands:
        shared, members = frozenset(row for o in demand.options for row in o.rows if row in scarce), [demand]
        for other in [names for names in groups if names & shared]:
            members = groups.pop(other) + members
            shared |= other
        if shared:
            groups[shared] = members
    return [groups[names] for names in sorted(groups, key=min)]


def _answer(
    demands: Sequence[Demand], replicas: Replicas, wanted: Replicas, penalty: float, method: str, note: str
) -> Allocation:
    shares = {d.name: _share(d, replicas[d.name], wanted[d.name], penalty) for d in demands}
    return Allocation(shares, fsum(s.cost for s in shares.values()), units_used(demands, replicas), method, note)


def _share(demand: Demand, replicas: dict[str, int], wanted: dict[str, int], penalty: float) -> Share:
    served = demand.served(replicas)
    limited = replicas != wanted and (
        served < demand.served(wanted)
        or any(replicas[o.name] < min(o.minimum, wanted[o.name]) for o in demand.options)
        or demand.objective(replicas, penalty) > demand.objective(wanted, penalty) * (1 + 1e-9)
    )
    return Share(demand.name, replicas, served, demand.cost(replicas), dict(wanted), limited)
