"""Scale to zero: its settings, the documented rule, and the proofs the repaired one asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
from builders import CONTROLLER, EAGER, MODEL, NOW, PUBLISHED, REPAIRED, ZERO, Serving, condition, hpa, one, run
from decisions import Told

from modelyard.autoscaling.configuration.config_maps import look_alikes
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.memory.variants import VariantMemory
from modelyard.autoscaling.variants.zero_config import LONGEST, ZeroConfigs, ZeroRule, retentions
from modelyard.objects import Key
from modelyard.objects.durations import parse_go_duration

ON, OFF = "enable_scale_to_zero: true", "enable_scale_to_zero: false"
ENABLED = {"default": "{enable_scale_to_zero: true, retention_period: 10m}"}
WINDOW = ("chat", MODEL, 600)
IDLE = [(0.0, 0.0)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("30s", 30),
        ("250ms", 0.25),
        ("0", 0),
        ("-5m", -300),
        ("1m.5s", 60.5),
    ],
)
def test_go_durations(text, seconds):
    assert parse_go_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "2d", "m", "10 m", "ten", "5m!", "-", "1h-5m"])
def test_not_go_durations(text):
    with pytest.raises(ValueError, match="Go duration"):
        parse_go_duration(text)


class TestSettings:
    def policy(self, data, model=MODEL, namespace="chat", settings=REPAIRED):
        return ZeroConfigs({ZERO: data}, settings).resolve(namespace, model)

    @pytest.mark.parametrize(
        ("data", "fleet_default", "expected"),
        [
            ({}, False, ZeroRule(False, 600)),
            ({}, True, ZeroRule(True, 600)),
            ({"default": "enable_scale_to_zero: true"}, False, ZeroRule(True, 600)),
            ({"default": "enable_scale_to_zero: false"}, True, ZeroRule(False, 600)),
            ({"default": "retention_period: 5m"}, True, ZeroRule(True, 300)),
            ({"default": "retention_period: nonsense"}, True, ZeroRule(True, 600)),
            ({"default": "retention_period: 0s"}, True, ZeroRule(True, 600)),
            ({"default": ON, "m": f"{{model_id: {MODEL}, {OFF}}}"}, True, ZeroRule(False, 600)),
            ({"default": "retention_period: 5m", "m": f"{{model_id: {MODEL}, {ON}}}"}, False, ZeroRule(True, 300)),
            (
                {"default": "retention_period: 5m", "m": f"{{model_id: {MODEL}, retention_period: 1h}}"},
                True,
                ZeroRule(True, 3600),
            ),
            (
                {"default": "retention_period: 5m", "m": f"{{model_id: {MODEL}, retention_period: bad}}"},
                True,
                ZeroRule(True, 300),
            ),
            ({"m": f"{{model_id: {MODEL}, namespace: other, {ON}}}"}, False, ZeroRule(False, 600)),
            ({"m": f"{{model_id: {MODEL}, namespace: chat, {ON}}}"}, False, ZeroRule(True, 600)),
            (
                {
                    "b": f"{{model_id: {MODEL}, retention_period: 2m}}",
                    "a": f"{{model_id: {MODEL}, retention_period: 1m}}",
                },
                True,
                ZeroRule(True, 60),
            ),
        ],
    )
    def test_layers(self, data, fleet_default, expected):
        assert self.policy(data, settings=FleetSettings(scale_to_zero=fleet_default)) == expected

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            ({"x": "retention_period: 1m"}, "entry without model_id"),
            ({"x": "{broken"}, "not valid YAML"),
            ({"a": "model_id: m", "b": "model_id: m"}, "second entry for model 'm'"),
            ({"default": "retention_period: soon"}, "'soon' is not a Go duration"),
            ({"default": "retention_period: 25h"}, "longer than a day"),
            ({"default": "enable_scale_to_zero: 'yes'"}, "must be true or false"),
            ({"default": "retention: 5m"}, "unknown field 'retention'"),
        ],
    )
    def test_problems_are_told(self, data, says):
        found = ZeroConfigs({ZERO: data}, REPAIRED)
        assert any(says in notice.message for _, notice in found.notices)

    PUBLISHED_SHAPE: ClassVar = {
        "__defaults__": "{enableScaleToZero: true, retentionPeriod: 5m}",
        "model.chat": f"{{modelID: {MODEL}, retentionPeriod: 15m}}",
        "model.other": "{modelID: other, enableScaleToZero: false}",
    }

    def test_the_shape_of_the_other_reference(self):
        maps = {Key(CONTROLLER, "model-scale-to-zero-config"): self.PUBLISHED_SHAPE}
        found = ZeroConfigs(maps, REPAIRED)
        rules = [found.resolve("chat", model) for model in (MODEL, "other", "third")]
        assert rules == [ZeroRule(True, 900), ZeroRule(False, 300), ZeroRule(True, 300)]
        assert found.notices == []
        assert look_alikes(maps, REPAIRED, ["chat"]) == []

    def test_its_problems_are_told_in_its_words_and_one_map_goes_first(self):
        wrong = {**self.PUBLISHED_SHAPE, "model.chat": f"{{modelID: {MODEL}, retentionPeriod: soon}}", "default": OFF}
        maps = {ZERO: {}, Key(CONTROLLER, "model-scale-to-zero-config"): wrong}
        found = ZeroConfigs(maps, REPAIRED)
        assert found.resolve("chat", MODEL) == ZeroRule(True, 300)
        told = " ".join(notice.message for _, notice in found.notices)
        assert "retentionPeriod: 'soon' is not a Go duration" in told
        assert "second default entry" in told
        both = ZeroConfigs({**maps, ZERO: {"default": OFF}}, REPAIRED)
        assert both.resolve("chat", MODEL) == ZeroRule(False, 600)
        assert any("takes precedence" in notice.message for _, notice in both.notices)

    def test_local_map_replaces(self):
        maps = {ZERO: ENABLED, Key("chat", ZERO.name): {"default": "retention_period: 1m"}}
        assert ZeroConfigs(maps, REPAIRED).resolve("chat", MODEL) == ZeroRule(False, 60)
        assert ZeroConfigs(maps, REPAIRED).resolve("else", MODEL) == ZeroRule(True, 600)
        assert Key(CONTROLLER, ZERO.name) == ZERO

    def test_entries_for_another_namespace_change_nothing_there(self):
        entries = {"default": ON, "o": f"{{model_id: {MODEL}, namespace: else, {ON}}}", f"{MODEL}#else": ON}
        found = ZeroConfigs({Key("chat", ZERO.name): entries}, FleetSettings(scale_to_zero=False))
        assert found.resolve("chat", MODEL).enabled
        assert not found.resolve("else", MODEL).enabled

    def test_a_namespace_has_few_windows_and_none_longer_than_a_day(self):
        entries = {f"m{n}": f"{{model_id: m{n}, {ON}, retention_period: {n + 1}h}}" for n in range(40)}
        maps = {ZERO: ENABLED, Key("chat", ZERO.name): {**entries, "default": ON}}
        found = ZeroConfigs(maps, REPAIRED)
        assert {found.resolve("chat", f"m{n}").window for n in range(41)} == {LONGEST}
        assert "the longest, 86400 s, is used for all" in found.notices[-1][1].message
        assert found.resolve("else", "m1").window == 600
        few = {name: entries[name] for name in ("m0", "m1")}
        elsewhere = {"x": f"{{model_id: x, namespace: else, {ON}, retention_period: 9h}}"}
        own = ZeroConfigs({Key("chat", ZERO.name): {**few, **elsewhere}}, REPAIRED)
        assert [own.resolve("chat", name).window for name in ("m0", "m1", "other")] == [3600, 7200, 600]
        assert not own.notices
        assert ZeroConfigs({ZERO: entries}, REPAIRED).resolve("chat", "m1").window == 7200, "an operator may"

    def test_windows_to_query(self):
        from builders import make_variant

        variants = [make_variant(Serving()), make_variant(Serving("b", model="other"))]
        data = {ZERO: {"x": f"{{model_id: {MODEL}, enable_scale_to_zero: true, retention_period: 500ms}}"}}
        assert retentions(variants, data, REPAIRED) == {("chat", MODEL): 1}


class TestDocumentedRule:
    @pytest.mark.parametrize(
        ("counts", "targets"),
        [({WINDOW: 0.0}, (0, 0)), ({WINDOW: 3.0}, (1, 1)), ({}, (1, 1))],
        ids=["idle", "busy", "unknown"],
    )
    @pytest.mark.parametrize("settings", [PUBLISHED, REPAIRED])
    def test_enabled(self, counts, targets, settings):
        found = run(Serving("a", IDLE), Serving("b", IDLE), zero=ENABLED, counts=counts, settings=settings)
        assert (found["a"].target.replicas, found["b"].target.replicas) == targets

    def test_marked_as_enforced(self):
        record = one(Serving(load=IDLE), zero=ENABLED, counts={WINDOW: 0.0})
        assert record.why.reason == "ScaledToZero"
        assert [step.stage for step in record.why.steps][-1] == "enforcement"
        assert record.why.message.startswith("no request for 600 s and none in flight")
        assert (record.writes.scale, record.memory.transition_target) == (0, 0)

    def test_not_enabled_keeps_the_cheapest_at_one(self):
        """Desired was zero when scale-to-zero was switched off: the cheapest comes back, ties by name."""
        memory = VariantMemory(transition_target=0, transition_since=NOW - 5)
        dear = Serving("a", IDLE, cost=9, desired=0, memory=memory)
        found = run(dear, Serving("b", IDLE, cost=5, desired=0, memory=memory), counts={WINDOW: 0.0})
        assert found["b"].target.replicas == 1


class TestProofsOfIdleness:
    def idle(self, **changes):
        return Serving(load=IDLE, **changes)

    def zero(self, serving, **fields) -> Told:
        fields = {"zero": ENABLED, "counts": {WINDOW: 0.0}, **fields}
        return one(serving, **fields)

    @pytest.mark.parametrize(
        ("serving", "fields", "why"),
        [
            (Serving(load=IDLE, running=1.0), {}, "holds 1 running"),
            (Serving(load=[(0.0, 2.0)]), {}, "2 waiting requests"),
            (Serving(load=IDLE, running=None), {}, "does not say how many requests it holds"),
            (Serving(load=[(0.0, None)]), {}, "does not say how many requests it holds"),
            (Serving(load=IDLE), {"signals": {"gateway_queue": {("chat", MODEL): 1.0}}}, "queued at the gateway"),
            (Serving(load=IDLE), {"signals": {"gateway_unknown": True}}, "could not be read"),
            (Serving(load=[(0.0, 0.0)] * 9, current=10, ready=10), {}, "9 of 10 ready replicas"),
            (Serving(load=IDLE, created=NOW - 30), {}, "not yet idle for 600 s"),
            (Serving(load=IDLE, ready_age=20, startup=700), {}, "580 s to go"),
            (Serving(load=IDLE, current=2, ready=1), {}, "1 of 2 replicas ready, the others are still starting"),
            (Serving(load=IDLE, memory=VariantMemory(woken_at=NOW - 599)), {}, "1 s to go"),
        ],
    )
    def test_repaired_asks_for_more(self, serving, fields, why):
        record = self.zero(serving, settings=EAGER, **fields)
        assert record.target.replicas > 0
        assert any(step.stage == "enforcement" and why in step.detail for step in record.why.steps)
        assert self.zero(serving, settings=PUBLISHED, **fields).target.replicas == 0 or "9 of 10" in why

    def test_a_broken_wake_query_of_a_variant_called_gateway_keeps_no_other_tenant_from_zero(self):
        text = "VariantAutoscaling hostile/gateway: annotation modelyard.dev/wake-query: gateway queue; correct it"
        assert self.zero(self.idle(), signals={"errors_in": {"hostile": (text,)}}).target.replicas == 0

    def test_after_the_grace(self):
        assert self.zero(self.idle(memory=VariantMemory(woken_at=NOW - 600))).target.replicas == 0

    def test_waking_is_noticed_once_and_starts_the_grace(self):
        woken = self.zero(self.idle(desired=0))
        assert (woken.target.replicas, woken.memory.woken_at) == (1, NOW)
        again = self.zero(self.idle(desired=0, memory=woken.memory), now=NOW + 15)
        assert again.memory.woken_at == NOW

    def test_on_its_way_to_zero_is_not_a_waking(self):
        first = self.zero(self.idle(desired=1))
        second = self.zero(self.idle(desired=0, memory=first.memory), now=NOW + 15)
        assert (second.target.replicas, second.memory.woken_at) == (0, None)
        assert second.memory.transition_since == NOW

    def test_woken_without_metrics_yet_keeps_its_replica(self):
        record = self.zero(Serving(current=1, ready=0, desired=0))
        assert (record.target.replicas, record.target.decided, record.memory.woken_at) == (1, False, NOW)

    def test_minimum_of_the_hpa_disables_it(self):
        s = self.idle()
        record = self.zero(s, consumers=[hpa(s, minimum=1)])
        assert record.target.replicas == 1
        assert "minimum of HorizontalPodAutoscaler" in record.message
        assert self.zero(s, consumers=[hpa(s, minimum=0)]).target.replicas == 0
        assert self.zero(s, consumers=[hpa(s, minimum=None)]).target.replicas == 1, "an HPA without a minimum has 1"
        keda = replace(hpa(s, minimum=None), kind="ScaledObject")
        assert self.zero(s, consumers=[keda]).target.replicas == 0

    def test_minimum_annotation_disables_it(self):
        assert self.zero(self.idle(variant={"annotations": {"modelyard.dev/min-replicas": "1"}})).target.replicas == 1


class TestAtZero:
    ZERO = Serving(current=0, spec=0, ready=0, desired=2)

    @pytest.mark.parametrize("settings", [PUBLISHED, REPAIRED])
    def test_publishes_zero(self, settings):
        record = one(self.ZERO, settings=settings)
        assert (record.target.replicas, record.writes.publish, record.writes.scale, record.why.reason) == (
            0,
            True,
            None,
            "AtZero",
        )
        assert condition(record, "MetricsAvailable") == ("False", "MetricsUnavailable")
        assert condition(record, "OptimizationReady")[0] == "True"

    def test_even_without_prometheus(self):
        assert one(self.ZERO, signals={"error": "down"}).target.replicas == 0

    def test_is_no_scaling_of_ours(self):
        assert one(self.ZERO).memory.scalings == {}

    def test_explicit_minimum_raises_it(self):
        s = replace(self.ZERO, variant={"annotations": {"modelyard.dev/min-replicas": "2"}})
        record = one(s)
        assert (record.target.replicas, record.writes.scale, record.why.reason) == (2, 2, "BelowMinimum")

    def test_minimum_of_an_hpa_does_not(self):
        assert one(self.ZERO, consumers=[hpa(self.ZERO, minimum=2)]).target.replicas == 0

    def test_stays_at_zero_when_zero_is_not_enabled(self):
        busy = Serving("busy", [(0.95, 9)] * 2, cost=99)
        found = run(replace(self.ZERO, cost=1, desired=0), busy)
        assert found["v1"].target.replicas == 0
        assert found["busy"].target.replicas > 2
