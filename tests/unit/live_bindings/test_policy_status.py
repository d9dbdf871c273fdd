"""What a decision about a binding looks like in its status and in Events, and when it is worth a write."""

from __future__ import annotations

from typing import Any

import pytest
from decisions import make_record

from modelyard.autoscaling.decisions.decision import Action, BindingDecision, Decision, Record
from modelyard.autoscaling.fleet.binding_view import BindingView, TargetView
from modelyard.autoscaling.fleet.kinds import BINDINGS
from modelyard.autoscaling.memory.bindings import BindingMemory
from modelyard.autoscaling.plans.binding_plans import binding_plan, policy_plan, status_of
from modelyard.autoscaling.reading.bindings.objects import PolicySpec, policy
from modelyard.objects import Condition, Key, Notice, WorkloadId
from modelyard.objects.parse import conditions
from modelyard.reconcile.kernel.carry_out import Outcome
from modelyard.reconcile.kernel.tell import changes, notices
from modelyard.reconcile.plans.plan import Ref, Subject
from modelyard.reconcile.plans.status import patch

KEY = Key("n", "b")
WEB = WorkloadId("n", "apps", "Deployment", "web")
NOW = 1_800_000_000.0
REFRESH = 300.0


def subject(generation: int = 2) -> Subject:
    return Subject(BINDINGS, KEY, "u", generation, "7")


def unit(**fields: Any) -> Record:
    asked = {"replicas": 5, "scale": 5, "action": Action.UP, "reason": "MetricsAsk", "message": "30 waiting each"}
    return make_record(subject(), form="policy", variant_id="web", workload=WEB, **{**asked, **fields})


def decision(message: str = "why", *units: Record, **more: Any) -> BindingDecision:
    fields: dict[str, Any] = {
        "subject": subject(),
        "records": units or (unit(),),
        "conditions": (Condition("Ready", "True", "Reconciled", message, 2, NOW),),
        "memory": BindingMemory(scaled_at={str(WEB): NOW - 60.5}),
        **more,
    }
    return Decision(**fields)


def needs_write(decision: BindingDecision, view: BindingView, now: float, refresh: float, told: float | None) -> bool:
    return binding_plan(decision, view, now, refresh, told).status is not None


def status_patch(decision: BindingDecision, stored: dict[str, Any], now: float) -> dict[str, Any]:
    return patch(status_of(decision), stored, now)


def policy_status(policy: PolicySpec, now: float) -> dict[str, Any] | None:
    status = policy_plan(policy, now).status
    return None if status is None else patch(status, policy.status, now)


def view(status: dict[str, Any]) -> BindingView:
    target = TargetView("web", WEB, 1, 9, current=2)
    said = conditions(status.get("conditions"))
    return BindingView(KEY, "u", 2, "7", "p", False, (target,), None, status=status, conditions=said)


def stored(of: BindingDecision, before: dict[str, Any] | None = None) -> BindingView:
    """The view of a binding after the decision was written."""
    merged = {**(before or {}), **status_patch(of, before or {}, NOW)}
    return view({name: value for name, value in merged.items() if value is not None})


def test_the_whole_status() -> None:
    assert status_patch(decision(), {}, NOW) == {
        "observedGeneration": 2,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Reconciled",
                "message": "why",
                "lastTransitionTime": "2027-01-15T08:00:00Z",
                "observedGeneration": 2,
            }
        ],
        "units": [
            {
                "name": "web",
                "currentReplicas": 2,
                "desiredReplicas": 5,
                "mode": "Stable",
                "lastScaleTime": "2027-01-15T07:58:59Z",
            }
        ],
        "targets": "web",
        "mode": "Stable",
        "minReplicas": None,
        "maxReplicas": None,
        "currentReplicas": 2,
        "desiredReplicas": 5,
    }


def test_conditions_of_others_stay_and_totals_that_are_not_known_go() -> None:
    before = {"conditions": [{"type": "Audited"}, {"type": "Ready"}], "desiredReplicas": 9, "currentReplicas": 9}
    written = status_patch(decision("why", unit(current=None, replicas=None)), before, NOW)
    assert [one["type"] for one in written["conditions"]] == ["Audited", "Ready"]
    assert written["conditions"][1]["status"] == "True"
    assert (written["desiredReplicas"], written["currentReplicas"]) == (None, None)


@pytest.mark.parametrize(
    "changed",
    [
        decision("why", unit(current=3)),
        decision(records=()),
        decision(panic=True),
        decision("why", unit(current=None, replicas=None)),
        decision(memory=BindingMemory(scaled_at={str(WEB): NOW})),
        decision(conditions=(Condition("Ready", "False", "ReconcileFailed", "why", 2, NOW),)),
        decision(conditions=(Condition("Ready", "True", "Other", "why", 2, NOW),)),
        decision(conditions=(Condition("TargetFound", "True", "TargetFound", "why", 2, NOW),)),
        decision(subject=subject(3)),
    ],
)
def test_a_change_that_matters_is_written_at_once(changed: BindingDecision) -> None:
    assert needs_write(changed, stored(decision()), NOW, REFRESH, told=NOW)


def test_nothing_new_is_never_written_and_other_words_rarely() -> None:
    known = stored(decision())
    assert not needs_write(decision(), known, NOW + 10_000, REFRESH, told=None)
    words = decision("other numbers")
    assert not needs_write(words, known, NOW + 30, REFRESH, told=NOW)
    assert needs_write(words, known, NOW + 61, REFRESH, told=NOW)
    assert needs_write(words, known, NOW + 30, REFRESH, told=None)


def test_events_of_a_change_are_told_when_it_has_happened() -> None:
    told = Notice("MetricsUnavailable", "two pods hang", "Warning")
    plan = binding_plan(decision(notices=(told,)), view({}), NOW, REFRESH, None)
    assert notices(plan, Outcome()) == ([], [told])
    ref = Ref("AutoscalingPolicyBinding", KEY)
    done = Outcome(scaled={(ref, WEB): (2, 5)})
    happened, standing = notices(plan, done)
    assert [(one.reason, one.message) for one in happened] == [("ScaledUp", f"{WEB} 2 → 5: 30 waiting each")]
    assert standing == [told]
    assert [(one.reason, one.before, one.after) for one in changes([plan], done)] == [("MetricsAsk", 2, 5)]
    assert changes([plan], Outcome()) == []
    failed = Outcome(skipped={ref: "moved"}, errors={ref: "forbidden"})
    assert [one.message for one in notices(plan, failed)[1]][1:] == ["moved", "forbidden"]


def manifest(spec: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "n", "uid": "u", "generation": 4, "resourceVersion": "1"}
    kind = {"apiVersion": "registry.volcano.sh/v1alpha1", "kind": "AutoscalingPolicy"}
    return {**kind, "metadata": metadata, "spec": spec, "status": status or {}}


def test_a_policy_says_what_it_means_and_says_it_once() -> None:
    spec = {"metrics": [{"metricName": "m", "targetValue": 1}]}
    written = policy_status(policy(manifest(spec)), NOW)
    assert written is not None
    assert written["observedGeneration"] == 4
    assert written["effectiveBehavior"]["scaleUp"]["stablePolicy"]["instances"] == 4
    assert (written["conditions"][0]["type"], written["conditions"][0]["status"]) == ("Ready", "True")
    assert written["metrics"] == "m=1"
    assert policy_status(policy(manifest(spec, written)), NOW + 100) is None
    broken = policy_status(policy(manifest({"metrics": []}, written)), NOW + 100)
    assert broken is not None
    assert broken["effectiveBehavior"] is None
    assert broken["metrics"] is None
    assert broken["conditions"][0]["reason"] == "InvalidConfiguration"


def test_a_policy_names_every_metric_and_what_of_it_has_no_effect() -> None:
    metrics = [{"metricName": "a", "targetValue": "0.75"}, {"metricName": "b", "targetValue": 5, "later": 1}]
    written = policy_status(policy(manifest({"metrics": metrics})), NOW)
    assert written is not None
    assert written["metrics"] == "a=0.75, b=5"
    warning = {one["type"]: one["message"] for one in written["conditions"]}["SpecWarning"]
    assert warning == "without effect: spec.metrics[1].later: unknown field"
