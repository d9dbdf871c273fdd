"""Services whose workloads OME's controller has made: taken over without a restart, or reported and left alone."""

from __future__ import annotations

import json

import pytest
from conftest import NAME, Services, conditions, is_ready, is_up

from modelyard.objects.kinds import DEPLOYMENTS, PODS, SERVICES
from modelyard.workloads.roll_out.resolution import ACCEPT
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES

pytestmark = pytest.mark.integration


async def made_elsewhere(services: Services, like: str, name: str, args: list[str]) -> None:
    """What OME's controller makes of a service of this name; ours does not know yet which model that has."""
    theirs = await services.make(name, model={"name": "nobodys"})
    owner = {"apiVersion": "ome.io/v1beta1", "kind": "InferenceService", "controller": True, "blockOwnerDeletion": True}
    owner |= {"name": name, "uid": theirs["metadata"]["uid"]}
    for kind in (DEPLOYMENTS, SERVICES):
        found = await services.cluster.get(kind, f"{like}-engine", services.space)
        body = json.loads(json.dumps({"metadata": found["metadata"], "spec": found["spec"]}).replace(like, name))
        body["spec"].pop("clusterIP", None)
        body["spec"].pop("clusterIPs", None)
        for container in (body["spec"].get("template") or {"spec": {"containers": []}})["spec"]["containers"]:
            container["args"] += args
        metadata = {one: body["metadata"][one] for one in ("name", "labels")}
        await services.cluster.create(
            kind, {**body, "metadata": {**metadata, "ownerReferences": [owner]}}, services.space
        )


async def pods_of(services: Services, name: str) -> set[str]:
    found = await services.cluster.list(PODS, services.space, label_selector=f"ome.io/inferenceservice={name}")
    return {one["metadata"]["uid"] for one in found if is_up(one)}


async def test_what_ome_made_is_taken_over_without_a_restart_and_what_differs_is_reported(services: Services) -> None:
    await services.make("mine")
    await services.until(is_ready, "mine")
    await made_elsewhere(services, "mine", "same", [])
    await made_elsewhere(services, "mine", "other", ["--seed=7"])

    async def up() -> bool:
        return bool(await pods_of(services, "same")) and bool(await pods_of(services, "other"))

    await services.settled(up)
    before = {name: await pods_of(services, name) for name in ("same", "other")}
    for name in ("same", "other"):
        await services.patch(name, {"spec": {"model": {"name": NAME}}})
    obj = await services.until(is_ready, "same")
    assert conditions(obj)["LatestDeploymentReady"][1] == "RolledOut"
    assert len(await services.children("same")) == 7
    said = await services.until_reason("other", "LatestDeploymentReady", "ChangesHeld")
    assert "Deployment other-engine, which another controller made, would be: spec.template" in said
    assert {name: await pods_of(services, name) for name in ("same", "other")} == before
    await services.cluster.merge_patch(
        INFERENCE_SERVICES, "other", {"metadata": {"annotations": {ACCEPT: "adoption"}}}, services.space
    )
    await services.until_reason("other", "LatestDeploymentReady", "RolledOut")
    assert before["other"].isdisjoint(await pods_of(services, "other"))
