"""Never two writers: bindings whose target a VariantAutoscaling, an HPA or a ScaledObject scales as well."""

from __future__ import annotations

from dataclasses import replace

from modelyard.autoscaling.bindings.claims import Rival, claimed, outside, settled, without_rivals
from modelyard.autoscaling.configuration.settings import FleetSettings, Mode
from modelyard.autoscaling.fleet.binding_view import BindingView, TargetView
from modelyard.autoscaling.fleet.fleet import Consumer, Fleet, Variant
from modelyard.objects import Key, Namespace, TargetRef, WorkloadId

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


def test_in_signal_mode_an_hpa_is_who_carries_the_decisions_out() -> None:
    fleet = Fleet(0.0, consumers=(Consumer(Key("n", "h"), "HorizontalPodAutoscaler", WEB, 1, 2),))
    unknown = Fleet(0.0, consumers_error="forbidden")
    published = FleetSettings(actuation=Mode.SIGNAL)
    for world in (fleet, unknown):
        asked = replace(view("b", WEB), annotations={"modelyard.dev/actuation": "signal"})
        refused = replace(view("c", WEB), annotations={"modelyard.dev/actuation": "direct"})
        assert set(claimed([asked, refused, view("d", WEB)], world)) == {Key("n", "c"), Key("n", "d")}
        assert set(claimed([asked, refused, view("d", WEB)], world, published)) == {Key("n", "c")}
    assert "modelyard.dev/actuation: signal" in claimed([view("b", WEB)], fleet)[Key("n", "b")]


def test_a_variant_comes_first_in_signal_mode_as_well() -> None:
    fleet = Fleet(0.0, variants=(variant(TargetRef("", "Deployment", "web")),))
    asked = replace(view("b", WEB), annotations={"modelyard.dev/actuation": "signal"})
    assert set(claimed([asked], fleet)) == {Key("n", "b")}


def test_of_two_loops_exactly_one_scales() -> None:
    older, younger = replace(view("a", WEB), created=1.0), replace(view("b", WEB, API), created=2.0)
    claims = {one.key: Rival(str(one.key), frozenset({WEB}), one.key, one.created) for one in (older, younger)}
    assert outside(older, [claims[younger.key]]) == {}
    assert outside(younger, [claims[older.key]]) == {WEB: ("n/a",)}
    found = claimed([replace(younger, rivals=outside(younger, [claims[older.key]]))], Fleet(0.0))
    assert "n/a: not scaling" in found[younger.key]
    same = replace(view("c", WEB), created=1.0)
    assert bool(outside(same, [claims[older.key]])) is not bool(
        outside(older, [Rival("c", frozenset({WEB}), same.key, 1.0)])
    )


def test_a_variant_of_another_loop_always_comes_first() -> None:
    claim = Rival("VariantAutoscaling n/v", frozenset({WEB}), Key("n", "v"), 9.0, binding=False)
    assert outside(view("b", WEB), [claim]) == {WEB: ("VariantAutoscaling n/v",)}
    assert outside(view("b", API), [claim]) == {}
