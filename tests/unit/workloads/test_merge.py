"""A service on top of its runtime: the tables of the strategic merge patch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from modelyard.workloads.rendering.merge import MERGE_KEYS, merge, merge_lists
from modelyard.workloads.rendering.values import Refusal


def elements(key: str, *names: str, mark: str = "") -> list[dict[str, Any]]:
    return [{key: name, **({mark: True} if mark else {})} for name in names]


@pytest.mark.parametrize(
    ("key", "runtime", "service", "result"),
    [
        ("name", "ENV1 ENV2", "ENV1 ENV3", "ENV1* ENV3* ENV2"),
        (
            "name",
            "KV_CACHE_SIZE DECODE_BATCH_SIZE",
            "DECODE_BATCH_SIZE MAX_TOKENS",
            "KV_CACHE_SIZE DECODE_BATCH_SIZE* MAX_TOKENS*",
        ),
        ("name", "model-volume", "cache-volume", "cache-volume* model-volume"),
        ("name", "ome-container sidecar", "ome-container", "ome-container* sidecar"),
        ("mountPath", "/models", "/cache /models", "/cache* /models*"),
        ("name", "a b c", "c a", "b c* a*"),
        ("name", "", "a", "a*"),
        ("name", "a", "", "a"),
    ],
)
def test_order_of_merged_lists(key: str, runtime: str, service: str, result: str) -> None:
    found = merge_lists(
        elements(key, *runtime.split(), mark="runtime"), elements(key, *service.split(), mark="service"), key
    )
    assert " ".join(one[key] + ("*" if "service" in one else "") for one in found) == result


NAMES = st.lists(st.sampled_from("abcdefg"), unique=True)


@given(NAMES, NAMES)
def test_a_merged_list_has_every_element_once_and_keeps_the_order_of_the_service(
    base: list[str], over: list[str]
) -> None:
    found = [one["name"] for one in merge_lists(elements("name", *base), elements("name", *over), "name")]
    assert sorted(found) == sorted({*base, *over})
    assert [one for one in found if one in over] == over
    assert [one for one in found if one not in over] == [one for one in base if one not in over]


@pytest.mark.parametrize(
    ("runtime", "service", "result"),
    [
        # Scalars, and what does not serialise.
        ({"image": "a"}, {"image": "b"}, {"image": "b"}),
        ({"image": "a", "maxReplicas": 5}, {"image": "", "maxReplicas": 0}, {"image": "a", "maxReplicas": 5}),
        ({"hostNetwork": True}, {"hostNetwork": False}, {"hostNetwork": True}),
        (
            {"minReplicas": 2, "scaleTarget": 9},
            {"minReplicas": 0, "scaleTarget": 0},
            {"minReplicas": 0, "scaleTarget": 0},
        ),
        ({"worker": {"size": 3}}, {"worker": {"size": 0}}, {"worker": {"size": 0}}),
        # Maps by key.
        ({"nodeSelector": {"a": "1", "b": "1"}}, {"nodeSelector": {"b": "2"}}, {"nodeSelector": {"a": "1", "b": "2"}}),
        # Lists without a key are replaced; an empty one keeps what there is.
        ({"args": ["--a"]}, {"args": ["--b"]}, {"args": ["--b"]}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        ({"envFrom": [{"prefix": "a"}]}, {"envFrom": []}, {"envFrom": [{"prefix": "a"}]}),
        (
            {"affinity": {"nodeAffinity": {"required": {"nodeSelectorTerms": [1]}}, "podAffinity": {}}},
            {"affinity": {"nodeAffinity": {"required": {"nodeSelectorTerms": [2]}}}},
            {"affinity": {"nodeAffinity": {"required": {"nodeSelectorTerms": [2]}}, "podAffinity": {}}},
        ),
        # The source of a volume, and of a variable, and what a probe does, replace each other.
        (
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        ),
        (
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        ),
        (
            {"readinessProbe": {"httpGet": {"path": "/health"}, "periodSeconds": 5}},
            {"readinessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 0}},
            {"readinessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 5}},
        ),
        # Nested: a runner's ports by number, and its name, which a service need not repeat.
        (
            {"runner": {"name": "vllm", "ports": [{"containerPort": 1, "name": "http"}]}},
            {"runner": {"name": "", "ports": [{"containerPort": 1, "protocol": "UDP"}, {"containerPort": 2}]}},
            {
                "runner": {
                    "name": "vllm",
                    "ports": [{"containerPort": 1, "name": "http", "protocol": "UDP"}, {"containerPort": 2}],
                }
            },
        ),
    ],
)
def test_rules_of_fields(runtime: dict[str, Any], service: dict[str, Any], result: dict[str, Any]) -> None:
    assert merge(runtime, service) == result


@pytest.mark.parametrize("field", sorted(MERGE_KEYS))
def test_an_element_without_its_key_is_refused_by_its_place(field: str) -> None:
    key = MERGE_KEYS[field]
    with pytest.raises(Refusal, match=rf"{field}\[1\]: has no {key} - "):
        merge({field: [{key: "a"}]}, {field: [{key: "a"}, {"other": 1}]})


def test_the_worked_example() -> None:
    runtime = {
        "minReplicas": 1,
        "maxReplicas": 5,
        "scaleTarget": 50,
        "scaleMetric": "concurrency",
        "serviceAccountName": "runtime-sa",
        "containers": [
            {"name": "ome-container", "image": "runtime:v1", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}
        ],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
    }
    service = {
        "maxReplicas": 10,
        "scaleTarget": 80,
        "containers": [
            {
                "name": "ome-container",
                "resources": {
                    "requests": {"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": "1"},
                    "limits": {"nvidia.com/gpu": "1"},
                },
            }
        ],
    }
    assert merge(runtime, service) == {
        "minReplicas": 1,
        "maxReplicas": 10,
        "scaleTarget": 80,
        "scaleMetric": "concurrency",
        "serviceAccountName": "runtime-sa",
        "containers": [
            {
                "name": "ome-container",
                "image": "runtime:v1",
                "resources": {
                    "requests": {"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": "1"},
                    "limits": {"nvidia.com/gpu": "1"},
                },
            }
        ],
        "affinity": runtime["affinity"],
    }
