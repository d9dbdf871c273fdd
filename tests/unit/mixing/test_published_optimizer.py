"""The documented optimizer on its worked fleets, and its repairs."""

from __future__ import annotations

import pytest

from modelyard.autoscaling.mixing.candidates import (
    Candidate,
    Current,
    Server,
    sized,
    transition_value,
    with_values,
)
from modelyard.autoscaling.published.allocation import SaturationPolicy, TypeUse, optimize, parse_policy
from modelyard.autoscaling.settings import Compatibility

PUBLISHED, REPAIRED = Compatibility.PUBLISHED, Compatibility.REPAIRED

# server, priority, load per minute, accelerators per replica, and (H100, L40S): most requests per minute of a replica
WORKED = [
    ("chat-gold", 1, 2400, (1, 1), (1699.4, 352.9)),
    ("code-gold", 1, 1500, (2, 4), (680.1, 161.2)),
    ("chat-silver", 5, 4000, (1, 1), (1748.7, 378.6)),
    ("code-silver", 5, 600, (2, 4), (700.6, 172.7)),
]
PRICES = {"H100": 100.0, "L40S": 32.0}


def worked_fleet() -> list[Server]:
    servers = []
    for name, priority, load, counts, rates in WORKED:
        candidates = tuple(
            sized(accelerator, load / 60, rate / 60, PRICES[accelerator], count=count, minimum=1)
            for accelerator, count, rate in zip(PRICES, counts, rates, strict=True)
        )
        servers.append(with_values(Server(name, priority, candidates)))
    return servers


def given(servers: list[Server], capacity: dict[str, int] | None, policy: str, delayed: bool) -> dict[str, str]:
    solution = optimize(servers, capacity, policy=policy, delayed=delayed, compatibility=PUBLISHED)
    return {name: f"{g.candidate.accelerator}×{g.replicas}" for name, g in solution.grants.items()}


@pytest.mark.parametrize(
    ("server", "accelerator", "replicas", "cost", "value"),
    [
        ("chat-gold", "H100", 2, 200, 220),
        ("chat-gold", "L40S", 7, 224, 246.4),
        ("code-gold", "H100", 3, 600, 660),
        ("code-gold", "L40S", 10, 1280, 1408),
        ("chat-silver", "H100", 3, 300, 330),
        ("chat-silver", "L40S", 11, 352, 387.2),
        ("code-silver", "H100", 1, 200, 220),
        ("code-silver", "L40S", 4, 512, 563.2),
    ],
)
def test_candidates_of_the_worked_fleet(
    server: str, accelerator: str, replicas: int, cost: float, value: float
) -> None:
    found = next(s for s in worked_fleet() if s.name == server)
    candidate = next(c for c in found.candidates if c.accelerator == accelerator)
    assert (candidate.replicas, candidate.cost) == (replicas, cost)
    assert candidate.value == pytest.approx(value)


def test_unlimited_takes_the_least_value() -> None:
    solution = optimize(worked_fleet(), None, compatibility=PUBLISHED)
    assert {n: (g.candidate.accelerator, g.replicas) for n, g in solution.grants.items()} == {
        "chat-gold": ("H100", 2),
        "code-gold": ("H100", 3),
        "chat-silver": ("H100", 3),
        "code-silver": ("H100", 1),
    }
    assert solution.cost == 1300
    assert solution.types == {"H100": TypeUse(13, None, 1300.0)}


BEST_EFFORT = ("PriorityExhaustive", "PriorityRoundRobin", "RoundRobin")
BASE_8_10 = {"code-gold": "H100×3", "chat-gold": "H100×2"}
BASE_6_8 = {"code-gold": "H100×3", "chat-gold": "L40S×7"}
INVERTED = {"chat-gold": "H100×2", "code-silver": "H100×1", "chat-silver": "L40S×11"}
LIMITED = [
    *(((8, 10), "None", delayed, BASE_8_10) for delayed in (False, True)),
    *(
        ((8, 10), policy, delayed, {**BASE_8_10, "code-silver": "L40S×2", "chat-silver": "L40S×2"})
        for policy in BEST_EFFORT
        for delayed in (False, True)
    ),
    *(((6, 8), "None", delayed, BASE_6_8) for delayed in (False, True)),
    *(
        ((6, 8), policy, delayed, {**BASE_6_8, "chat-silver": "L40S×1"})
        for policy in BEST_EFFORT
        for delayed in (False, True)
    ),
    *(((4, 12), "None", delayed, INVERTED) for delayed in (False, True)),
    *(
        ((4, 12), policy, False, {"chat-gold": "H100×2", "code-gold": "H100×1", "chat-silver": "L40S×11"})
        for policy in BEST_EFFORT
    ),
    *(((4, 12), policy, True, INVERTED) for policy in BEST_EFFORT),
]


@pytest.mark.parametrize(("units", "policy", "delayed", "expected"), LIMITED)
def test_limited_worked_fleet(units: tuple[int, int], policy: str, delayed: bool, expected: dict[str, str]) -> None:
    capacity = dict(zip(PRICES, units, strict=True))
    assert given(worked_fleet(), capacity, policy, delayed) == expected


def three_servers() -> list[Server]:
    def server(name: str, priority: int, wanted: int) -> Server:
        return with_values(Server(name, priority, (Candidate("H100", wanted, 100.0 * wanted),)))

    return [server("a", 1, 5), server("b", 1, 4), server("c", 5, 6)]


# H100 units; replicas of a, b, c under None, PriorityExhaustive, PriorityRoundRobin, RoundRobin not delayed and delayed
APART = [
    (3, (0, 0, 0), (3, 0, 0), (2, 1, 0), (2, 1, 0), (1, 1, 1)),
    (7, (5, 0, 0), (5, 2, 0), (5, 2, 0), (5, 2, 0), (5, 1, 1)),
    (8, (5, 0, 0), (5, 3, 0), (5, 3, 0), (5, 3, 0), (5, 2, 1)),
    (11, (5, 4, 0), (5, 4, 2), (5, 4, 2), (5, 4, 2), (5, 4, 2)),
]


@pytest.mark.parametrize(
    ("units", "policy", "delayed", "expected"),
    [
        (units, policy, delayed, counts)
        for units, none, exhaustive, priority_robin, robin, robin_delayed in APART
        for policy, delayed, counts in (
            ("None", False, none),
            ("None", True, none),
            ("PriorityExhaustive", False, exhaustive),
            ("PriorityExhaustive", True, exhaustive),
            ("PriorityRoundRobin", False, priority_robin),
            ("PriorityRoundRobin", True, priority_robin),
            ("RoundRobin", False, robin),
            ("RoundRobin", True, robin_delayed),
        )
    ],
)
def test_policies_told_apart(units: int, policy: str, delayed: bool, expected: tuple[int, int, int]) -> None:
    solution = optimize(three_servers(), {"H100": units}, policy=policy, delayed=delayed, compatibility=PUBLISHED)
    found = tuple(solution.grants[n].replicas if n in solution.grants else 0 for n in "abc")
    assert found == expected
    assert solution.types["H100"].units == sum(expected) <= units


def test_partial_grants_scale_cost_and_value() -> None:
    solution = optimize(three_servers(), {"H100": 7}, policy="PriorityExhaustive")
    grant = solution.grants["b"]
    assert (grant.replicas, grant.cost, grant.partial) == (2, 200.0, True)
    assert grant.value == pytest.approx(220.0)
    assert solution.cost == 700.0


@pytest.mark.parametrize(
    ("current", "candidate", "value"),
    [
        (Current("A", 4, 160), Candidate("A", 4, 160), 0),
        (Current("A", 4, 160), Candidate("A", 5, 200), 40),
        (Current("A", 4, 160), Candidate("B", 2, 130), -1),
        (Current("A", 4, 160), Candidate("B", 2, 132), 1.2),
        (Current(), Candidate("A", 2, 64), 70.4),
    ],
)
def test_transition_values(current: Current, candidate: Candidate, value: float) -> None:
    assert transition_value(current, candidate) == pytest.approx(value)


@pytest.mark.parametrize(("cost", "moves"), [(130, True), (132, False)])
def test_a_switch_pays_below_nine_elevenths(cost: float, moves: bool) -> None:
    server = with_values(Server("s", 1, (Candidate("A", 4, 160), Candidate("B", 2, cost)), Current("A", 4, 160)))
    solution = optimize([server], None)
    assert (solution.grants["s"].candidate.accelerator == "B") is moves
    assert ("s" in solution.differences) is moves


@pytest.mark.parametrize(
    ("load", "replicas", "cost"), [(0.3, 1, 100), (1125, 1, 100), (1126, 2, 200), (2400, 3, 300), (4567.89, 5, 500)]
)
def test_replicas_for_a_load(load: float, replicas: int, cost: float) -> None:
    candidate = sized("A", load / 60, 18.75100, 100)
    assert (candidate.replicas, candidate.cost) == (replicas, cost)


def test_no_load_keeps_the_minimum_or_no_accelerator() -> None:
    assert sized("A", 0, 5, 100, count=2, minimum=3) == Candidate("A", 3, 600, 600, 2)
    assert sized("A", 0, 5, 100) == Candidate("", 0, 0.0)


def test_equal_values_go_by_cost_then_name() -> None:
    server = Server("s", 1, (Candidate("B", 1, 10.0, 5.0), Candidate("A", 1, 10.0, 5.0), Candidate("C", 1, 9.0, 5.0)))
    assert optimize([server], None).grants["s"].candidate.accelerator == "C"
    assert optimize([Server("s", 1, server.candidates[:2])], None).grants["s"].candidate.accelerator == "A"


def test_zero_replicas_are_granted_and_dropped_in_published_mode() -> None:
    server = Server("idle", 1, (Candidate("", 0, 0.0),))
    assert optimize([server], {}).grants["idle"].replicas == 0
    assert optimize([server], {}, compatibility=PUBLISHED).grants == {}


def test_multiplicity_zero_is_refused_and_free_in_published_mode() -> None:
    server = Server("s", 1, (Candidate("A", 3, 30.0, 33.0, multiplicity=0),))
    with pytest.raises(ValueError, match="server 's', accelerator 'A': multiplicity is 0"):
        optimize([server], {})
    assert optimize([server], {}, compatibility=PUBLISHED).grants["s"].replicas == 3


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="saturationPolicy is 'roundRobin'; it must be one of None, Priority"):
        optimize(three_servers(), {"H100": 3}, policy="roundRobin")
    assert parse_policy("roundRobin", PUBLISHED) is SaturationPolicy.NONE


def test_a_type_with_a_name_of_its_own_and_units_per_accelerator() -> None:
    server = with_values(Server("s", 1, (Candidate("2xA", 3, 300.0, count=2, multiplicity=2, type="A"),)))
    assert optimize([server], {"A": 11}).grants == {}
    solution = optimize([server], {"A": 12})
    assert solution.types == {"A": TypeUse(12, 12, 300.0)}
    assert solution.differences["s"].replicas == (0, 3)
