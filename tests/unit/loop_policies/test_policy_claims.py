"""Never two writers: bindings whose target a VariantAutoscaling, an HPA or a ScaledObject scales as well."""

from __future__ import annotations

from dataclasses import replace

from modelyard.autoscaling.fleet import Consumer, Fleet, Key, Namespace, TargetRef, Variant, WorkloadId
from modelyard.autoscaling.policies.claims import claimed, settled, without_rivals
from modelyard.autoscaling.policies.view import BindingView, TargetView
from modelyard.autoscaling.settings import FleetSettings

WEB, API = (WorkloadId("n", "apps", "Deployment", name) for name in ("web", "api"))


def view(name: str, *workloads: WorkloadId, problem: str | None = None) -> BindingView:
    targets = tuple(TargetView(id_.name, id_, 1, 5, current=1) for id_ in workloads)
    return BindingView(Key("n", name), "u", 1, "1", "p", len(targets) > 1, targets, None, problem=problem)


def variant(target: TargetRef, deleting: bool = False) -> Variant:
    return Variant(Key("n", "v"), "u", 1, "1", 0.0, "llama", target, 10.0, deleting=deleting)


def test_each_kind_of_rival() -> None:
    fleet = Fleet(0.0, variants=(variant(TargetRef("", "Deployment", "web")),))
    assert "VariantAutoscaling n/v" in claimed([view("b", WEB)], fleet)[Key("n", "b")]
    for kind in ("HorizontalPodAutoscaler", "ScaledObject"):
        fleet = Fleet(0.0, consumers=(Consumer(Key("n", "h"), kind, WEB, 1, 2),))
        assert f"{kind} n/h" in claimed([view("b", WEB)], fleet)[Key("n", "b")]


def test_others_are_free() -> None:
    variants = (
        variant(TargetRef("apps/v1", "Deployment", "api")),
        variant(TargetRef("apps/v1", "StatefulSet", "web")),
        variant(TargetRef("apps/v1", "Deployment", "web"), deleting=True),
        replace(variant(TargetRef("apps/v1", "Deployment", "web")), key=Key("elsewhere", "v")),
        replace(variant(TargetRef("apps/v1", "Deployment", "web")), target=None),
    )
    assert claimed([view("b", WEB)], Fleet(0.0, variants=variants)) == {}


def test_one_claimed_target_is_enough() -> None:
    fleet = Fleet(0.0, consumers=(Consumer(Key("n", "h"), "HorizontalPodAutoscaler", API, 1, 2),))
    assert set(claimed([view("both", WEB, API), view("one", WEB)], fleet)) == {Key("n", "both")}


def test_who_cannot_be_listed_may_be_there() -> None:
    found = claimed([view("b", WEB)], Fleet(0.0, consumers_error="forbidden"))
    assert "forbidden" in found[Key("n", "b")]


def test_a_problem_of_its_own_comes_first() -> None:
    fleet = Fleet(0.0, consumers_error="forbidden")
    free, broken = without_rivals([view("b", WEB), view("c", WEB, problem="broken")], fleet)
    assert (free.problem_reason, broken.problem) == ("ConflictingScaler", "broken")
    views = (view("b", WEB),)
    assert without_rivals(views, Fleet(0.0)) == views


def test_excluded_namespaces_are_left_alone_also_as_the_place_of_a_target() -> None:
    away = WorkloadId("m", "apps", "Deployment", "web")
    marked = Namespace("m", annotations={"wva.llmd.ai/exclude": "true"})
    fleet = Fleet(0.0, namespaces={"m": marked, "n": Namespace("n")})
    here, there = settled([view("b", WEB), view("c", away)], fleet, FleetSettings())
    assert here.problem is None
    assert (there.problem_reason, "namespace m is excluded" in str(there.problem)) == ("SkippedProcessing", True)
    (watched,) = settled([view("c", away)], fleet, FleetSettings(watch_namespace="m"))
    assert watched.problem is None
