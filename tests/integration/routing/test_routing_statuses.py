"""ModelRoutes and ModelServers on a real API server: what their statuses say, and what a user sees of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from install_manifests import AUTOSCALER, CONTROLLER_NAMESPACE, in_force, install_roles, kubeconfig_of, narrow_accounts

from modelyard.cluster import Cluster
from modelyard.local.binaries.obtain import ensure
from modelyard.local.stack import LocalStack
from modelyard.objects import Key
from modelyard.objects.kinds import EVENTS, PODS, ResourceType
from modelyard.reconcile.kernel.fence import NotTheWriter
from modelyard.reconcile.kernel.reconciler import Reconciler, Registered
from modelyard.routing.lifecycle import RouteStatus, ServerStatus
from modelyard.routing.objects import ROUTES, SERVERS

pytestmark = pytest.mark.integration

LIFECYCLES = (Registered(RouteStatus("default")), Registered(ServerStatus()))


class Routing:
    """Routes, servers and pods in a namespace of the test's own."""

    def __init__(self, cluster: Cluster, namespace: str, reconciler: Reconciler) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.reconciler = reconciler

    async def route(self, name: str, *servers: str, regex: str | None = None, **spec: Any) -> None:
        rule: dict[str, Any] = {"targetModels": [{"modelServerName": one} for one in servers]}
        if regex is not None:
            rule["modelMatch"] = {"uri": {"regex": regex}}
        body = {"modelName": f"{self.namespace}-llama", "rules": [rule], **spec}
        await self.cluster.create(ROUTES, {"metadata": {"name": name}, "spec": body}, self.namespace)

    async def server(self, name: str, groups: Mapping[str, Any] | None = None, **labels: str) -> None:
        selector = {"matchLabels": labels, **({"pdGroup": groups} if groups else {})}
        spec = {"inferenceEngine": "vLLM", "workloadSelector": selector}
        await self.cluster.create(SERVERS, {"metadata": {"name": name}, "spec": spec}, self.namespace)

    async def pod(self, name: str, **labels: str) -> None:
        container = {"name": "engine", "image": "modelyard.dev/none"}
        spec = {"schedulerName": "nobody", "containers": [container]}
        await self.cluster.create(PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec}, self.namespace)
        await self.ready(name)

    async def ready(self, name: str, ready: bool = True) -> None:
        """What a kubelet would say."""
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
        await self.cluster.merge_patch(PODS, name, {"status": status}, self.namespace, "status")

    async def status(self, kind: ResourceType, name: str) -> dict[str, Any]:
        return (await self.cluster.get(kind, name, self.namespace)).get("status") or {}

    async def said(self, kind: ResourceType, name: str) -> dict[str, str]:
        """Reasons by type of condition."""
        return {one["type"]: one["reason"] for one in (await self.status(kind, name))["conditions"]}

    async def told(self) -> int:
        """Look and tell until nothing is left to tell; how many statuses were due."""
        due = 0
        async with asyncio.timeout(120):
            while plans := [plan for some in (await self.reconciler.look()).values() for plan in some]:
                assert not any(plan.acts for plan in plans)
                due += len(plans)
                rows = await self.reconciler.tell(plans)
                assert not any(row["trouble"] for row in rows)
        return due

    async def told_once(self, kind: ResourceType, name: str, **reasons: str) -> None:
        """Look and tell until the watches have told what the test did."""
        async with asyncio.timeout(120):
            while not reasons.items() <= (await self.said(kind, name)).items():
                await self.told()
                await asyncio.sleep(0.05)


@pytest.fixture
async def routing(
    control_plane: LocalStack, control_plane_cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Routing]:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    async with Reconciler(LIFECYCLES, [namespace]) as reconciler:
        yield Routing(control_plane_cluster, namespace, reconciler)


async def test_statuses_follow_from_what_is_there(routing: Routing) -> None:
    await routing.route("first", "llama")
    await routing.server("llama", app="llama")
    await routing.pod("llama-0", app="llama")
    await routing.pod("other", app="other")
    assert await routing.told() == 2
    assert await routing.said(ROUTES, "first") == {
        "Accepted": "Accepted",
        "ResolvedRefs": "ResolvedRefs",
        "Conflicted": "NoConflicts",
    }
    status = await routing.status(SERVERS, "llama")
    assert (status["readyPods"], status["observedGeneration"]) == (1, 1)
    assert "prefillPods" not in status
    (ready,) = status["conditions"]
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("True", "EndpointsReady", 1)

    await routing.ready("llama-0", False)
    await routing.told_once(SERVERS, "llama", Ready="NoReadyPods")
    assert (await routing.status(SERVERS, "llama"))["readyPods"] == 0
    await routing.cluster.delete(SERVERS, "llama", routing.namespace)
    await routing.told_once(ROUTES, "first", ResolvedRefs="ModelServerNotFound")


async def test_the_older_route_wins_and_the_other_takes_over_when_it_goes(routing: Routing) -> None:
    await routing.server("llama", app="llama")
    await routing.route("z-first", "llama")
    await asyncio.sleep(1.1)  # creation times are whole seconds
    await routing.route("a-second", "llama")
    await routing.told()
    assert (await routing.said(ROUTES, "z-first"))["Conflicted"] == "NoConflicts"
    assert (await routing.said(ROUTES, "a-second"))["Conflicted"] == "ModelNameInUse"
    await routing.cluster.delete(ROUTES, "z-first", routing.namespace)
    await routing.told_once(ROUTES, "a-second", Conflicted="NoConflicts")


async def test_a_bad_object_is_told_on_that_object_alone(routing: Routing) -> None:
    await routing.server("llama", app="llama")
    await routing.route("good", "llama")
    await routing.route("wrong", "llama", regex="(?=never)")
    await routing.told()
    assert await routing.said(ROUTES, "wrong") == {"Accepted": "InvalidRegex"}
    assert set((await routing.said(ROUTES, "good")).values()) == {"Accepted", "ResolvedRefs", "NoConflicts"}
    mended = {"spec": {"rules": [{"targetModels": [{"modelServerName": "llama"}]}]}}
    await routing.cluster.merge_patch(ROUTES, "wrong", mended, routing.namespace)
    await routing.told_once(ROUTES, "wrong", Accepted="Accepted", Conflicted="ModelNameInUse")
    assert (await routing.status(ROUTES, "wrong"))["observedGeneration"] == 2


async def test_conditions_of_others_stay_and_a_quiet_world_is_not_written(routing: Routing) -> None:
    await routing.server("llama", app="llama")
    theirs = {
        "type": "example.com/Seen",
        "status": "True",
        "reason": "Seen",
        "message": "seen",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await routing.cluster.merge_patch(
        SERVERS, "llama", {"status": {"conditions": [theirs]}}, routing.namespace, "status"
    )
    await routing.told()
    assert await routing.said(SERVERS, "llama") == {"example.com/Seen": "Seen", "Ready": "NoReadyPods"}
    before = await routing.cluster.get(SERVERS, "llama", routing.namespace)
    assert await routing.told() == 0
    assert await routing.cluster.get(SERVERS, "llama", routing.namespace) == before


async def test_groups_are_counted(routing: Routing) -> None:
    groups = {"groupKey": "group", "prefillLabels": {"role": "prefill"}, "decodeLabels": {"role": "decode"}}
    await routing.server("split", groups, app="split")
    await routing.pod("p0", app="split", group="0", role="prefill")
    await routing.pod("d1", app="split", group="1", role="decode")
    await routing.told()
    assert await routing.said(SERVERS, "split") == {"Ready": "NoCompletePDGroup"}
    await routing.pod("d0", app="split", group="0", role="decode")
    await routing.told_once(SERVERS, "split", Ready="EndpointsReady")
    status = await routing.status(SERVERS, "split")
    assert [status[name] for name in ("readyPods", "prefillPods", "decodePods", "completeGroups")] == [3, 1, 2, 1]


async def test_trouble_is_announced_as_an_event(routing: Routing) -> None:
    await routing.route("lost", "nowhere")
    await routing.told()
    events = (await routing.cluster.list(EVENTS, routing.namespace)).items
    assert [(one["involvedObject"]["name"], one["reason"], one["type"]) for one in events] == [
        ("lost", "ModelServerNotFound", "Warning")
    ]


async def test_nothing_is_told_without_the_lease(routing: Routing) -> None:
    await routing.server("llama", app="llama")
    lease = routing.reconciler.lease("reconcile", routing.namespace)
    plans = (await routing.reconciler.look())["server-status"]
    assert [plan.subject.key for plan in plans] == [Key(routing.namespace, "llama")]
    with pytest.raises(NotTheWriter):
        await routing.reconciler.tell(plans)
    assert await lease.acquire(120)
    await routing.told()
    await lease.release()
    assert await routing.said(SERVERS, "llama") == {"Ready": "NoReadyPods"}


async def test_get_tells_the_story_in_columns(routing: Routing, control_plane: LocalStack) -> None:
    await routing.server("llama", app="llama")
    await routing.pod("llama-0", app="llama")
    await routing.route("chat", "llama")
    await routing.told()

    async def rows(kind: str) -> list[list[str]]:
        kubectl = str(ensure(["kubectl"], print)["kubectl"])
        process = await asyncio.create_subprocess_exec(
            *(kubectl, f"--kubeconfig={control_plane.kubeconfig}", "get", kind, "-n", routing.namespace),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        return [re.split(r"\s{2,}", line.strip()) for line in out.decode().splitlines()]

    header, row = await rows("modelroutes")
    assert header == ["NAME", "MODEL", "ACCEPTED", "RESOLVED", "CONFLICTED", "AGE"]
    assert row[:5] == ["chat", f"{routing.namespace}-llama", "True", "True", "False"]
    header, row = await rows("modelservers")
    assert header == ["NAME", "MODEL", "ENGINE", "READY", "PODS", "AGE"]
    assert row[:-1] == ["llama", "vLLM", "True", "1"], "a server without a model has an empty cell"


@pytest.mark.parametrize("rights", ["everywhere", "namespaced"])
async def test_the_rights_of_the_manifests_are_enough(
    routing: Routing, control_plane: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rights: str
) -> None:
    await routing.route("lost", "nowhere")
    await routing.server("llama", app="llama")
    cluster, admin = routing.cluster, control_plane.kubeconfig
    await install_roles(cluster)
    if rights == "everywhere":
        account, spaces = await kubeconfig_of(cluster, AUTOSCALER, admin, tmp_path / "account"), []
        await in_force(account, SERVERS, routing.namespace)
    else:
        spaces = [routing.namespace]
        account = (await narrow_accounts(cluster, routing.namespace, admin, tmp_path))[AUTOSCALER]
    monkeypatch.setenv("KUBECONFIG", str(account))
    async with Reconciler(LIFECYCLES, spaces) as reconciler:
        lease = reconciler.lease("modelyard-reconcile", CONTROLLER_NAMESPACE)
        assert await lease.acquire(120)
        found = [plan for some in (await reconciler.look()).values() for plan in some]
        own = [plan for plan in found if plan.subject.key.namespace == routing.namespace]
        assert len(own) == 2
        assert not any(row["trouble"] for row in await reconciler.tell(own))
        await lease.release()
    assert (await routing.said(ROUTES, "lost"))["ResolvedRefs"] == "ModelServerNotFound"
    events = (await routing.cluster.list(EVENTS, routing.namespace)).items
    assert "ModelServerNotFound" in {one["reason"] for one in events}
