"""What a tick asks for beyond the usual: only what some variant needs."""

from __future__ import annotations

import dataclasses

import pytest

from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings
from modelyard.autoscaling.fleet.fleet import SLOSpec, Variant
from modelyard.autoscaling.reading.demands import (
    at_zero,
    count_windows,
    needs_loads,
    sized_namespaces,
    token_namespaces,
    wake_expressions,
)
from modelyard.autoscaling.variants.classes import MOST_CLASS_MAPS, class_references
from modelyard.objects import Key, TargetRef, Workload, WorkloadId

SLO = SLOSpec("m-H100-1", "H100", 1, "classes", "premium", {}, {}, 64)
SETTINGS = FleetSettings()
NAME = SETTINGS.saturation_config_map


def variant(name: str = "v", namespace: str = "chat", slo: SLOSpec | None = None, **changes: object) -> Variant:
    base = Variant(
        key=Key(namespace, name),
        uid=name,
        generation=1,
        resource_version="1",
        created=0,
        model_id="llama",
        target=TargetRef("", "Deployment", name),
        cost=1,
        form="slo" if slo else "saturation",
        slo=slo,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variants", "settings", "needed"),
    [
        ([variant()], FleetSettings(), True),
        ([variant()], FleetSettings(headroom=False), True),
        ([variant()], FleetSettings(compatibility=Compatibility.PUBLISHED), False),
        ([variant(), variant("w", slo=SLO)], FleetSettings(headroom=False), True),
        ([variant(slo=SLO)], FleetSettings(compatibility=Compatibility.PUBLISHED), True),
        ([], FleetSettings(), False),
    ],
)
def test_loads_are_needed_to_bound_growth_and_for_the_slo_form(
    variants: list[Variant], settings: FleetSettings, needed: bool
) -> None:
    assert needs_loads(variants, settings) is needed


TOKENS = {"default": "analyzerName: saturation"}


@pytest.mark.parametrize(
    ("config_maps", "namespaces"),
    [
        ({}, set()),
        ({Key(SETTINGS.controller_namespace, NAME): {"default": "kvCacheThreshold: 0.7"}}, set()),
        ({Key(SETTINGS.controller_namespace, NAME): TOKENS}, {"sized", "chat", "code"}),
        ({Key("chat", NAME): TOKENS}, {"chat"}),
        ({Key("chat", NAME): {"llama#chat": "analyzerName: saturation"}}, {"chat"}),
        ({Key("chat", NAME): {"default": "analyzerName: [", "x": "analyzerName: other"}}, set()),
        ({Key("elsewhere", NAME): TOKENS}, set()),
    ],
)
def test_caches_matter_where_the_token_analyzer_is(
    config_maps: dict[Key, dict[str, str]], namespaces: set[str]
) -> None:
    variants = [variant(), variant("w", "code"), variant("x", "sized", SLO)]
    assert token_namespaces(variants, config_maps, SETTINGS) == namespaces


def test_latencies_matter_where_the_slo_form_is_or_attainment_is_aimed_at() -> None:
    variants = [variant(), variant("w", "code"), variant("x", "sized", SLO)]
    assert sized_namespaces(variants, FleetSettings(aim="mean")) == {"sized"}
    assert sized_namespaces(variants, FleetSettings()) == {one.key.namespace for one in variants}


def test_slo_classes_are_looked_up_in_the_variants_own_namespaces() -> None:
    other = dataclasses.replace(SLO, class_name="others")
    variants = [variant(), variant("a", "n1", SLO), variant("b", "n2", SLO), variant("c", "n1", other)]
    assert class_references(variants) == {"classes": {"n1", "n2"}, "others": {"n1"}}


@pytest.mark.parametrize(
    "name", ["service-classes-config,foo=bar", "a=b", "A", "a b", "a/b", "-a", "a" * 254, "a\n", ""]
)
def test_a_class_reference_that_is_no_name_asks_for_nothing(name: str) -> None:
    assert class_references([variant(slo=dataclasses.replace(SLO, class_name=name))]) == {}


def test_a_namespace_names_few_config_maps_with_classes() -> None:
    names = [f"classes-{number}" for number in range(200)]
    variants = [variant(name, "hostile", dataclasses.replace(SLO, class_name=name)) for name in names]
    found = class_references([*variants, variant(slo=SLO)])
    assert found.pop("classes") == {"chat"}
    assert len(found) == MOST_CLASS_MAPS


def test_requests_are_counted_only_where_a_window_is_used() -> None:
    on = "enable_scale_to_zero: true"
    zero = SETTINGS.scale_to_zero_config_map
    maps = {
        Key(SETTINGS.controller_namespace, zero): {"default": on},
        **{Key(f"tenant-{n}", zero): {"default": f"{on}\nretention_period: {n + 1}h"} for n in range(9)},
    }
    variants = [variant(namespace=f"tenant-{n}") for n in range(20)]
    found = count_windows(variants, maps, SETTINGS)
    assert found.pop(600) == set(), "most namespaces: one query for all"
    assert found == {3600 * (n + 1): {f"tenant-{n}"} for n in range(9)}


def workload(name: str, replicas: int | None, deleting: bool = False) -> Workload:
    return Workload(WorkloadId("chat", "apps", "Deployment", name), name, replicas, 0, 0, deleting=deleting)


def test_only_variants_asked_for_no_replicas_are_at_zero() -> None:
    found = [workload("zero", 0), workload("one", 1), workload("unset", None), workload("going", 0, True)]
    workloads = {one.id: one for one in found}
    variants = [variant(name) for name in ("zero", "one", "unset", "going", "missing")]
    variants += [variant("zero", "other"), variant("zero", deleting=True), variant("nothing", target=None)]
    assert at_zero(variants, workloads) == {Key("chat", "zero"): workloads[found[0].id]}


def test_wake_expressions_are_those_of_the_sleeping() -> None:
    asks = {"modelyard.dev/wake-query": "queue"}
    variants = [variant("a", annotations=asks), variant("b", annotations=asks), variant("c")]
    assert wake_expressions(variants, [Key("chat", "a"), Key("chat", "c")]) == {Key("chat", "a"): "queue"}
