"""A canary beside what serves, on the local cluster: behind the same Service, and promoted."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Services, conditions, is_ready, is_up

from modelyard.objects.kinds import DEPLOYMENTS, PODS, SERVICES

pytestmark = pytest.mark.integration


async def test_a_canary_serves_beside_what_is_there_until_it_is_promoted(services: Services) -> None:
    async def pods() -> dict[str, str]:
        found = await services.cluster.list(PODS, services.space, label_selector="component=engine")
        left = (one["metadata"] for one in found if "deletionTimestamp" not in one["metadata"])
        return {one["name"].rsplit("-", 2)[0]: one["uid"] for one in left}

    async def behind() -> int:
        service = await services.cluster.get(SERVICES, "chat", services.space)
        selector = ",".join(f"{name}={value}" for name, value in service["spec"]["selector"].items())
        found = await services.cluster.list(PODS, services.space, label_selector=selector)
        return sum(map(is_up, found))

    await services.make("chat")
    await services.until(is_ready, "chat")
    before = await pods()
    runner: dict[str, Any] = {"name": "ome-container", "env": [{"name": "SEED", "value": "7"}]}
    await services.patch("chat", {"spec": {"engine": {"runner": runner, "canaryTrafficPercent": 50}}})
    said = await services.until_reason("chat", "LatestDeploymentReady", "Canary")
    assert said.startswith("engine: 1 pod of what was asked for last beside what served before"), said
    status = (await services.get("chat"))["status"]
    assert status["modelStatus"]["transitionStatus"] == "InProgress", "one of two pods is not the whole update"
    engine = status["components"]["engine"]
    assert engine["latestCreatedRevision"] == engine["latestReadyRevision"] == "chat-engine-canary"
    assert engine["latestRolledoutRevision"] == "1"
    there = await pods()
    assert there.keys() == {"chat-engine", "chat-engine-canary"}
    assert there["chat-engine"] == before["chat-engine"], "what serves is left alone"

    assert await behind() == 2
    await services.patch("chat", {"spec": {"engine": {"canaryTrafficPercent": None}}})
    obj = await services.until(is_ready, "chat")
    assert conditions(obj)["LatestDeploymentReady"][1] == "RolledOut"
    assert obj["status"]["modelStatus"]["transitionStatus"] == "UpToDate"
    assert obj["status"]["components"]["engine"]["previousRolledoutRevision"] == "1"

    async def alone() -> bool:
        deployments = await services.cluster.list(DEPLOYMENTS, services.space)
        now = await pods()
        return now.keys() == {"chat-engine"} and now != before and len(deployments.items) == 1

    await services.settled(alone)
