"""A tenant with every right in its own namespace, and none elsewhere, tries to take a model name of another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from install_manifests import (
    AUTOSCALER,
    CONTROLLER_NAMESPACE,
    documents,
    in_force,
    install_roles,
    kubeconfig_of,
    tenant,
)
from test_router_following import Shop, url_of

from modelyard.cluster import Cluster, ClusterSettings, Forbidden, NotFound
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.kernel.carry_out import carry_out
from modelyard.reconcile.kernel.fence import Fence
from modelyard.reconcile.kernel.reconciler import Reconciler, Registered
from modelyard.reconcile.plans.plan import Mark, Plan, Subject
from modelyard.router.process.service import RouterProcess
from modelyard.router.settings import RouterSettings
from modelyard.routing.lifecycle import RouteStatus
from modelyard.routing.model_names import BINDINGS, RECORDS, RECORDS_LABEL, record_key
from modelyard.routing.name_records import NameRecords
from modelyard.routing.objects import ROUTES

pytestmark = pytest.mark.integration


class Tenants:
    """A victim and a tenant that attacks it, a router and a controller with the rights of the manifests."""

    def __init__(self, victim: Shop, evil: Shop, router: Cluster, stack: AsyncExitStack) -> None:
        self.victim, self.evil = victim, evil
        self.name, self.adapter = f"{victim.namespace}-chat", f"{victim.namespace}-sql"
        self._router, self._stack = router, stack

    async def router(self) -> str:
        """The URL of a router that starts now."""
        settings = RouterSettings(
            port=0,
            metrics_port=0,
            log="none",
            leave_seconds=0.0,
            wait_seconds=0.0,
            namespaces=(self.victim.namespace, self.evil.namespace),
            controller_namespace=CONTROLLER_NAMESPACE,
        )
        router = RouterProcess(settings)
        task = asyncio.create_task(router.run(self._router))

        async def end() -> None:
            router.stop()
            await task

        self._stack.push_async_callback(end)
        async with asyncio.timeout(120):
            await router.started.wait()
        return url_of(router)

    async def reconcile(self) -> None:
        """A shift that starts now: look and write until nothing is left to write."""
        async with self.shift() as reconciler:
            await self.settle(reconciler)

    def shift(self) -> Reconciler:
        spaces = [self.victim.namespace, self.evil.namespace]
        lifecycles = (NameRecords(CONTROLLER_NAMESPACE, spaces), RouteStatus(CONTROLLER_NAMESPACE))
        return Reconciler(map(Registered, lifecycles), spaces, follow=False)

    async def settle(self, reconciler: Reconciler) -> None:
        async with asyncio.timeout(120):
            while plans := [plan for some in (await reconciler.look()).values() for plan in some]:
                rows = await reconciler.tell(plans)
                assert not any(row["trouble"] for row in rows), rows

    async def conflict(self, shop: Shop, name: str) -> dict[str, Any]:
        status = (await self.victim.cluster.get(ROUTES, name, shop.namespace))["status"]
        (condition,) = [each for each in status["conditions"] if each["type"] == "Conflicted"]
        return dict(condition)

    async def record(self, shop: Shop) -> str:
        stored = await self.victim.cluster.get(CONFIG_MAPS, f"{RECORDS}.{shop.namespace}", CONTROLLER_NAMESPACE)
        return str(stored["data"]["names"])


@pytest.fixture
async def tenants(
    control_plane: LocalStack,
    control_plane_cluster: Cluster,
    namespace: str,
    other_namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Tenants]:
    cluster, admin = control_plane_cluster, control_plane.kubeconfig
    await install_roles(cluster)
    rights = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    for document in documents("router.yaml"):
        if document["kind"] in rights:
            await cluster.apply(document)
    accounts = {
        name: await kubeconfig_of(cluster, name, admin, tmp_path / name) for name in (AUTOSCALER, "modelyard-router")
    }
    await in_force(accounts["modelyard-router"], CONFIG_MAPS, CONTROLLER_NAMESPACE)
    own = await tenant(cluster, other_namespace, admin, tmp_path / "tenant")
    monkeypatch.setenv("KUBECONFIG", str(accounts[AUTOSCALER]))
    async with AsyncExitStack() as stack:
        evil, router = [
            await stack.enter_async_context(Cluster.connect(ClusterSettings(kubeconfig=path)))
            for path in (own, accounts["modelyard-router"])
        ]
        shops = Shop(cluster, namespace), Shop(evil, other_namespace)
        try:
            yield Tenants(*shops, router, stack)
        finally:
            for shop in shops:
                for engine in shop.engines:
                    await engine.stop()
                for name in (f"{RECORDS}.{shop.namespace}", BINDINGS, RECORDS):
                    with suppress(NotFound):
                        await cluster.delete(CONFIG_MAPS, name, CONTROLLER_NAMESPACE)


async def test_a_tenant_takes_no_live_model_name_of_another(tenants: Tenants) -> None:
    victim, evil = tenants.victim, tenants.evil
    await evil.server("trap")
    trap = await evil.pod("trap-0", "trap")
    await evil.route("decoy", evil.rules(trap=1))
    await evil.route("nameless", evil.rules(trap=1), modelName=None, loraAdapters=[f"{evil.namespace}-toy"])
    await asyncio.sleep(1.1)  # creation times are whole seconds
    await victim.server("llama")
    engine = await victim.pod("llama-0", "llama")
    await victim.route("chat", victim.rules(llama=1), loraAdapters=[tenants.adapter])
    await tenants.reconcile()
    old = (await victim.cluster.get(CONFIG_MAPS, f"{RECORDS}.{evil.namespace}", CONTROLLER_NAMESPACE))["metadata"]
    routers = [await tenants.router()]
    await victim.answers(routers[0], "chat", 200)
    recorded = await tenants.record(victim)

    async def attack_fails(seen: str) -> None:
        """Nothing of the victim's goes to the tenant, before and after a shift, in routers old and new."""
        for _ in range(2):
            for url in (*routers, await tenants.router()):
                await evil.answers(url, seen, 200)  # by now the router has seen the edit
                before = len(trap.asked), len(engine.asked)
                for name in ("chat", "sql"):
                    assert (await victim.ask(url, name))[0] == 200
                assert (len(trap.asked), len(engine.asked)) == (before[0], before[1] + 2)
            await tenants.reconcile()

    await evil.edit("decoy", loraAdapters=[f"{evil.namespace}-seen", tenants.name, tenants.adapter])
    await attack_fails("seen")
    condition = await tenants.conflict(evil, "decoy")
    assert (condition["status"], condition["reason"]) == ("True", "ModelNameInUse")
    assert f"held by {victim.namespace}/chat" in condition["message"]
    assert (await tenants.conflict(victim, "chat"))["status"] == "False"
    await evil.answers(routers[0], "decoy", 200)

    await evil.edit("decoy", loraAdapters=None)
    await evil.edit("nameless", modelName=tenants.name, loraAdapters=[f"{evil.namespace}-again"])
    await attack_fails("again")
    assert f"held by {victim.namespace}/chat" in (await tenants.conflict(evil, "nameless"))["message"]

    record, key = await tenants.record(evil), record_key(CONTROLLER_NAMESPACE, evil.namespace)
    body = {"metadata": {"name": key.name, "namespace": key.namespace}}
    for uid in ("", old["uid"]):  # a shift that saw no record, and one that saw an old one
        mark = Mark(CONFIG_MAPS, key, uid, {}, {"names": ""}, body, exact=True, version=old["resourceVersion"])
        await carry_out(victim.cluster, [Plan(Subject(CONFIG_MAPS, key, "", 0), marks=(mark,))], Fence())
        assert await tenants.record(evil) == record

    forged = {"metadata": {"name": f"{RECORDS}.{victim.namespace}"}, "data": {"names": ""}}
    await evil.cluster.create(CONFIG_MAPS, forged, evil.namespace)
    with pytest.raises(Forbidden):
        await evil.cluster.merge_patch(CONFIG_MAPS, forged["metadata"]["name"], forged, CONTROLLER_NAMESPACE)
    assert await tenants.record(victim) == recorded

    bindings = {"metadata": {"name": BINDINGS}, "data": {evil.namespace: f"{victim.namespace}-ch*", "Wrong": "*"}}
    await victim.cluster.create(CONFIG_MAPS, bindings, CONTROLLER_NAMESPACE)
    reached = len(trap.asked)
    async with asyncio.timeout(120):
        while len(trap.asked) == reached:
            assert (await victim.ask(routers[0], "chat"))[0] in (200, 404)
    await tenants.reconcile()
    assert (await tenants.conflict(victim, "chat"))["reason"] == "ModelNameReserved"
    assert (await tenants.conflict(evil, "nameless"))["status"] == "False"
    noted = await victim.cluster.get(CONFIG_MAPS, BINDINGS, CONTROLLER_NAMESPACE)
    assert (
        "data['Wrong']: not the name of a namespace"
        in noted["metadata"]["annotations"]["modelyard.dev/invalid-bindings"]
    )
    await victim.cluster.delete(CONFIG_MAPS, BINDINGS, CONTROLLER_NAMESPACE)
    before = len(engine.asked)
    async with asyncio.timeout(120):
        while len(engine.asked) == before:
            await victim.ask(routers[0], "chat")


@pytest.mark.parametrize("lost", ["label", "record"])
async def test_a_record_that_was_deleted_or_lost_its_label_gives_no_name_away(tenants: Tenants, lost: str) -> None:
    """A claim of the tenant waits for it. What is in the record still counts; what is gone, a shift remembers."""
    victim, evil = tenants.victim, tenants.evil
    await victim.server("llama")
    engine = await victim.pod("llama-0", "llama")
    await victim.route("chat", victim.rules(llama=1))
    await victim.edit("chat", loraAdapters=[tenants.adapter])
    await evil.server("trap")
    await evil.pod("trap-0", "trap")
    await tenants.reconcile()
    await asyncio.sleep(0.01)  # records count microseconds
    await evil.route("decoy", evil.rules(trap=1), loraAdapters=[tenants.name])
    await tenants.reconcile()
    recorded, url = await tenants.record(victim), await tenants.router()
    name, home = f"{RECORDS}.{victim.namespace}", CONTROLLER_NAMESPACE
    if lost == "label":
        await victim.cluster.merge_patch(CONFIG_MAPS, name, {"metadata": {"labels": {RECORDS_LABEL: None}}}, home)
        await tenants.reconcile()  # a shift that starts now, and never saw the record
    else:
        async with tenants.shift() as reconciler:
            await tenants.settle(reconciler)
            await victim.cluster.delete(CONFIG_MAPS, name, home)
            await tenants.settle(reconciler)
    assert await tenants.record(victim) == recorded
    for each in (url, await tenants.router()):
        before = len(engine.asked)
        assert (await victim.ask(each, "chat"))[0] == 200
        assert len(engine.asked) == before + 1
    assert f"held by {victim.namespace}/chat" in (await tenants.conflict(evil, "decoy"))["message"]
