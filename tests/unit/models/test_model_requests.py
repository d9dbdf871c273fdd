"""Telling a request to deliver a model again from the one before."""

from __future__ import annotations

import copy
from typing import Any

from model_world import Cluster, edit, model

from modelyard.models.execution.requests import DeliveryRequest, ModelState

NOT_FOUND = {"reason": "NotFound", "message": "no such repository"}


def failed() -> tuple[Cluster, dict[str, Any]]:
    """A model whose delivery has failed."""
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    cluster.settle(obj)
    cluster.end(cluster.jobs("fetch")["a"], "Failed", **NOT_FOUND)
    cluster.settle(obj)
    assert obj["status"]["state"] == "Failed"
    return cluster, obj


def nudge(obj: dict[str, Any]) -> None:
    obj["metadata"].setdefault("annotations", {})["modelyard.dev/deliver"] = "again"


def test_a_failure_from_before_is_not_the_outcome_of_a_new_request() -> None:
    cluster, obj = failed()
    request = DeliveryRequest(obj)
    assert request.failed_before
    assert request.state(obj).state == "Creating"
    nudge(obj)
    assert request.state(obj).state == "Creating"
    cluster.settle(obj)
    assert request.state(obj).state == "In_Transit"
    cluster.end(cluster.jobs("fetch")["a"], "Failed", **NOT_FOUND)
    cluster.settle(obj)
    assert request.state(obj).state == "Failed"
    assert "no such repository" in request.state(obj).message


def test_a_new_attempt_that_works_ends_as_ready() -> None:
    cluster, obj = failed()
    request = DeliveryRequest(obj)
    nudge(obj)
    cluster.settle(obj)
    cluster.end(cluster.jobs("fetch")["a"], revision="abc", bytes=1)
    cluster.settle(obj)
    assert request.state(obj).state == "Ready"


def test_another_failure_of_an_attempt_that_nobody_saw_begin_is_its_outcome() -> None:
    cluster, obj = failed()
    request = DeliveryRequest(obj)
    nudge(obj)
    cluster.settle(obj)
    cluster.end(cluster.jobs("fetch")["a"], "Failed", reason="Forbidden", message="a token is needed")
    cluster.settle(obj)
    assert request.state(obj).state == "Failed"


def test_nothing_is_known_of_another_uri_until_the_status_is_of_it() -> None:
    cluster, obj = failed()
    edit(obj, storageUri="hf://meta/other")
    request = DeliveryRequest(copy.deepcopy(obj))
    assert request.state(obj) == ModelState("Creating", "Requested", "the flow reconcile has not seen the request yet")
    cluster.settle(obj)
    assert request.state(obj).state == "In_Transit"
    cluster.end(cluster.jobs("fetch")["a"], "Failed", **NOT_FOUND)
    cluster.settle(obj)
    assert request.state(obj).state == "Failed", "the same words, of another request"


def test_a_model_that_was_ready_is_not_ready_by_another_uri_at_once() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    cluster.settle(obj)
    cluster.end(cluster.jobs("fetch")["a"], revision="abc", bytes=1)
    cluster.settle(obj)
    same = DeliveryRequest(obj)
    assert not same.failed_before
    assert same.state(obj).state == "Ready"
    edit(obj, storageUri="hf://meta/other")
    assert DeliveryRequest(obj).state(obj).state == "Creating"


def test_a_refusal_of_the_spec_as_it_is_ends_the_request() -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model(uri="gopher://x"))
    assert DeliveryRequest(obj).state(obj).state == "Creating"
    cluster.settle(obj)
    assert DeliveryRequest(obj).state(obj).state == "Failed"
