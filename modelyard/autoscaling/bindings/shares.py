"""One total, shared out between workloads on different accelerators.

``greedy_shares`` is the documented order: the cheapest block of instances first, blocks of one workload growing by the
expansion rate so that growth alternates, and shrinking gives back what was taken last. ``exact_shares`` minimises cost
under declared capacities. Source: Kthena autoscaler reference, "Optimizer (heterogeneous) mode".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, isfinite, log, log1p
from typing import NamedTuple

from modelyard.autoscaling.mixing import Demand, Option, cover
from modelyard.fairness import WorkBudget
from modelyard.objects import SHOWN, cut, shown

CAPACITY = "modelyard.dev/capacity"
"""Annotation on a binding: what an instance of each target carries, relative to one another ("A100=1,H100=2.5")."""
OPTIMIZER = "modelyard.dev/optimizer"
"""Annotation on a binding: ``greedy`` (default, as documented) or ``exact``."""
MOST_PARTS = 100
"""Capacities that an annotation may give; a binding has far fewer targets."""


class Candidate(NamedTuple):
    """One workload that can take a share. ``cost`` and ``capacity`` are per instance."""

    name: str
    cost: float
    minimum: int
    maximum: int
    current: int = 0
    capacity: float = 1.0


class Block(NamedTuple):
    """``size`` instances of the candidate of that number, taken together at ``cost``."""

    cost: float
    candidate: int
    size: int


def blocks(candidates: Sequence[Candidate], expansion_percent: int) -> list[Block]:
    """All instances above the minimums in the order in which they are taken."""
    found: list[Block] = []
    for index, candidate in enumerate(candidates):
        left = candidate.maximum - candidate.minimum
        length = 1.0
        while left > 0:
            # Up to 100 percent no block ever grows: one block of everything comes in the same order.
            size = left if expansion_percent <= 100 else min(left, max(int(length), 1))
            cost = candidate.cost if expansion_percent <= 100 else candidate.cost * size
            found.append(Block(cost, index, size))
            left -= size
            length *= expansion_percent / 100
    return sorted(found, key=lambda block: (block.cost, block.candidate))


def most_blocks(instances: int, expansion_percent: int) -> int:
    """More blocks than ``blocks`` makes of so many instances."""
    growth = expansion_percent / 100
    if growth <= 1:
        return 1
    return min(instances, 2 * ceil(log1p(instances * (growth - 1)) / log(growth))) + 1


def greedy_shares(total: int, candidates: Sequence[Candidate], expansion_percent: int = 200) -> list[int]:
    """Instances of each candidate, in their order; depends on the total only, not on what runs."""
    shares = [candidate.minimum for candidate in candidates]
    left = min(max(total, sum(shares)), sum(candidate.maximum for candidate in candidates)) - sum(shares)
    for block in blocks(candidates, expansion_percent):
        if left <= 0:
            break
        taken = min(left, block.size)
        shares[block.candidate] += taken
        left -= taken
    return shares


def exact_shares(
    demand: float, candidates: Sequence[Candidate], penalty: float = 0.1, effort: WorkBudget | None = None
) -> list[int]:
    """The cheapest instances of each candidate, in their order, whose capacity is at least ``demand``.

    ``demand`` is in the unit of the capacities, ``penalty`` the share of an instance's cost that moving it counts for.
    Everything at its maximum when that is not enough; where ``effort`` is used up, the cheapest that were found.
    """
    options = tuple(
        Option(str(index), c.capacity, c.cost, str(index), minimum=c.minimum, maximum=c.maximum, current=c.current)
        for index, c in enumerate(candidates)
    )
    replicas = cover(Demand("optimizer", 1, max(0.0, demand), options, effort), penalty=penalty).replicas
    return [replicas.get(str(index), candidate.minimum) for index, candidate in enumerate(candidates)]


class Choice(NamedTuple):
    """How a binding wants its total shared out, and what is wrong with its annotations."""

    exact: bool
    capacities: Mapping[str, float]
    problems: tuple[str, ...] = ()


def parse_choice(annotations: Mapping[str, str], targets: Sequence[str]) -> Choice:
    """Read the two annotations; what cannot be read is reported and left at its default (greedy, capacity 1)."""
    problems: list[str] = []
    method = annotations.get(OPTIMIZER, "greedy").strip()
    if method not in ("exact", "greedy"):
        problems.append(f"annotation {OPTIMIZER}: {shown(method)} must be 'exact' or 'greedy'; greedy is used")
    capacities: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in annotations.get(CAPACITY, "").split(",", MOST_PARTS))):
        name, _, text = (piece.strip() for piece in part.partition("="))
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not (isfinite(value) and value > 0):
            problems.append(f"annotation {CAPACITY}: {shown(part)} must be a target's name, '=' and a number above 0")
        elif name not in targets:
            known = cut(", ".join(targets), 10 * SHOWN)
            problems.append(f"annotation {CAPACITY}: {shown(name)} is no target of the binding ({known})")
        else:
            capacities[name] = value
    return Choice(method == "exact", capacities, tuple(problems))
