"""Corrections by observed latency, and parameters learnt online: what moves them, how far, and when they are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import condition, records
from decisions import Told
from slo_builders import SLO, STILL, carry_on, one_slo, slo_fleet

from modelyard.autoscaling.memory.variants import SLOMemory, VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
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

    def learn(self, make: SLO, ticks: int = 100) -> Told:
        """After so many ticks, of which every twentieth is its turn."""
        fleet = slo_fleet(make, load=16.0)
        for _ in range(ticks):
            found = records(decide(fleet, self.settings))
            fleet = carry_on(fleet, found, self.settings.tick)
            fleet = replace(fleet, variants=tuple(replace(v, status_replicas=2) for v in fleet.variants))
        return found["v1"]

    def test_a_learnt_speed_replaces_the_profile(self):
        record = self.learn(serving_at(16.0))
        assert condition(record, "ProfileValid") == ("True", "ProfileLearnt")
        assert record.why.prediction.itl == pytest.approx(16.0, rel=0.25)
        given = one_slo(serving_at(16.0), load=16.0, settings=STILL)
        assert condition(given, "ProfileValid") == ("True", "ProfileValid")
        assert record.why.prediction.rate_per_replica < given.why.prediction.rate_per_replica

    def test_until_then_the_profile_counts(self):
        record = self.learn(serving_at(16.0), ticks=30)
        assert condition(record, "ProfileValid") == ("True", "ProfileValid")

    def test_what_is_known_is_not_written_again(self):
        record = self.learn(serving_at(16.0), ticks=400)
        again = one_slo(
            serving_at(16.0, serving={"memory": record.memory}), load=16.0, settings=self.settings
        ).memory.slo
        assert again.speed == record.memory.slo.speed

    @pytest.mark.parametrize(
        "damaged", [(0.0,) * 6, (5.0, 0.0, 0.0, 0.0, 0.0, 0.0), (9.0, 1e9, 1.0, 0.0, 1e9, 0.0), (1e-300, *(1e15,) * 5)]
    )
    def test_damaged_memory_stops_nobody(self, damaged):
        memory = VariantMemory(slo=SLOMemory(speed=damaged))
        fleet = slo_fleet(serving_at(16.0, serving={"memory": memory}), load=16.0)
        for _ in range(40):
            decision = decide(fleet, self.settings)
            assert not decision.errors
            assert records(decision)["v1"].target.decided
            fleet = carry_on(fleet, records(decision), self.settings.tick)

    def test_off_by_default(self):
        assert one_slo(variant(PREDICTED_ITL), load=16.0).memory.slo.speed is None


def serving_at(itl: float, **fields) -> SLO:
    """An engine at 8 requests/s, TTFT as of 0.01 ms a prompt token."""
    return SLO(replicas=2, completed=480.0, itl=itl, ttft=15 + 5 + 1.5 * itl, **fields)
