"""Objects written to break the loop: whatever they hold, a neighbour is decided as without them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from builders import Serving, make_fleet
from hypothesis import given, strategies as st

from modelyard.autoscaling.configuration.config_maps import MOST_KEYS, MOST_REMARKS, read_document
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.live import wants
from modelyard.autoscaling.memory.bindings import POLICY_STATE
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE
from modelyard.autoscaling.pipeline.decide import decide
from modelyard.objects import Key
from modelyard.objects.documents import MAX_TEXT
from modelyard.objects.kinds import DEPLOYMENTS
from modelyard.reconcile.kernel.mirror import Store

SETTINGS = FleetSettings()
TEXTS = st.text(max_size=60) | st.sampled_from(
    [
        *("", "0", "-1", "²", "1e309", "nan", "0x_", "!!bool x", "&a [*a]", "\ud800", "\x1b[2J\nERROR", "2024-13-45"),
        *("9" * 5000, "[" * 3000, "{" * 3000, "9" * 400 + "h", "0000-01-01T00:00:00Z", "9999-12-31T23:59:60Z"),
        *("a: 1\n" * 6000, '{"default": ' * 40, "kvCacheThreshold: .inf", "retention_period: 1e999h"),
    ]
)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
METADATA = {
    "uid": "u",
    "generation": 3,
    "resourceVersion": "7",
    "creationTimestamp": "2023-11-01T00:00:00Z",
    "labels": {"inference.optimization/acceleratorName": "H100"},
}
CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "R",
    "message": "m",
    "lastTransitionTime": "2023-11-01T00:00:00Z",
}
POD = {
    "metadata": {"labels": {"app": "llama"}},
    "spec": {"containers": [{"name": "e", "args": ["serve"], "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
}
VARIANT = {
    "apiVersion": "llmd.ai/v1alpha1",
    "kind": "VariantAutoscaling",
    "metadata": {
        **METADATA,
        "annotations": {
            "modelyard.dev/min-replicas": "1",
            "modelyard.dev/max-replicas": "3",
            "modelyard.dev/actuation": "direct",
            "modelyard.dev/wake-query": "sum(x)",
            AUTOSCALING_STATE: "{}",
        },
    },
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "o0"},
        "modelID": "theirs",
        "variantCost": "10.0",
    },
    "status": {
        "desiredOptimizedAlloc": {"lastRunTime": "2023-11-01T00:00:00Z", "numReplicas": 1, "accelerator": "H100"},
        "conditions": [CONDITION],
    },
}
BINDING = {
    "apiVersion": "registry.volcano.sh/v1alpha1",
    "kind": "AutoscalingPolicyBinding",
    "metadata": {
        **METADATA,
        "annotations": {
            "modelyard.dev/metric-sources": "demand: vector(1)",
            "modelyard.dev/scale-to-zero-grace": "1m",
            POLICY_STATE: "{}",
        },
    },
    "spec": {
        "policyRef": {"name": "steady"},
        "scalingConfiguration": {
            "target": {
                "targetRef": {"kind": "Deployment", "name": "o0"},
                "metricEndpoint": {"uri": "/m", "port": 8000},
            },
            "minReplicas": 1,
            "maxReplicas": 4,
        },
    },
    "status": {"conditions": [CONDITION]},
}
WORKLOAD = {
    "metadata": METADATA,
    "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "llama"}}, "template": POD},
    "status": {"replicas": 1, "readyReplicas": 1},
}
MAPS = {
    "wva-saturation-scaling-config": "kvCacheThreshold: 0.8",
    SETTINGS.scale_to_zero_config_map: "retention_period: 10m\nenable_scale_to_zero: true",
}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    for key, inner in (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield (*at, key)
        yield from places(inner, (*at, key))


@st.composite
def spoilt(draw: st.DrawFn, document: Mapping[str, Any]) -> dict[str, Any]:
    """The document as the API server would still take it: other texts and numbers in some places, or nothing."""
    made = copy.deepcopy(dict(document))
    for _ in range(draw(st.integers(1, 4))):
        *path, last = draw(st.sampled_from([place for place in places(made) if len(place) > 1]))
        inner: Any = made
        for step in path:
            inner = inner[step]
        if isinstance(inner[last], str):
            inner[last] = draw(TEXTS)
        elif isinstance(inner[last], int):
            inner[last] = draw(NUMBERS)
        else:
            del inner[last]
    return made


@given(
    st.lists(spoilt(VARIANT), min_size=4, max_size=4),
    st.lists(spoilt(BINDING), min_size=2, max_size=2),
    st.lists(spoilt(WORKLOAD), min_size=2, max_size=2),
    st.fixed_dictionaries({name: st.dictionaries(TEXTS, TEXTS | st.just(text)) for name, text in MAPS.items()}),
)
def test_whatever_one_namespace_holds_its_neighbour_is_decided_as_without_it(
    variants: list[dict[str, Any]],
    bindings: list[dict[str, Any]],
    workloads: list[dict[str, Any]],
    maps: dict[str, dict[str, str]],
) -> None:
    def named(obj: dict[str, Any], name: str) -> dict[str, Any]:
        metadata = obj.get("metadata")
        rest = metadata if isinstance(metadata, dict) else {}
        return {**obj, "metadata": {**rest, "namespace": "theirs", "name": name}}

    ours = make_fleet(Serving("llama", [(0.78, 2.0)] * 2))
    read, found = Store(wants.variants()), Store(wants.workloads(DEPLOYMENTS, "apps", "Deployment"))
    bound = Store(wants.bindings())
    for store, objects in ((read, variants), (found, workloads), (bound, bindings)):
        for number, obj in enumerate(objects):
            store.put(named(obj, f"o{number}"))
    configured = {Key("theirs", name): data for name, data in maps.items()}
    both = replace(
        ours,
        variants=(*ours.variants, *read.all()),
        workloads={**ours.workloads, **{one.id: one for one in found.all()}},
        config_maps={**ours.config_maps, **configured},
    )

    alone, beside = decide(ours, SETTINGS), decide(both, SETTINGS)

    (expected,) = alone.decisions
    assert expected in beside.decisions
    assert all("theirs" in error for error in beside.errors)


MISTAKES = "".join(f"f{number}: 1\n" for number in range(2400))


def test_thousands_of_mistakes_in_a_config_map_are_a_few_remarks() -> None:
    own = {f"key{number:02}": MISTAKES for number in range(60)}
    maps = {Key("theirs", name): own for name in MAPS} | {Key("wva-system", name): own for name in MAPS}
    fleet = make_fleet(Serving(), Serving("hostile", namespace="theirs"), config_maps=maps)
    notices = decide(fleet, FleetSettings(controller_namespace="wva-system")).notices
    told = Counter(about for about, _ in notices)
    assert set(told) == {str(key) for key in maps}
    assert set(told.values()) == {MOST_REMARKS + 1}
    messages = {notice.message for _, notice in notices}
    assert any("unknown fields 'f0', 'f1', " in text and "and 2390 more; ignored" in text for text in messages)
    more = f"and {2 * 60 - MOST_REMARKS} more remarks like these"
    assert {f"ConfigMap wva-system/{name}: {more}" for name in MAPS} <= messages


def test_a_config_map_of_a_tenant_is_read_up_to_a_limit_and_the_controllers_own_as_a_whole() -> None:
    small = {f"key{number:05}": f"a: {number}" for number in range(20_000)}
    large = {"big": f"a: {'x' * (MAX_TEXT - 99)}", "more": f"a: {'x' * 99}", "small": "a: 1"}
    theirs = Key("theirs", "classes")
    found = read_document(theirs, small, SETTINGS)
    assert (len(found.entries), list(found.broken)) == (MOST_KEYS, [f"key{MOST_KEYS:05}"])
    found = read_document(theirs, large, SETTINGS)
    assert ([entry.key for entry in found.entries], list(found.broken)) == (["big", "small"], ["more"])
    central = Key(SETTINGS.controller_namespace, "classes")
    assert len(read_document(central, {**small, **large}, SETTINGS).entries) == len(small) + len(large)
