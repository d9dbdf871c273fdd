"""The labelled numbers of a decision, as records carry and surfaces show them."""

from __future__ import annotations

from binding_decisions import decide_binding
from builders import MODEL, Serving, one
from policy_builders import binding, each, target
from random_fleets import decisions_of
from slo_builders import H100, SLO, run_slo
from stages import rising

from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.decisions.explain import lines, row


def test_latency_targets():
    found = run_slo(SLO("h", 1, H100), load=50.0)
    facts = found["h"].why.facts
    assert (facts.unit, facts.load, facts.forecast) == ("requests/s", 50.0, 50.0)
    assert (facts.required - 1) * facts.per_replica < 50 <= facts.required * facts.per_replica
    shown = f"load 50 requests/s; planned for 50 requests/s; capacity per replica {facts.per_replica:.4g} requests/s"
    assert f"{shown}; required {facts.required} replicas" in lines(found["h"].record)
    assert row(found["h"].record)["required"] == facts.required


def test_more_replicas_keep_no_fewer_requests_within_their_targets():
    known = 0
    for seed in range(200):
        for record in next(decisions_of(seed)).records:
            options = [option for option in record.why.alternatives if option.attainment is not None]
            known += len(options)
            assert all(0 <= option.attainment <= 1 for option in options)
            chosen = next((option for option in options if option.chosen), None)
            for option in options:
                fewer = len(option.replicas) == 1 and chosen is not None and option.cost <= chosen.cost
                assert not fewer or option.attainment <= chosen.attainment + 1e-9
    assert known > 20


def test_saturation():
    told = one(Serving(load=[(0.9, 9)] * 2), signals={"loads": {("chat", MODEL): rising()}})
    assert told.why.facts.load == rising().arrivals
    assert told.why.facts.required == told.target.replicas


def test_nothing_is_made_up_where_nothing_is_known():
    told = one(Serving(current=2, ready=2))
    assert told.why.facts == type(told.why.facts)()
    assert not any(line.startswith("load ") for line in lines(told.record))


def test_policy_metrics():
    view = binding(target(current=2, instances=each(2, 30.0)))
    (record,) = decide_binding(view, FleetSettings(), 0.0).records
    facts = record.why.facts
    assert (facts.unit, facts.load, facts.per_replica, facts.required) == ("waiting per instance", 30.0, 10.0, 6)
