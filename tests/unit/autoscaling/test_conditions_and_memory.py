"""Conditions, the health of metrics, the safety net and what is remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import EAGER, MODEL, NOW, PUBLISHED, REPAIRED, Serving, condition, make_fleet, one, run
from pydantic import BaseModel

from modelyard.autoscaling.decisions.conditions import build
from modelyard.autoscaling.decisions.decision import Action
from modelyard.autoscaling.decisions.explain import lines, remarks, row
from modelyard.autoscaling.decisions.reasons import ConditionValue
from modelyard.autoscaling.fleet.startup import learn_startup
from modelyard.autoscaling.memory.bindings import BindingMemory
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE, VariantMemory
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.autoscaling.variants.arbitration import arbitrate
from modelyard.objects import Condition
from modelyard.reconcile.plans.memory import parse_memory, render_memory

BUSY = [(0.9, 9)] * 2
CALM = [(0.6, 1)] * 2


class TestConditions:
    @pytest.mark.parametrize("settings", [PUBLISHED, REPAIRED])
    @pytest.mark.parametrize("load", [BUSY, CALM], ids=["change", "no change"])
    def test_decided(self, settings, load):
        record = one(Serving(load=load), settings=settings)
        assert [c.type for c in record.conditions] == ["TargetResolved", "MetricsAvailable", "OptimizationReady"]
        assert condition(record, "TargetResolved") == ("True", "TargetFound")
        assert condition(record, "MetricsAvailable") == ("True", "MetricsAvailable")
        assert condition(record, "OptimizationReady") == ("True", "SaturationOnlyMode")
        assert {c.observed_generation for c in record.conditions} == {3}
        assert {c.last_transition for c in record.conditions} == {NOW}

    def test_messages_have_the_numbers(self):
        message = next(c.message for c in one(Serving(load=CALM)).conditions if c.type == "OptimizationReady")
        assert "spare KV 0.200, spare queue 4.0 over 2 reporting, 0 saturated" in message

    def test_transition_time_changes_only_with_the_status(self):
        old = (Condition("MetricsAvailable", "True", "MetricsFound", "x", 1, NOW - 900),)
        record = one(Serving(load=CALM, variant={"conditions": old}))
        assert next(c.last_transition for c in record.conditions if c.type == "MetricsAvailable") == NOW - 900
        blind = one(Serving(load=CALM, variant={"conditions": old}), signals={"error": "down"})
        assert next(c.last_transition for c in blind.conditions if c.type == "MetricsAvailable") == NOW

    def test_foreign_conditions_are_not_returned(self):
        old = (Condition("Paused", "True", "ByHand", "x", 1, NOW - 900),)
        assert all(c.type != "Paused" for c in one(Serving(load=CALM, variant={"conditions": old})).conditions)

    def test_unchanged_condition_is_the_same_object(self):
        old = Condition("A", "True", "R", "m", 2, 5.0)
        assert build([old], [("A", ConditionValue("True", "R", "m"))], 2, 9.0)[0] is old
        assert build([old], [("A", None)], 3, 9.0) == (old,)
        assert build([], [("A", None)], 3, 9.0) == ()


class TestMetricHealth:
    def test_nothing_scraped_gives_the_four_point_hint(self):
        record = one(Serving(current=2, ready=2, desired=3))
        assert condition(record, "MetricsAvailable") == ("False", "MetricsUnavailable")
        assert condition(record, "OptimizationReady") == ("False", "MetricsUnavailable")
        for point in ("ServiceMonitor", "selector", "/metrics", "scrapes the namespace"):
            assert point in record.why.message

    def test_nothing_ready_yet(self):
        record = one(Serving(current=2, ready=0))
        assert "no replica of model 'meta/llama' in namespace chat is ready yet (0 of 2)" in record.why.message
        assert "ServiceMonitor" not in record.why.message

    @pytest.mark.parametrize(("age", "reason"), [(301, "MetricsStale"), (299, "MetricsUnavailable")])
    def test_stale(self, age, reason):
        record = one(Serving(current=1, ready=1), signals={"last_seen": {("chat", MODEL): NOW - age}})
        assert condition(record, "MetricsAvailable") == ("False", reason)

    def test_prometheus_down(self):
        record = one(Serving(load=BUSY, desired=3), signals={"error": "connection refused"})
        assert condition(record, "MetricsAvailable") == ("False", "PrometheusError")
        assert condition(record, "OptimizationReady") == ("False", "MetricsUnavailable")
        assert "connection refused" in record.why.message

    def test_failed_query(self):
        record = one(Serving(current=1, ready=1), signals={"partial_errors": ("kv: bad gateway",)})
        assert condition(record, "MetricsAvailable") == ("False", "PrometheusError")

    def test_what_failed_for_another_namespace_alone_is_not_told_here(self):
        errors = {"hostile": tuple(f"broken expression {n}" for n in range(400))}
        record = one(Serving(current=1, ready=1), signals={"errors_in": errors})
        assert condition(record, "MetricsAvailable") == ("False", "MetricsUnavailable")
        own = one(Serving(current=1, ready=1, namespace="hostile"), signals={"errors_in": errors})
        assert condition(own, "MetricsAvailable") == ("False", "PrometheusError")
        assert own.why.message.count("broken expression") == 10
        assert "and 390 more" in own.why.message

    def test_published_variant_without_reporting_pods(self):
        found = run(Serving("a", CALM), Serving("b", current=1, ready=0, desired=1), settings=PUBLISHED)
        assert (found["b"].target.decided, found["b"].target.replicas) == (False, 1)
        assert condition(found["b"], "MetricsAvailable") == ("False", "MetricsUnavailable")
        assert found["a"].target.decided


class TestSafetyNet:
    @pytest.mark.parametrize(("desired", "current", "target"), [(3, 2, 3), (None, 2, 2), (0, 2, 2), (3, 3, 3)])
    @pytest.mark.parametrize("settings", [PUBLISHED, REPAIRED])
    def test_desired_if_decided_else_current(self, desired, current, target, settings):
        record = one(Serving(load=[(0.9, 9)] * current, desired=desired), signals={"error": "down"}, settings=settings)
        assert (record.target.replicas, record.target.decided, record.writes.scale, record.writes.publish) == (
            target,
            False,
            None,
            True,
        )

    def test_never_decided_is_not_decided_zero(self):
        record = one(Serving(load=CALM, variant={"status_replicas": 0, "last_run": None}))
        assert record.now.desired is None
        assert record.memory.woken_at is None
        assert record.target.replicas == 2


class TestMemory:
    def test_scalings_count_new_decisions_only(self):
        short = [(0.75, 0)] * 2
        first = one(Serving(load=short, desired=2))
        assert first.memory.scalings == {"up/KvCacheSpareLow": 1}
        again = one(Serving(load=short, desired=first.target.replicas, memory=first.memory))
        assert again.target.replicas == first.target.replicas
        assert again.memory.scalings == first.memory.scalings
        down = one(Serving(load=[(0.1, 0)] * 4, desired=4, memory=first.memory), settings=EAGER)
        assert down.memory.scalings == {"up/KvCacheSpareLow": 1, "down/CapacitySpare": 1}

    @pytest.mark.parametrize(
        ("load", "reason"),
        [
            ([(0.75, 0)] * 2, "KvCacheSpareLow"),
            ([(0.1, 3)] * 2, "QueueSpareLow"),
            ([(0.75, 3)] * 2, "KvCacheAndQueueSpareLow"),
        ],
    )
    @pytest.mark.parametrize("settings", [PUBLISHED, REPAIRED])
    def test_reasons_tell_kv_from_queue(self, load, reason, settings):
        assert one(Serving(load=load), settings=settings).why.reason == reason

    def test_quiet_tick_leaves_the_memory_alone(self):
        first = one(Serving(load=CALM, desired=2))
        again = one(Serving(load=CALM, desired=2, memory=first.memory), now=NOW + 30)
        assert again.memory is first.memory or again.memory == first.memory

    def test_start_up_is_learnt(self):
        assert one(Serving(load=CALM, startup=95)).memory.startup_seconds == 95
        assert one(Serving(load=CALM, startup=95), signals={"error": "down"}).memory.startup_seconds == 95

    @pytest.mark.parametrize(
        ("known", "times", "learnt"),
        [
            (None, [], None),
            (None, [60, 70, 80], 70),
            (None, [60, 70, 80, 90], 70),
            (60.0, [7000, 61, 7000], 60.0),  # most pods lost their readiness for a while
            (60.0, [65, 65], 60.0),
            (60.0, [90, 91], 90),
            (None, [60, 86_400], 60),  # one pod lost its readiness for a day
            (None, [86_400], None),
            (None, [-5], None),
            (None, [-5, 60], 60),  # a clock that was set back
            (None, [0.2, 0.4, 3], 0),
        ],
    )
    def test_start_up_is_robust(self, known, times, learnt):
        pods = make_fleet(Serving(load=[(0.5, 0)] * len(times))).pods
        pods = [replace(p, created=p.ready_since - t) for p, t in zip(pods, times, strict=True)]
        assert learn_startup(known, pods) == learnt

    def test_times_ahead_of_the_clock_become_now(self):
        """The clock was set back by a day: nothing waits for a day."""
        ahead, past = NOW + 86_400, NOW - 5
        memory = VariantMemory(
            transition_since=ahead,
            transition_target=2,
            relax_since=ahead,
            woken_at=ahead,
            partial_since=ahead,
            stuck_since={"v1-0": ahead, "v1-1": past},
            startup_seconds=9,
        )
        mended = memory.not_after(NOW)
        assert mended == memory.model_copy(
            update={
                **dict.fromkeys(("transition_since", "relax_since", "woken_at", "partial_since"), NOW),
                "stuck_since": {"v1-0": NOW, "v1-1": past},
            }
        )
        assert mended.not_after(NOW) is mended
        assert VariantMemory().not_after(0) == VariantMemory()

    def test_a_clock_set_back_delays_by_the_delay_only(self):
        idle = Serving(load=[(0.1, 0)] * 4, memory=VariantMemory(relax_since=NOW + 86_400))
        first = one(idle)
        assert (first.why.reason, first.memory.relax_since) == ("ScaleDownDelayed", NOW)
        assert one(replace(idle, memory=first.memory), now=NOW + REPAIRED.scale_down_delay).target.replicas == 3
        partial = Serving(load=[(0.76, 0)] * 2, current=3, memory=VariantMemory(partial_since=NOW + 86_400))
        assert one(partial).memory.partial_since == NOW
        blind = one(replace(idle, memory=VariantMemory(woken_at=NOW + 9)), signals={"error": "down"})
        assert blind.memory.woken_at == NOW, "mended also where nothing is decided"

    def test_survives_its_annotation(self):
        memory = one(Serving(load=BUSY, rate=0.0)).memory
        assert memory.stuck_since
        assert parse_memory(VariantMemory, AUTOSCALING_STATE, render_memory(memory)) == (memory, None)
        assert render_memory(VariantMemory()) is None


@pytest.mark.parametrize(
    ("current", "saturation", "forecast", "safe", "target", "overridden"),
    [
        (3, 4, 2, True, 3, True),  # up / down: veto
        (3, 4, 2, False, 3, True),
        (3, 3, 2, False, 3, True),  # down and not safe: blocked
        (3, 2, 2, False, 3, True),
        (3, 3, 2, True, 2, False),
        (3, 3, 2, None, 2, False),  # no analysis: cannot block
        (3, 5, 3, True, 5, False),  # up / none
        (3, 5, 4, True, 5, False),  # up / up: the larger
        (3, 4, 6, True, 6, False),
        (3, 3, 5, True, 5, False),
        (3, 2, 5, True, 5, False),
        (3, 3, 3, True, 3, False),
        (3, 2, 3, True, 3, False),  # saturation's down alone never acts
    ],
)
def test_arbitration(current, saturation, forecast, safe, target, overridden):
    result = arbitrate(current, saturation, forecast, safe)
    assert (result.target, result.overridden) == (target, overridden)
    assert result.why


class TestExplain:
    def test_a_row_begins_with_the_variant_now_and_target_and_why(self):
        found = row(one(Serving(load=BUSY, desired=2)).record)
        assert list(found)[:3] == ["variant", "now → target", "why"]
        assert (found["variant"], found["now → target"], found["action"]) == ("chat/v1", "2 → 4", "scale-up")
        assert found["why"].startswith("short of capacity")
        unknown = decide(replace(make_fleet(Serving()), workloads={}), REPAIRED).records[0]
        assert row(unknown)["now → target"] == "– → –"

    def test_lines_answer_why(self):
        told = lines(one(Serving(load=BUSY, desired=2)).record)
        assert told[0].startswith("target 4 (scale-up, decided): short of capacity (need 11, have 2)")
        assert any(line.startswith("configuration: kvCacheThreshold 0.8") for line in told)
        assert any(line.startswith("model: 2 replicas report, 2 saturated") for line in told)
        assert any(line == "writes 4 replicas to Deployment chat/v1" for line in told)
        assert any(line.startswith("not applied yet: ") for line in told)

    def test_lines_of_what_was_not_decided(self):
        decision = one(Serving(load=BUSY), signals={"error": "down"})
        assert "kept, not decided" in lines(decision.record)[0]
        said = remarks(decision)
        assert any(line.startswith("condition MetricsAvailable=False (PrometheusError)") for line in said)

    def test_nothing_happening_is_explained_too(self):
        record = one(Serving(load=CALM))
        assert record.target.action is Action.NONE
        assert "neither short of capacity nor safe to shrink" in lines(record.record)[0]


@pytest.mark.parametrize(
    ("model", "text", "where"),
    [
        (BindingMemory, '{"scaled_at":{"a":-1e300}}', "scaled_at.a"),
        (BindingMemory, '{"recommended":{"newest":[1e200,1]}}', "recommended.newest.0"),
        (BindingMemory, '{"seen":{"a":1%s}}' % ("0" * 400), "seen.a"),
        (VariantMemory, '{"relax_since":1e300}', "relax_since"),
        (VariantMemory, '{"regretted":-1%s}' % ("0" * 400), "regretted"),
    ],
)
def test_numbers_that_nobody_can_reckon_with_are_damage(model: type[BaseModel], text: str, where: str) -> None:
    memory, damage = parse_memory(model, "x/memory", text)
    assert memory == model()
    assert f"unreadable at {where}" in str(damage)
