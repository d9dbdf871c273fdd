"""A model that waits holds nothing: no Job before its Secret exists, no run while a node or an image is awaited."""

from __future__ import annotations

from typing import Any

import pytest
from model_world import HOME, NOW, Cluster, condition, delete, model

from modelyard.models.delivery.legs import STARTING
from modelyard.models.delivery.lifecycle import MOST_REMOVALS
from modelyard.models.delivery.names import BASE_MODELS
from modelyard.objects import Key
from modelyard.reconcile.plans.plan import LOOK_UPS, Plan, Presence


class Answers:
    """Look-ups that all have one answer."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence

    def get(self, key: Key) -> Presence:
        return self._presence


def test_a_model_waits_for_its_secret_without_a_job_and_goes_on_when_it_is_created() -> None:
    cluster = Cluster("a", "b")
    obj = cluster.put("BaseModel", model("m", "shop", key="token"))
    plan = cluster.settle(obj)
    assert plan is not None
    assert not plan.acts
    assert not plan.awaits
    assert plan.needs == (Key("shop", "token"),)
    assert not cluster.all("Job")
    assert "finalizers" not in obj["metadata"]
    assert condition(obj, "Ready") == ("False", "SecretNotFound")
    message = next(entry["message"] for entry in obj["status"]["conditions"] if entry["type"] == "Ready")
    assert "Secret shop/token does not exist: create it, or correct spec.storage.key" in message
    assert obj["status"]["delivery"]["waiting"] == 0, "it takes no turn at the source either"
    cluster.secret("token", HOME)
    assert not cluster.plan(obj).acts, "another namespace's Secret is none of its own"  # type: ignore[union-attr]
    cluster.secret("token", "shop")
    plan = cluster.plan(obj)
    assert plan is not None
    assert plan.needs_run
    assert len(plan.hand_over) == 2
    cluster.settle(obj)
    assert set(cluster.jobs("fetch")) == {"a", "b"}


@pytest.mark.parametrize(
    ("presence", "reason", "words"),
    [
        (Presence.ABSENT, "SecretNotFound", "does not exist: create it"),
        (Presence.FORBIDDEN, "SecretForbidden", "may not be read by Modelyard"),
        (Presence.UNKNOWN, "Queued", "is looked up next"),
    ],
)
def test_only_a_secret_that_is_there_leads_to_a_job(presence: Presence, reason: str, words: str) -> None:
    cluster = Cluster("a")
    cluster.put("BaseModel", model("m", "shop", key="token"))
    lifecycle = cluster.lifecycle(BASE_MODELS)
    world = {**cluster.world(lifecycle), LOOK_UPS: Answers(presence)}
    plan = lifecycle.plan(Key("shop", "m"), world, NOW)
    assert plan is not None
    assert not plan.acts
    assert (plan.reason, words in plan.message) == (reason, True)


def pending(cluster: Cluster, **status: Any) -> None:
    """The pods of all Jobs are as the kubelet or the scheduler leaves them."""
    for pod in cluster.all("Pod"):
        pod["status"] = {"phase": "Pending", **status}


STUCK: dict[str, dict[str, Any]] = {
    "no node has room": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    "no image": {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "none"}}}]},
    "no such key": {"containerStatuses": [{"state": {"waiting": {"reason": "CreateContainerConfigError"}}}]},
}


@pytest.mark.parametrize("name", STUCK)
def test_a_run_does_not_stay_for_a_job_that_does_not_begin(name: str) -> None:
    cluster = Cluster("a")
    cluster.secret("token")
    obj = cluster.put("ClusterBaseModel", model("m", key="token"))
    cluster.settle(obj)
    pending(cluster, **STUCK[name])
    plan = cluster.settle(obj)
    assert plan is not None
    assert plan.awaits, "it may be about to begin"
    cluster.now += STARTING
    plan = cluster.settle(obj)
    assert plan is not None
    assert not plan.awaits
    assert not plan.writes
    for pod in cluster.all("Pod"):
        pod["status"] = {"phase": "Running"}
    plan = cluster.settle(obj)
    assert plan is not None
    assert plan.awaits
    for job in list(cluster.jobs().values()):
        cluster.end(job, revision="abc", bytes=1, files=1, facts={})
    assert cluster.plan(obj).acts  # type: ignore[union-attr]
    cluster.settle(obj)
    assert condition(obj, "Ready")[0] == "True"


def test_a_run_does_not_stay_for_a_secret_that_went_before_it_was_copied() -> None:
    cluster = Cluster("a")
    cluster.secret("token")
    obj = cluster.put("ClusterBaseModel", model("m", key="token"))
    cluster.settle(obj)
    for kind, key in list(cluster.objects):
        if kind == "Secret":
            del cluster.objects[kind, key]
    pending(cluster)
    plan = cluster.settle(obj)
    assert plan is not None
    assert not plan.awaits
    assert not plan.writes
    assert condition(obj, "Ready") == ("False", "SecretNotFound")
    cluster.secret("token")
    plan = cluster.plan(obj)
    assert plan is not None
    assert plan.hand_over, "once there is one it is handed over"


def removals(plans: list[Plan]) -> list[Plan]:
    return [plan for plan in plans if plan.needs_run]


@pytest.mark.parametrize("how", ["by a Job", "retained", "refused"])
def test_a_deletion_takes_a_run_only_to_create_the_jobs_that_remove_files(how: str) -> None:
    cluster = Cluster("a", "b")
    obj = cluster.put("BaseModel", model("m", "shop"))
    if how == "retained":
        obj["metadata"]["annotations"] = {"modelyard.dev/retention": "Retain"}
    if how == "refused":  # by a release that set it first, or by the tenant
        obj["spec"]["storage"]["storageUri"] = "ftp://x"
        obj["metadata"]["finalizers"] = ["basemodels.ome.io/finalizer"]
    cluster.settle(obj)
    if how != "refused":
        for job in list(cluster.jobs("fetch").values()):
            cluster.end(job, revision="abc", bytes=1, files=1, facts={})
        cluster.settle(obj)
    delete(obj)
    before = len(cluster.plans)
    while cluster.all("BaseModel"):
        plan = cluster.step(obj)
        assert plan is not None
        assert not plan.awaits, "no run stays for it"
        for job in list(cluster.jobs("remove").values()):
            cluster.end(job, "Removed")
    assert len(removals(cluster.plans[before:])) == (1 if how == "by a Job" else 0)
    assert not cluster.all("Job")


def test_removals_of_one_namespace_are_bounded_and_another_s_go_on() -> None:
    nodes = [f"n{number}" for number in range(MOST_REMOVALS)]
    cluster = Cluster(*nodes)
    for name, space in (("first", "many"), ("second", "many"), ("other", "neighbour")):
        obj = cluster.put("BaseModel", model(name, space))
        while obj.get("status", {}).get("state") != "Ready" or cluster.jobs("fetch"):
            cluster.settle(obj, 200)
            for job in list(cluster.jobs("fetch").values()):
                cluster.end(job, revision="abc", bytes=1, files=1, facts={})
            cluster.settle(obj, 200)
        delete(obj)
    first, second = (cluster.get("BaseModel", name, "many") for name in ("first", "second"))
    cluster.step(first)
    assert len(cluster.jobs("remove")) == MOST_REMOVALS
    plan = cluster.plan(second)
    assert plan is not None
    assert not plan.needs_run
    assert "waits until other removals of its namespace have ended" in plan.message
    other = cluster.plan(cluster.get("BaseModel", "other", "neighbour"))
    assert other is not None
    assert other.needs_run
    for job in list(cluster.jobs("remove").values()):
        cluster.end(job, "Removed")
    assert cluster.plan(second).needs_run  # type: ignore[union-attr]
