"""Roll-outs of ModelRoutes under an account with the reconciler's rights alone. What is measured is played."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import Fleets
from fleet_fixture import eventually, ready_status
from in_process_runs import Shift
from install_manifests import CONTROLLER_NAMESPACE, documents, in_force, install_roles, kubeconfig_of
from needed_rights import Right, noted
from plan_details import remember_details

from modelyard.cluster import Cluster, ClusterSettings, Forbidden, Unavailable
from modelyard.local.stack import LocalStack
from modelyard.metrics.vocabulary.values import RoutedRequests
from modelyard.objects import Key
from modelyard.objects.kinds import PODS
from modelyard.reconcile.kernel.fence import take
from modelyard.reconcile.kernel.reconciler import Registered
from modelyard.reconcile.plans.dispatch import Acting
from modelyard.routing.lifecycle import RouteStatus, ServerStatus
from modelyard.routing.objects import ROUTES, SERVERS
from modelyard.routing.rolling import WISH, RouteReading
from modelyard.routing.route_roll_out import CONDITION, RouteRollOuts

pytestmark = pytest.mark.integration

ROLE, ACCOUNT = "modelyard-reconciler", "reconciler-alone"
GOOD = RoutedRequests(100, 0)
EXCEPT = {("", "events", "get"), ("", "events", "patch"), ("networking.volcano.sh", "modelservers", "get")}
"""What one that tells the same twice needs, and nobody who rolls out a route."""


async def account(cluster: Cluster, space: str, home: str, admin: Path, target: Path) -> Path:
    """A kubeconfig with the rights of this one role in every namespace, and of the controller in its own."""
    await install_roles(cluster)
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": ACCOUNT, "namespace": home}}
    await cluster.apply({**role, "rules": [rule for rule in controller_rules() if rule["resources"] == ["configmaps"]]})
    own = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": CONTROLLER_NAMESPACE}
    reference = {"apiGroup": group, "kind": "Role", "name": ACCOUNT}
    await cluster.apply({**role, "kind": "RoleBinding", "roleRef": reference, "subjects": [own]})
    (binding,) = (one for one in documents("rbac-everywhere.yaml") if one["metadata"]["name"] == ROLE)
    (subject,) = binding["subjects"]
    subject["name"] = binding["metadata"]["name"] = ACCOUNT
    metadata = {"name": ACCOUNT, "namespace": CONTROLLER_NAMESPACE}
    await cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    await cluster.apply(binding)
    found = await kubeconfig_of(cluster, ACCOUNT, admin, target)
    await in_force(found, ROUTES, space)
    return found


async def created(cluster: Cluster, pod: dict[str, Any], space: str) -> bool:
    """Whether it is; a new namespace refuses pods until the account that they have by default is there."""
    try:
        await cluster.create(PODS, pod, space)
    except (Forbidden, Unavailable):
        return False
    return True


def controller_rules() -> list[dict[str, Any]]:
    """The rights in the controller's own namespace, as the manifest has them."""
    named = ("Role", "modelyard-autoscaler")
    (role,) = (one for one in documents("rbac.yaml") if (one["kind"], one["metadata"]["name"]) == named)
    found: list[dict[str, Any]] = role["rules"]
    return found


def rights() -> set[Right]:
    """Those of the role, and to the ConfigMaps of the controller's namespace, as the manifest has them."""
    (role,) = (one for one in documents("rbac.yaml") if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", ROLE))
    return {
        (group, one, verb)
        for rule in (*role["rules"], *(one for one in controller_rules() if one["resources"] == ["configmaps"]))
        for group in rule["apiGroups"]
        for one in rule["resources"]
        for verb in rule["verbs"]
    }


def wish(to: str, *steps: int) -> dict[str, str]:
    """The annotation."""
    return {WISH: json.dumps({"to": to, "steps": steps, "stepMinutes": 0.05, "requests": 1})}


async def test_a_routes_roll_out_needs_exactly_the_reconcilers_rights(
    fleets: Fleets, control_plane: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, space, home = fleets.cluster, await fleets.space(), await fleets.space()
    for name in ("old", "new"):
        selector = {"matchLabels": {"app": name}}
        spec: dict[str, Any] = {"model": "m", "inferenceEngine": "vLLM", "workloadSelector": selector}
        await cluster.create(SERVERS, {"metadata": {"name": name}, "spec": spec}, space)
        spec = {"containers": [{"name": "engine", "image": "example.invalid/engine:1"}]}
        pod = {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
        await eventually(partial(created, cluster, pod, space), "the namespace takes pods")
        await cluster.merge_patch(PODS, name, ready_status(time.time()), space, subresource="status")
    targets = [{"modelServerName": "old", "weight": 100}, {"modelServerName": "new", "weight": 0}]
    spec = {"modelName": space, "rules": [{"targetModels": targets}]}
    metadata = {"name": "chat", "annotations": wish("new", 50, 100)}
    await cluster.create(ROUTES, {"metadata": metadata, "spec": spec}, space)

    own = await account(cluster, space, home, control_plane.kubeconfig, tmp_path / "account")
    monkeypatch.setenv("KUBECONFIG", str(own))
    notes = noted(monkeypatch)
    notes.account = str(own)
    key, readings = Key(space, "chat"), dict[Key, RouteReading]()
    lifecycle = RouteRollOuts("http://prometheus.invalid", readings)
    details = remember_details(lifecycle)
    registered = [
        Registered(RouteStatus(home)),
        Registered(ServerStatus()),
        Registered(lifecycle, Acting("roll-out/roll-out")),
    ]

    async def rolled_out(*weights: int) -> bool:
        """Whether it is at its end; as long as it is not, everything goes well."""
        if (here := details.get(key)) is not None and here.watch is not None:
            readings[key] = RouteReading(time.time(), here.watch.since, GOOD, GOOD)
        route = await cluster.get(ROUTES, "chat", space)
        told = {one["type"]: one["status"] for one in (route.get("status") or {}).get("conditions") or ()}
        found = tuple(one["weight"] for one in route["spec"]["rules"][0]["targetModels"])
        return found == weights and told.get(CONDITION) == "True"

    async with Shift(registered, home, namespaces=[space]):
        await eventually(lambda: rolled_out(0, 100), "all requests go to the new one")
        async with Cluster.connect(ClusterSettings(kubeconfig=own)) as by_hand:
            await take(by_hand, await by_hand.get(ROUTES, "chat", space), ROUTES, "test/by-hand", wish("old", 100))
        await eventually(lambda: rolled_out(100, 0), "and back, as somebody asks for by hand")
    assert notes.forbidden == []
    assert notes.needed <= rights()
    assert rights() - notes.needed <= EXCEPT
