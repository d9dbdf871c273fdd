"""Which variants are decided on, what happens to the others, and which pods belong to whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import LABEL, MODEL, NOW, PUBLISHED, REPAIRED, Serving, condition, hpa, make_fleet, one, records, run
from decisions import told

from modelyard.autoscaling.configuration.settings import FleetSettings, Mode
from modelyard.autoscaling.decisions.decision import Action
from modelyard.autoscaling.fleet.fleet import Consumer
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.metrics.vocabulary.values import PodSignal
from modelyard.objects import Key, Namespace, Node, OwnerRef, Pod, TargetRef, WorkloadId

BUSY = [(0.9, 9)] * 2
INSTANCE = "wva.llmd.ai/controller-instance"


def names(fleet, settings=REPAIRED):
    return [record.identity.key.name for record in decide(fleet, settings).records]


class TestWhoseVariants:
    def test_deleting_ones_vanish(self):
        assert names(make_fleet(Serving("a", BUSY, variant={"deleting": True}), Serving("b", BUSY))) == ["b"]

    @pytest.mark.parametrize(("instance", "mine"), [(None, ["plain"]), ("east", ["east"]), ("west", [])])
    @pytest.mark.parametrize("compatibility", ["repaired", "published"])
    def test_controller_instance(self, instance, mine, compatibility):
        fleet = make_fleet(Serving("plain", BUSY), Serving("east", BUSY, variant={"labels": {INSTANCE: "east"}}))
        settings = FleetSettings(controller_instance=instance, compatibility=compatibility)
        assert names(fleet, settings) == mine

    def test_watched_namespace(self):
        fleet = make_fleet(Serving("a", BUSY), Serving("b", BUSY, namespace="other"))
        assert names(fleet, FleetSettings(watch_namespace="other")) == ["b"]


class TestExcludedNamespace:
    FLEET = make_fleet(
        Serving("a", BUSY, desired=2),
        Serving("b", BUSY, namespace="open"),
        namespaces={
            "chat": Namespace("chat", annotations={"wva.llmd.ai/exclude": "true"}),
            "open": Namespace("open", annotations={"wva.llmd.ai/exclude": "True"}),
        },
    )

    def test_excluded(self):
        found = records(decide(self.FLEET, REPAIRED))
        assert (found["a"].writes.publish, found["a"].target.decided, found["a"].writes.scale) == (False, False, None)
        assert condition(found["a"], "OptimizationReady") == ("False", "SkippedProcessing")
        assert found["b"].target.action is Action.UP, "only the exact value excludes"

    def test_ignored_for_the_watched_namespace(self):
        found = records(decide(self.FLEET, FleetSettings(watch_namespace="chat")))
        assert found["a"].target.action is Action.UP


class TestTargets:
    def without_workload(self, **fields):
        return replace(make_fleet(Serving("v1", BUSY, desired=2)), workloads={}, **fields)

    def test_missing(self):
        record = told(decide(self.without_workload(), REPAIRED))[0]
        assert condition(record, "TargetResolved") == ("False", "TargetNotFound")
        assert condition(record, "MetricsAvailable") == ("False", "MetricsUnavailable")
        assert (record.writes.publish, record.writes.scale, record.target.decided) == (False, None, False)
        assert "Deployment chat/v1 does not exist" in record.why.message

    def test_missing_and_never_decided_has_nothing_to_publish(self):
        fleet = replace(make_fleet(Serving("v1", BUSY)), workloads={})
        assert decide(fleet, REPAIRED).records[0].target.replicas is None

    def test_being_deleted(self):
        record = one(Serving("v1", BUSY, workload={"deleting": True}))
        assert condition(record, "TargetResolved") == ("False", "TargetNotFound")
        assert (record.writes.publish, record.writes.scale) == (False, None)

    def test_unreadable_keeps(self):
        id_ = WorkloadId("chat", "apps", "Deployment", "v1")
        record = told(decide(self.without_workload(workload_errors={id_: "timed out"}), REPAIRED))[0]
        assert (record.target.replicas, record.writes.publish, record.writes.scale, record.target.decided) == (
            2,
            True,
            None,
            False,
        )
        assert condition(record, "TargetResolved") == ("Unknown", "TargetReadFailed")
        assert "timed out" in record.why.message

    @pytest.mark.parametrize(
        ("target", "field"),
        [(None, "spec.scaleTargetRef must"), (TargetRef("apps/v1", "Deployment", ""), "spec.scaleTargetRef.name")],
    )
    def test_no_target(self, target, field):
        record = one(Serving("v1", BUSY, variant={"target": target}))
        assert condition(record, "OptimizationReady") == ("False", "InvalidConfiguration")
        assert field in record.why.message

    def test_unparsable_object(self):
        record = one(Serving("v1", BUSY, desired=2, variant={"problem": "spec.variantCost: '-1' does not match"}))
        assert (record.target.replicas, record.why.reason) == (2, "InvalidConfiguration")
        assert "spec.variantCost" in record.why.message

    def test_an_slo_form_that_could_not_be_read_is_left_alone(self):
        found = run(Serving("slo", BUSY, desired=2, variant={"form": "slo"}), Serving("sat", BUSY))
        assert (found["slo"].target.decided, found["slo"].writes.scale, found["slo"].why.reason) == (
            False,
            None,
            "InvalidConfiguration",
        )
        assert condition(found["slo"], "OptimizationReady")[0] == "False"
        assert found["sat"].target.action is Action.UP

    @pytest.mark.parametrize("settings", [REPAIRED, PUBLISHED])
    @pytest.mark.parametrize(("ages", "younger"), [((5, 9), "a"), ((9, 5), "b"), ((5, 5), "b")])
    def test_two_variants_on_one_workload(self, ages, younger, settings):
        a = Serving("a", BUSY, created=NOW - ages[0] * 3600)
        b = Serving("b", created=NOW - ages[1] * 3600, variant={"target": TargetRef("", "Deployment", "a")})
        found = run(a, b, settings=settings)
        elder = "a" if younger == "b" else "b"
        assert condition(found[younger], "OptimizationReady") == ("False", "InvalidConfiguration")
        assert f"chat/{elder}" in found[younger].why.message
        assert (found[younger].writes.scale, found[younger].writes.publish) == (None, False)
        assert found[elder].target.decided
        assert found[elder].now.reporting == 2

    def test_kind_is_checked(self):
        record = one(Serving("v1", BUSY, variant={"target": TargetRef("apps/v1", "StatefulSet", "v1")}))
        assert condition(record, "TargetResolved") == ("False", "TargetNotFound")

    @pytest.mark.parametrize("settings", [PUBLISHED, REPAIRED])
    def test_replicas_null_is_one(self, settings):
        s = Serving("v1", [(0.9, 9)], workload={"spec_replicas": None, "status_replicas": 0})
        record = one(s, settings=settings)
        assert (record.now.current, record.target.replicas) == (1, 2)

    def test_replicas_asked_for_but_not_created_count_as_pending(self):
        record = one(Serving("v1", current=3, ready=0, workload={"status_replicas": 0}))
        assert (record.now.current, record.now.ready, record.target.replicas) == (3, 0, 3)


class TestGroups:
    def test_same_model_in_two_namespaces_is_two_groups(self):
        found = run(Serving("a", BUSY), Serving("b", [(0.5, 1)] * 2, namespace="other"))
        assert (found["a"].target.action, found["b"].target.action) == (Action.UP, Action.NONE)

    def test_one_broken_group_stops_no_other(self):
        fleet = make_fleet(Serving("bad", BUSY, model="bad", desired=2), Serving("good", BUSY))
        broken = tuple(replace(signal, kv="much") if signal.model == "bad" else signal for signal in fleet.signals.pods)
        decision = decide(replace(fleet, signals=replace(fleet.signals, pods=broken)), REPAIRED)
        found = records(decision)
        assert found["good"].target.action is Action.UP
        assert (found["bad"].target.replicas, found["bad"].target.decided, found["bad"].writes.scale) == (
            2,
            False,
            None,
        )
        assert condition(found["bad"], "OptimizationReady") == ("False", "OptimizationFailed")
        (error,) = decision.errors
        assert "'bad'" in error
        assert "TypeError" in error

    def test_mixed_compatibility_is_repaired_with_a_warning(self):
        annotated = Serving("a", BUSY, variant={"annotations": {"modelyard.dev/compatibility": "published"}})
        alone = one(annotated)
        assert alone.why.message.startswith("saturation-only mode")
        mixed = run(annotated, Serving("b", BUSY))
        assert not mixed["a"].why.message.startswith("saturation-only mode")
        assert "mixes compatibility modes" in mixed["a"].notices[0].message

    def test_cost_zero_is_the_cheapest(self):
        found = run(Serving("a", [(0.71, 0)] * 2, cost=0.0), Serving("b", [(0.71, 0)] * 2, cost=1.0))
        assert (found["a"].target.replicas, found["b"].target.replicas) == (3, 2)


class TestAnnotations:
    @pytest.mark.parametrize(
        ("annotations", "says"),
        [
            ({"modelyard.dev/min-replicas": "-1"}, "min-replicas: '-1' must be a whole number from 0 to 2147483647"),
            ({"modelyard.dev/max-replicas": "0"}, "max-replicas: '0' must be a whole number from 1 to 2147483647"),
            ({"modelyard.dev/max-replicas": "²"}, "must be a whole number"),
            ({"modelyard.dev/min-replicas": "5", "modelyard.dev/max-replicas": "3"}, "= 5 is above"),
            ({"modelyard.dev/actuation": "manual"}, "must be 'direct' or 'signal'"),
            ({"modelyard.dev/compatibility": "new"}, "must be 'repaired' or 'published'"),
        ],
    )
    def test_invalid_ones_are_told_and_ignored(self, annotations, says):
        record = one(Serving("v1", BUSY, variant={"annotations": annotations}))
        assert (record.target.replicas, record.writes.mode) == (4, Mode.DIRECT)
        (notice,) = record.notices
        assert (notice.reason, notice.kind) == ("InvalidConfiguration", "Warning")
        assert says in notice.message

    def test_signal_mode_never_writes(self):
        s = Serving("v1", BUSY, variant={"annotations": {"modelyard.dev/actuation": "signal"}})
        record = one(s)
        assert (record.writes.mode, record.target.replicas, record.writes.scale) == (Mode.SIGNAL, 4, None)


class TestConsumers:
    def test_hpa_on_a_directly_scaled_workload(self):
        s = Serving("v1", BUSY)
        record = one(s, consumers=[hpa(s)])
        assert (record.writes.mode, record.writes.scale) == (Mode.SIGNAL, None)
        assert [n.reason for n in record.notices] == ["ConflictingScaler"]

    def test_maximum_below_desired(self):
        s = Serving("v1", BUSY)
        record = one(s, consumers=[hpa(s, maximum=3)], settings=FleetSettings(actuation=Mode.SIGNAL))
        assert (record.target.replicas, record.notices) == (3, ())

    def test_current_above_maximum_is_lowered_and_says_so(self):
        s = Serving("v1", [(0.6, 1)] * 5)
        record = one(s, consumers=[hpa(s, maximum=3)])
        assert (record.target.replicas, record.why.reason) == (3, "AboveMaximum")
        assert "lowered from 5 to 3 by maximum of HorizontalPodAutoscaler chat/v1-hpa" in record.why.message
        assert record.why.steps[-1].stage == "bounds"

    def test_minimum_above_maximum(self):
        s = Serving("v1", BUSY)
        record = one(s, consumers=[hpa(s, minimum=9, maximum=3)])
        assert any("minimum 9 is above maximum 3" in n.message for n in record.notices)
        assert record.target.replicas == 4

    def test_annotation_minimum_above_hpa_maximum(self):
        s = Serving("v1", BUSY, variant={"annotations": {"modelyard.dev/min-replicas": "9"}})
        record = one(s, consumers=[hpa(s, maximum=3)])
        assert record.target.replicas == 3
        assert any("the smaller number 3 is used" in n.message for n in record.notices)

    def test_published_does_not_look_at_its_consumer(self):
        s = Serving("v1", BUSY, desired=2)
        assert one(s, consumers=[hpa(s, maximum=2)], settings=PUBLISHED).target.replicas == 3

    @pytest.mark.parametrize(
        ("desired", "mode", "consumer", "applied", "says"),
        [
            (2, "direct", None, True, ""),
            (3, "direct", None, False, "asks for 2 and has 2 replicas, published are 3"),
            (3, "signal", None, False, "no HPA or ScaledObject targets it"),
            (3, "signal", 2, False, "waiting for ScaledObject"),
            (3, "signal", 3, True, "taken over by ScaledObject"),
        ],
    )
    def test_applied(self, desired, mode, consumer, applied, says):
        s = Serving("v1", [(0.5, 0)] * 2, desired=desired)
        id_ = s.id
        consumers = [Consumer(Key("chat", "so"), "ScaledObject", id_, 0, 9, desired=consumer)] if consumer else []
        record = one(s, consumers=consumers, settings=FleetSettings(actuation=mode))
        assert record.target.replicas == desired
        assert record.writes.applied is applied
        assert says in record.writes.applied_message


class TestAttribution:
    def owned(self, name, owner, **fields):
        return Pod(Key("chat", name), name, owner, NOW - 7200, NOW - 3600, "Running", **fields)

    def decide_with(self, pod, owners, kind="Deployment", **fields):
        s = Serving("v1", kind=kind, current=1, ready=1)
        signals = {"pods": (PodSignal("chat", pod.key.name, fields.get("model", MODEL), 0.9, 9.0),)}
        fleet = make_fleet(s)
        fleet = replace(fleet, pods=(pod,), owners=owners, signals=replace(fleet.signals, **signals))
        decision = decide(fleet, REPAIRED)
        return decision.records[0].now.reporting, decision.unattributed_signals

    def test_through_a_replica_set(self):
        owners = {("chat", "ReplicaSet", "rs"): OwnerRef("apps/v1", "Deployment", "v1", "wl-chat-v1")}
        assert self.decide_with(self.owned("p", OwnerRef("apps/v1", "ReplicaSet", "rs", "u")), owners) == (1, 0)

    def test_directly(self):
        pod = self.owned("p", OwnerRef("apps/v1", "StatefulSet", "v1", "wl-chat-v1"))
        assert self.decide_with(pod, {}, kind="StatefulSet") == (1, 0)

    def test_up_to_four_owners(self):
        chain = {("chat", "K", f"o{i}"): OwnerRef("x/v1", "K", f"o{i + 1}", "") for i in range(5)}

        def owners(depth):
            return {**chain, ("chat", "K", f"o{depth}"): OwnerRef("apps/v1", "Deployment", "v1", "")}

        pod = self.owned("p", OwnerRef("x/v1", "K", "o0", "u"))
        assert self.decide_with(pod, owners(2)) == (1, 0)
        assert self.decide_with(pod, owners(3)) == (0, 1)

    def test_a_cycle_of_owners_ends(self):
        owners = {("chat", "K", "a"): OwnerRef("x/v1", "K", "a", "")}
        assert self.decide_with(self.owned("p", OwnerRef("x/v1", "K", "a", "u")), owners) == (0, 1)

    def test_owner_of_the_same_name_but_another_life(self):
        owners = {("chat", "ReplicaSet", "rs"): OwnerRef("apps/v1", "Deployment", "v1", "older")}
        assert self.decide_with(self.owned("p", OwnerRef("apps/v1", "ReplicaSet", "rs", "u")), owners) == (0, 1)

    def test_an_owner_of_another_namespace_is_none(self):
        """Anybody may write a pod that names it, until the garbage collector finds the pod."""
        s, owner = Serving("v1", current=1, ready=1), OwnerRef("apps/v1", "Deployment", "v1", "wl-chat-v1")
        pods = tuple(Pod(Key(space, "p"), "p", owner, NOW - 7200, NOW - 3600, "Running") for space in ("chat", "evil"))
        fleet = make_fleet(s)
        signals = replace(fleet.signals, pods=tuple(PodSignal(*pod.key, MODEL, 0.9, 9.0) for pod in pods))
        decision = decide(replace(fleet, pods=pods, owners={}, signals=signals), REPAIRED)
        assert (decision.records[0].now.reporting, decision.unattributed_signals) == (1, 1)

    def test_label_overrides(self):
        assert self.decide_with(self.owned("p", None, labels={"llm-d.ai/variant": "v1"}), {}) == (1, 0)
        assert self.decide_with(self.owned("p", None, labels={"llm-d.ai/variant": "other"}), {}) == (0, 1)

    @pytest.mark.parametrize("dead", [{"deleting": True}, {"phase": "Failed"}, {"phase": "Succeeded"}])
    def test_dead_pods_do_not_count(self, dead):
        pod = replace(self.owned("p", OwnerRef("apps/v1", "Deployment", "v1", "")), **dead)
        assert self.decide_with(pod, {}) == (0, 1)

    def test_signals_of_pods_that_no_longer_exist(self):
        fleet = make_fleet(Serving(load=BUSY))
        ghost = PodSignal("chat", "v1-99", MODEL, 0.99, 99.0)
        decision = decide(replace(fleet, signals=replace(fleet.signals, pods=(*fleet.signals.pods, ghost))), REPAIRED)
        assert (decision.records[0].now.reporting, decision.unattributed_signals) == (2, 1)

    def test_another_model_on_the_same_pod(self):
        fleet = make_fleet(Serving(load=[(0.5, 1)]))
        lora = PodSignal("chat", "v1-0", "lora", 0.99, 99.0)
        for pods in ((*fleet.signals.pods, lora), (lora, *fleet.signals.pods)):
            decision = decide(replace(fleet, signals=replace(fleet.signals, pods=pods)), REPAIRED)
            assert (decision.records[0].now.reporting, decision.records[0].target.action) == (1, Action.NONE)
            assert decision.unattributed_signals == 0

    def test_old_samples_do_not_count(self):
        fleet = make_fleet(Serving(load=BUSY))
        old = tuple(replace(s, sampled_at=NOW - 301) for s in fleet.signals.pods)
        assert decide(replace(fleet, signals=replace(fleet.signals, pods=old)), REPAIRED).records[0].now.reporting == 0

    def test_groups_of_pods_are_one_replica(self):
        """Two groups of two pods: leaders report, or all of them do; either way two replicas."""
        index = "leaderworkerset.sigs.k8s.io/group-index"
        s = Serving("v1", kind="LeaderWorkerSet", current=2, workload={"pods_per_replica": 2, "ready": None})
        s = replace(s, variant={"target": TargetRef("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "v1")})
        id_ = WorkloadId("chat", "leaderworkerset.x-k8s.io", "LeaderWorkerSet", "v1")
        owner = OwnerRef("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "v1", "")
        pods = [self.owned(f"v1-{i}-{j}", owner, labels={index: str(i)}) for i in range(2) for j in range(2)]
        fleet = make_fleet(s)
        workload = replace(fleet.workloads[s.id], id=id_)
        for reporting in (pods, pods[::2]):
            signals = tuple(PodSignal("chat", p.key.name, MODEL, 0.5, 1.0, 1.0, 1.0) for p in reporting)
            picture = replace(
                fleet, workloads={id_: workload}, pods=tuple(pods), signals=replace(fleet.signals, pods=signals)
            )
            record = told(decide(picture, REPAIRED))[0]
            assert (record.now.reporting, record.now.ready, record.why.evidence.reporting) == (2, 2, 2)


class TestAccelerator:
    def test_label_wins(self):
        s = Serving(load=BUSY, accelerator="A100", workload={"node_selector": {"nvidia.com/gpu.product": "NVIDIA-L4"}})
        assert one(s).now.accelerator == "A100"

    def test_then_the_template(self):
        s = Serving(
            load=BUSY, accelerator=None, workload={"node_selector": {"nvidia.com/gpu.product": "NVIDIA-H100-SXM5-80GB"}}
        )
        assert one(s).now.accelerator == "H100"

    def test_then_the_node_of_a_pod_then_status(self):
        s = Serving(load=BUSY, accelerator=None, pod={"node": "n1"}, variant={"status_accelerator": "T4"})
        node = Node("n1", {"cloud.google.com/gke-accelerator": "nvidia-l4"}, {})
        assert one(s, nodes=[node]).now.accelerator == "L4"
        assert one(s).now.accelerator == "T4"

    def test_unresolved_still_decides_and_names_the_label(self):
        record = one(Serving(load=BUSY, accelerator=None))
        assert (record.now.accelerator, record.target.action) == ("unresolved", Action.UP)
        assert condition(record, "AcceleratorResolved") == ("False", "AcceleratorUnresolved")
        message = next(c.message for c in record.conditions if c.type == "AcceleratorResolved")
        assert LABEL in message

    def test_status_saying_unresolved_is_no_name(self):
        s = Serving(load=BUSY, accelerator=None, variant={"status_accelerator": "unresolved"})
        assert condition(one(s), "AcceleratorResolved")[0] == "False"

    def test_resolved_later_clears_the_condition(self):
        before = one(Serving(load=BUSY, accelerator=None)).conditions
        after = one(Serving(load=BUSY, variant={"conditions": before}))
        assert condition(after, "AcceleratorResolved") == ("True", "AcceleratorResolved")
