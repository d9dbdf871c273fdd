"""How long and how good the allocation of scarce accelerators is: 100 to 10,000 variants over eight types.

    python benchmarks/allocation.py [--variants 100 1000 10000] [--share 0.8] [--effort 20000000]

Every model has four variants on different accelerators and one of four priorities; the capacity is ``--share`` of what
all would take without a limit. The reference is the greedy allocation, in the same run: prints the CPU seconds of both,
the loads each serves per priority (a demand served whole counts 1), and each one's cost with transition penalty. Where
the two serve different amounts costs do not compare; ``cost of the same service`` is the exact cost against the least
cost of fractional replicas that serve as much, by linear programming: no allocation can be cheaper.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest

import pulp

from modelyard.autoscaling.mixing import Allocation, Demand, Option, allocate, allocate_greedy
from modelyard.autoscaling.mixing.allocate import EFFORT
from modelyard.fairness import WorkBudget

TYPES = tuple(f"T{i}" for i in range(8))
PRICES = tuple(10 * 1.5**i for i in range(8))
PRIORITIES = (1, 5, 10, 20)
EACH = 4
PENALTY = 0.1


def build(variants: int, seed: int = 0) -> list[Demand]:
    """Models of four variants; larger models take more accelerators per replica and carry less."""
    rng = random.Random(seed)
    demands = []
    for i in range(variants // EACH):
        units = rng.choice((1, 1, 2, 4))
        options = tuple(
            Option(
                f"variant-{i}-{j}", PRICES[j] / 2 * rng.uniform(0.7, 1.4) / units, PRICES[j] * units, TYPES[j], units,
                current=rng.choice((0, 0, 1, 3)),
            )
            for j in rng.sample(range(len(TYPES)), EACH)
        )  # fmt: skip
        demands.append(Demand(f"model-{i}", rng.choice(PRIORITIES), rng.uniform(1, 200), options))
    return demands


def loads(demands: Sequence[Demand], allocation: Allocation) -> dict[int, float]:
    """Loads served by priority; a demand served whole counts 1."""
    found: dict[int, float] = defaultdict(float)
    for d in demands:
        found[d.priority] += allocation.shares[d.name].served / d.load
    return dict(sorted(found.items()))


def objective(demands: Sequence[Demand], allocation: Allocation) -> float:
    """Cost per hour with transition penalty."""
    return sum(d.objective(allocation.shares[d.name].replicas, PENALTY) for d in demands)


def fractional_cost(demands: Sequence[Demand], capacity: dict[str, int], served: dict[int, float]) -> float:
    """The least cost of fractional replicas within the capacity that serve as many loads of each priority."""
    problem = pulp.LpProblem("fractional", pulp.LpMinimize)
    cost: list[tuple[pulp.LpVariable, float]] = []
    constant = 0.0
    used: dict[str, list[tuple[pulp.LpVariable, int]]] = defaultdict(list)
    groups: dict[int, list[tuple[pulp.LpVariable, float]]] = defaultdict(list)

    def row(terms: list[tuple[pulp.LpVariable, float]], sense: int, right: float) -> None:
        problem.addConstraint(pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, rhs=right))

    for i, d in enumerate(demands):
        part = problem.add_variable(f"s{i}", 0, 1)
        groups[d.priority].append((part, 1))
        carried: list[tuple[pulp.LpVariable, float]] = [(part, -1)]
        for j, o in enumerate(d.options):
            runs = problem.add_variable(f"r{i}_{j}", 0, o.current)
            new = problem.add_variable(f"n{i}_{j}", 0)
            constant += PENALTY * o.cost * o.current
            for variable, price in ((runs, 1 - PENALTY), (new, 1 + PENALTY)):
                cost.append((variable, price * o.cost))
                carried.append((variable, o.rate / d.load))
                used[o.accelerator].append((variable, o.units))
        row(carried, pulp.LpConstraintGE, 0)
    for accelerator, terms in used.items():
        row(list(terms), pulp.LpConstraintLE, capacity[accelerator])
    for priority, terms_ in groups.items():
        row(terms_, pulp.LpConstraintGE, served[priority] - 1e-6)
    problem.setObjective(pulp.LpAffineExpression(cost))
    problem.solve(pulp.HiGHS(msg=False))
    assert problem.status == pulp.LpStatusOptimal
    return float(pulp.value(problem.objective)) + constant


def measure(variants: int, share: float, units: int) -> None:
    """Measure one size and print."""
    demands = build(variants)
    start = time.process_time()
    unlimited = allocate(demands, None, penalty=PENALTY)
    covered = time.process_time()
    capacity = {a: int(unlimited.used.get(a, 0) * share) for a in TYPES}
    before = time.process_time()
    effort = WorkBudget(units)
    exact = allocate(demands, capacity, penalty=PENALTY, effort=effort)
    between = time.process_time()
    greedy = allocate_greedy(demands, capacity, penalty=PENALTY)
    after = time.process_time()
    over = [a for a in TYPES if exact.used.get(a, 0) > capacity[a]]
    ours, theirs = loads(demands, exact), loads(demands, greedy)
    first = next((p for p in ours if abs(ours[p] - theirs[p]) > 1e-6), None)
    print(f"{variants} variants, {len(demands)} models, capacity {share:.0%} of the unlimited need")
    print(
        f"  CPU seconds: unlimited {covered - start:.2f}, exact {between - before:.2f}, greedy {after - between:.2f}, "
        f"ratio exact/greedy {(between - before) / (after - between):.0f}; "
        f"effort {1 - effort.left / units:.0%}"
    )
    print(f"  answer: {exact.method}{', ' if exact.note else ''}{exact.note}; above capacity: {over or 'nothing'}")
    for priority, mine, other in zip_longest(ours, ours.values(), theirs.values()):
        total = sum(d.priority == priority for d in demands)
        print(f"  priority {priority}: of {total} loads exact serves {mine:.3f}, greedy {other:.3f}")
    verdict = "the same service" if first is None else f"{'more' if ours[first] > theirs[first] else 'LESS'} of {first}"
    mine_cost, bound = objective(demands, exact), fractional_cost(demands, capacity, ours)
    print(f"  cost: exact {mine_cost:.1f} ({verdict}), greedy {objective(demands, greedy):.1f}")
    print(f"  cost of the same service: exact / fractional bound {mine_cost / bound:.4f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="CPU seconds and quality of allocating scarce accelerators.")
    parser.add_argument("--variants", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--effort", type=int, default=EFFORT, help="work the exact allocation may take")
    options = parser.parse_args()
    for variants in options.variants:
        measure(variants, options.share, options.effort)


if __name__ == "__main__":
    main()
