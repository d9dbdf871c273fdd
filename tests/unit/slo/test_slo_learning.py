"""Corrections by observed latency, and parameters learnt online: what moves them, how far, and when they are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import records
from decisions import Told
from slo_builders import SLO, STILL, carry_on, one_slo, slo_fleet

from modelyard.autoscaling.decide import decide
from modelyard.autoscaling.memory.variants import SLOMemory, VariantMemory
from modelyard.autoscaling.variants.slo.feedback import HIGHEST, LOWEST

PREDICTED_ITL, PREDICTED_TTFT = 8.4213, 30.869
"""Profile P at 8 requests/s."""


def variant(itl: float | None, ttft: float | None = PREDICTED_TTFT, memory: SLOMemory | None = None, **fields) -> SLO:
    serving = {"memory": VariantMemory(slo=memory), **fields.pop("serving", {})}
    return SLO(replicas=2, completed=480.0, itl=itl, ttft=ttft, serving=serving, **fields)


def factors(record) -> tuple[float, float]:
    return record.memory.slo.ttft_factor, record.memory.slo.itl_factor


def converge(make, ticks: int = 40, settings=STILL) -> tuple[Told, int]:
    fleet = slo_fleet(make, load=16.0)
    writes = 0
    for _ in range(ticks):
        found = records(decide(fleet, settings))
        writes += found["v1"].memory.slo != fleet.variants[0].memory.slo
        fleet = carry_on(fleet, found, 0.0)
        fleet = replace(fleet, variants=tuple(replace(v, status_replicas=2) for v in fleet.variants))
    return found["v1"], writes


def test_what_is_as_predicted_teaches_nothing():
    assert factors(one_slo(variant(PREDICTED_ITL * 1.03), load=16.0)) == (1.0, 1.0)


def test_one_observation_moves_a_quarter_of_the_way():
    record = one_slo(variant(PREDICTED_ITL * 1.4, PREDICTED_TTFT * 0.8), load=16.0)
    assert factors(record) == pytest.approx((0.95, 1.1), abs=1e-3)


def test_it_settles_and_then_writes_nothing_more():
    record, writes = converge(variant(PREDICTED_ITL * 1.4))
    assert record.memory.slo.itl_factor == pytest.approx(1.4, rel=0.051)
    assert writes < 12


def test_a_slower_engine_gets_more_replicas_and_an_honest_prediction():
    slow = one_slo(variant(PREDICTED_ITL * 1.2, memory=SLOMemory(itl_factor=1.2)), load=16.0, settings=STILL)
    fine = one_slo(variant(PREDICTED_ITL), load=16.0, settings=STILL)
    assert slow.why.prediction.rate_per_replica < fine.why.prediction.rate_per_replica
    assert (fine.target.replicas, slow.target.replicas) == (2, 3)
    with_two = next(option for option in slow.why.alternatives if option.replicas["v1"] == 2)
    assert with_two.itl == pytest.approx(1.2 * fine.why.prediction.itl, rel=1e-6)


@pytest.mark.parametrize(("ratio", "bound"), [(20.0, HIGHEST), (0.01, LOWEST)])
def test_it_is_bounded(ratio, bound):
    record, _ = converge(variant(PREDICTED_ITL * ratio))
    assert record.memory.slo.itl_factor == pytest.approx(bound, rel=0.051)


@pytest.mark.parametrize(
    "unsteady",
    [
        {"serving": {"ready": 1}},
        {"serving": {"desired": 3}},
        {"serving": {"ready_age": 30.0}},
        {"variant": {"annotations": {}}, "prompt": None},
    ],
    ids=["pending", "moving", "young", "no sizes"],
)
def test_it_learns_in_steady_state_only(unsteady):
    record = one_slo(variant(PREDICTED_ITL * 1.5, **unsteady), load=16.0)
    assert record.memory.slo is None or factors(record) == (1.0, 1.0)


@pytest.mark.parametrize("completed", [2.0, None])
def test_too_few_requests_teach_nothing(completed):
    record = one_slo(replace(variant(PREDICTED_ITL * 1.5), completed=completed), load=16.0)
    assert record.memory.slo is None or factors(record) == (1.0, 1.0)


def test_it_can_be_switched_off():
    off = STILL.model_copy(update={"feedback": False})
    record = one_slo(variant(PREDICTED_ITL * 1.5, memory=SLOMemory(itl_factor=1.5)), load=16.0, settings=off)
    assert record.why.prediction.itl == pytest.approx(PREDICTED_ITL, abs=1e-3)


def drift(record: Told):
    return next((one for one in record.conditions if one.type == "ProfileDrift"), None)


def test_a_profile_that_does_not_hold_is_told_until_it_holds_again():
    """Never said of one that holds; back from further below than it came."""
    assert drift(converge(variant(PREDICTED_ITL * 1.2))[0]) is None
    told = drift(converge(variant(PREDICTED_ITL * 1.6))[0])
    assert (told.status, told.reason) == ("True", "LatenciesDiffer")
    assert "ITL 1.5" in told.message

    def again(factor: float):
        seen = variant(PREDICTED_ITL * factor, memory=SLOMemory(itl_factor=factor), variant={"conditions": (told,)})
        return drift(one_slo(seen, load=16.0, settings=STILL))

    assert again(1.25).status == "True"
    assert (again(1.1).status, again(1.1).reason) == ("False", "ProfileHolds")
    assert again(0.8).status == "True"


def test_another_profile_is_corrected_anew():
    """What was learnt of the one before would be counted twice."""
    record, _ = converge(variant(PREDICTED_ITL * 1.6))
    memory = record.memory.slo
    assert memory.corrected
    same = one_slo(variant(PREDICTED_ITL * 1.6, memory=memory), load=16.0, settings=STILL)
    assert same.memory.slo.itl_factor == memory.itl_factor
    changed = memory.model_copy(update={"corrected": (1.0, *memory.corrected[1:])})
    other = one_slo(variant(PREDICTED_ITL, memory=changed), load=16.0, settings=STILL)
    assert factors(other) == (1.0, 1.0)
    assert other.memory.slo.corrected == ()


class TestEstimator:
    settings = STILL.model_copy(update={"estimator": True})

    def test_learnt_parameters_replace_the_profile(self):
        record, _ = converge(variant(PREDICTED_ITL * 1.3, PREDICTED_TTFT * 1.3), settings=self.settings)
        memory = record.memory.slo
        assert (len(memory.estimate), len(memory.covariance)) == (3, 9)
        assert memory.updates >= 5
        assert memory.itl_factor == 1.0
        assert record.why.prediction.itl == pytest.approx(PREDICTED_ITL * 1.3, rel=0.1)

    def test_an_engine_that_became_another_is_learnt_anew_after_a_few_outliers(self):
        record, _ = converge(variant(PREDICTED_ITL, PREDICTED_TTFT), settings=self.settings)
        learnt = record.memory.slo
        slow = variant(PREDICTED_ITL * 4, PREDICTED_TTFT * 4, memory=learnt)
        predictions, memories = [], []
        fleet = slo_fleet(slow, load=16.0)
        for _ in range(8):
            found = records(decide(fleet, self.settings))
            predictions.append(found["v1"].why.prediction.itl)
            memories.append(found["v1"].memory.slo)
            fleet = carry_on(fleet, found, 0.0)
            fleet = replace(fleet, variants=tuple(replace(v, status_replicas=2) for v in fleet.variants))
        assert [m.rejected for m in memories[:5]] == [1, 2, 3, 4, 0]
        assert {m.estimate for m in memories[:4]} == {learnt.estimate}
        assert memories[-1].rejected == 0
        rate = [record.why.prediction.rate_per_replica, found["v1"].why.prediction.rate_per_replica]
        assert rate[1] < rate[0] / 3

    def test_a_single_outlier_is_left_out(self):
        record, _ = converge(variant(PREDICTED_ITL, PREDICTED_TTFT), settings=self.settings)
        odd = one_slo(
            variant(PREDICTED_ITL * 4, PREDICTED_TTFT * 4, memory=record.memory.slo), load=16.0, settings=self.settings
        )
        assert odd.memory.slo.estimate == record.memory.slo.estimate
        again = one_slo(
            variant(PREDICTED_ITL, PREDICTED_TTFT, memory=odd.memory.slo), load=16.0, settings=self.settings
        )
        assert (odd.memory.slo.rejected, again.memory.slo.rejected) == (1, 0)

    def test_what_no_parameters_explain_changes_nothing_and_writes_nothing_more(self):
        memory = SLOMemory(rejected=5)
        impossible = variant(PREDICTED_ITL, PREDICTED_TTFT, memory=memory, batch=1)
        record = one_slo(impossible, load=16.0, settings=self.settings)
        assert record.target.decided
        assert (record.memory.slo.estimate, record.memory.slo.rejected) == ((), 5)

    def test_damaged_memory_starts_afresh(self):
        damaged = SLOMemory(estimate=(1.0,), covariance=(2.0,), updates=50)
        record = one_slo(variant(PREDICTED_ITL, memory=damaged), load=16.0, settings=self.settings)
        assert record.target.decided
        assert record.memory.slo.updates == 1

    def test_off_by_default(self):
        assert one_slo(variant(PREDICTED_ITL), load=16.0).memory.slo.estimate == ()
