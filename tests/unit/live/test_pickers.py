"""InferencePools of both API versions, and the queue on a picker's metrics page."""

from __future__ import annotations

from typing import Any

import pytest

from modelyard.autoscaling.live.pickers import PickerError, Pool, pool, pool_of, queues
from modelyard.metrics.vocabulary.pages import Page, parse
from modelyard.metrics.vocabulary.queries import QUEUE_SIZES
from modelyard.objects import Key


def body(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "pool", "namespace": "chat"}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"selector": {"matchLabels": {"app": "llama"}}, "endpointPickerRef": {"name": "epp"}}, "epp"),
        ({"selector": {"app": "llama"}, "extensionRef": {"name": "old", "kind": "Service"}}, "old"),
        ({"selector": {"app": "llama"}, "endpointPickerRef": {"name": "epp", "kind": "Gateway"}}, None),
        ({"selector": {}, "endpointPickerRef": {"name": "epp"}}, None),
        ({"selector": {"app": "llama"}}, None),
        ({}, None),
    ],
)
def test_a_pool_of_either_version(spec: dict[str, Any], found: str | None) -> None:
    expected = None if found is None else Pool(Key("chat", "pool"), {"app": "llama"}, found)
    assert pool(body(**spec)) == expected


def test_a_label_called_match_labels_is_a_label() -> None:
    found = pool(body(selector={"matchLabels": "foo"}, extensionRef={"name": "old"}))
    assert found == Pool(Key("chat", "pool"), {"matchLabels": "foo"}, "old")


@pytest.mark.parametrize(
    ("namespace", "labels", "name"),
    [
        ("chat", {"app": "llama", "tier": "x"}, "one"),
        ("chat", {"app": "llama"}, "one"),
        ("chat", {"app": "other"}, None),
        ("chat", {}, None),
        ("elsewhere", {"app": "llama"}, "far"),
    ],
)
def test_a_pool_serves_pods_of_its_own_namespace_with_all_its_labels(
    namespace: str, labels: dict[str, str], name: str | None
) -> None:
    pools = (
        Pool(Key("chat", "narrow"), {"app": "llama", "tier": "y"}, "epp"),
        Pool(Key("chat", "one"), {"app": "llama"}, "epp"),
        Pool(Key("chat", "two"), {"app": "llama"}, "epp"),
        Pool(Key("elsewhere", "far"), {"app": "llama"}, "epp"),
    )
    found = pool_of(pools, namespace, labels)
    assert (found.key.name if found else None) == name


def page_of(text: str) -> Page:
    return parse(text.encode(), QUEUE_SIZES)


def test_the_queue_counts_for_the_target_model_else_for_the_model_asked_for() -> None:
    page = """
# HELP other something
other{x="inference_extension_flow_control_queue_size"} 9
this is no exposition at all {{{
# TYPE inference_extension_flow_control_queue_size gauge
inference_extension_flow_control_queue_size{fairness_id="a",model_name="alias",target_model_name="org/llama"} 2
inference_extension_flow_control_queue_size{fairness_id="b",model_name="alias",target_model_name="org/llama"} 3
inference_extension_flow_control_queue_size{fairness_id="a",model_name="mistral",target_model_name=""} 1
inference_extension_flow_control_queue_size{fairness_id="b",model_name="mistral"} 1
inference_extension_flow_control_queue_size{model_name="odd \\"one\\""} 4
inference_extension_flow_control_queue_size{model_name="nan"} NaN
inference_extension_flow_control_queue_size_bytes{model_name="bytes"} 1e9
"""
    assert queues(page_of(page)) == {"org/llama": 5, "mistral": 2, 'odd "one"': 4}


@pytest.mark.parametrize(
    ("series", "queue"),
    [
        ({"llm_d_epp": 3, "inference_extension": 3}, 3),
        ({"llm_d_epp": 0, "llm_d_router_epp": 2, "inference_extension": 2}, 0),
        ({"llm_d_router_epp": 2, "inference_extension": 1}, 2),
        ({"inference_extension": 4}, 4),
    ],
)
def test_of_a_queue_under_several_names_the_newest_counts(series: dict[str, float], queue: float) -> None:
    lines = [
        f'{prefix}_flow_control_queue_size{{priority="{priority}",target_model_name="m"}} {value / 2}'
        for prefix, value in series.items()
        for priority in (0, 1)
    ]
    assert queues(page_of("\n".join([*lines, ""]))) == {"m": queue}


def test_a_page_without_the_queue_says_nothing_and_a_damaged_line_is_named() -> None:
    assert queues(page_of("up 1\n")) == {}
    with pytest.raises(PickerError, match=r"flow_control_queue_size the line .* many.*is not in the exposition format"):
        queues(page_of('inference_extension_flow_control_queue_size{model_name="a"} many\n'))
    with pytest.raises(PickerError, match="HTTP status 403; set EPP_METRIC_READER_BEARER_TOKEN"):
        queues("GET http://x: HTTP status 403")
