"""What must hold for every load, profile and target, not only for the examples."""

from __future__ import annotations

from decisions import Told
from hypothesis import given, strategies as st
from slo_builders import H100, INSTANT, L40S, SLO, P, one_slo, premium, run_slo

LOADS = st.floats(0.01, 300)
PATIENT = INSTANT.model_copy(update={"max_step_up": 10_000})


def total(found: dict[str, Told]) -> int:
    return sum(record.target.replicas for record in found.values())


@given(load=LOADS, more=st.floats(1.0, 3.0), replicas=st.integers(1, 6))
def test_more_load_never_gives_fewer_replicas(load, more, replicas):
    small = one_slo(SLO(replicas=replicas), load=load, settings=PATIENT)
    large = one_slo(SLO(replicas=replicas), load=load * more, settings=PATIENT)
    assert large.target.replicas >= small.target.replicas


@given(load=LOADS, itl=st.floats(5, 14), tighter=st.floats(0.6, 1.0))
def test_a_tighter_target_never_gives_fewer_replicas(load, itl, tighter):
    loose = one_slo(SLO(), load=load, classes={"a": premium(itl=itl)}, settings=PATIENT)
    strict = one_slo(SLO(), load=load, classes={"a": premium(itl=itl * tighter)}, settings=PATIENT)
    assert strict.target.replicas >= loose.target.replicas
    assert strict.target.replicas <= load / 3 + 2


@given(load=LOADS, low=st.integers(0, 5), extra=st.integers(0, 5), replicas=st.integers(1, 8))
def test_bounds_are_never_crossed(load, low, extra, replicas):
    high = max(1, low + extra)
    bounds = {"modelyard.dev/min-replicas": str(low), "modelyard.dev/max-replicas": str(high)}
    record = one_slo(SLO(replicas=replicas, variant={"annotations": bounds}), load=load, settings=PATIENT)
    assert low <= record.target.replicas <= high


@given(load=LOADS, mix=st.tuples(st.integers(0, 3), st.integers(1, 3)))
def test_what_is_decided_carries_the_load_within_the_targets(load, mix):
    found = run_slo(
        SLO("h", mix[0], H100, load=None if not mix[0] else (0.1, 0.0)),
        SLO("l", mix[1], L40S, "L40S", batch=48),
        load=load,
        classes={"a": premium(itl=30)},
        settings=PATIENT,
    )
    carried = sum(
        r.target.replicas * r.why.prediction.rate_per_replica for r in found.values() if r.why.prediction is not None
    )
    assert carried >= load * (1 - 1e-6)
    for record in found.values():
        if record.why.prediction is not None and record.target.replicas:
            assert record.why.prediction.itl <= 30 * (1 + 1e-4)
            assert record.why.prediction.ttft <= 500 * (1 + 1e-4)


@given(order=st.permutations(["a", "b", "c"]), load=LOADS)
def test_the_order_of_variants_does_not_matter(order, load):
    made = {name: SLO(name, 1 + i, P, count=1 + i) for i, name in enumerate("abc")}
    expected = run_slo(*made.values(), load=load)
    found = run_slo(*(made[name] for name in order), load=load)
    assert {n: r.target.replicas for n, r in found.items()} == {n: r.target.replicas for n, r in expected.items()}
    assert total(found) >= 1


@given(loads=st.lists(st.floats(0.93, 1.0), min_size=4, max_size=8))
def test_load_that_varies_by_less_than_the_margin_moves_nothing_twice(loads):
    replicas = 3
    moves = 0
    for share in loads:
        record = one_slo(SLO(replicas=replicas), load=share * 3 * 18.75)
        moves += record.target.replicas != replicas
        replicas = record.target.replicas
    assert moves == 0
