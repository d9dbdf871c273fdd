"""Paths and names of resources, references, and the comparison of what was sent with what was stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from modelyard.cluster.events import reference_to
from modelyard.objects.kinds import DEPLOYMENTS, NODES, PODS, ResourceType
from modelyard.objects.old_servers import dropped_fields
from modelyard.resources import ClusterBaseModel, Resource, VariantAutoscaling


@pytest.mark.parametrize(
    ("type", "namespace", "name", "subresource", "path", "shown"),
    [
        (PODS, None, None, None, "/api/v1/pods", "pods in all namespaces"),
        (PODS, "a", None, None, "/api/v1/namespaces/a/pods", "pods in a"),
        (PODS, "a", "p", None, "/api/v1/namespaces/a/pods/p", "Pod a/p"),
        (PODS, "a", "p", "status", "/api/v1/namespaces/a/pods/p/status", "Pod a/p (status)"),
        (NODES, None, "n", None, "/api/v1/nodes/n", "Node n"),
        (NODES, "ignored", None, None, "/api/v1/nodes", "nodes"),
        (DEPLOYMENTS, "a", "d", None, "/apis/apps/v1/namespaces/a/deployments/d", "Deployment a/d"),
        (PODS, "a", "../x?y", None, "/api/v1/namespaces/a/pods/..%2Fx%3Fy", "Pod a/../x?y"),
    ],
)
def test_paths_and_names(
    type: ResourceType, namespace: str | None, name: str | None, subresource: str | None, path: str, shown: str
) -> None:
    assert type.path(namespace, name, subresource) == path
    assert type.describe(namespace, name, subresource) == shown


def test_api_versions() -> None:
    assert PODS.api_version == "v1"
    assert DEPLOYMENTS.api_version == "apps/v1"


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (VariantAutoscaling, "/apis/llmd.ai/v1alpha1/namespaces/a/variantautoscalings"),
        (ClusterBaseModel, "/apis/ome.io/v1beta1/clusterbasemodels"),
    ],
)
def test_the_type_of_one_of_our_kinds(kind: type[Resource], path: str) -> None:
    assert ResourceType.of_resource(kind).path("a") == path


def test_references() -> None:
    meta = {"name": "p", "namespace": "a", "uid": "u", "resourceVersion": "7", "labels": {"x": "y"}}
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "a", "uid": "u", "resourceVersion": "7"}
    assert reference_to({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}}) == reference
    assert reference_to(reference) == reference


@pytest.mark.parametrize(
    ("sent", "stored", "lost"),
    [
        ({"a": 1}, {"a": 2}, []),
        ({"a": 1}, {}, ["a"]),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {}}}, ["a.b.c"]),
        ({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1, "d": 3}]}, ["a[0].c"]),
        ({"a": [{"b": 1}]}, {"a": [{}, {}]}, []),
        ({"a": 0, "b": "", "c": {}, "d": [], "e": False, "f": None, "g": {"h": [0]}}, {}, []),
        ({"stringData": {"a": "b"}}, {"data": {"a": "Yg=="}}, []),
    ],
)
def test_dropped_fields(sent: Any, stored: Any, lost: list[str]) -> None:
    assert list(dropped_fields(sent, stored)) == lost


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_nothing_is_lost_from_what_was_stored_whole(document: Any) -> None:
    assert list(dropped_fields(document, document)) == []


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), JSON, max_size=4), st.integers(1, 9))
def test_a_field_that_is_not_stored_is_named(document: dict[str, Any], value: int) -> None:
    assert list(dropped_fields({**document, "new": value}, document)) == ["new"]
