"""Roll-outs under the account of deployments/kubernetes: rbac-services.yaml has what they need, no more.

Not looked at are the rights for kinds that this server does not have.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ENGINE, FORMAT, Fleets, reason
from fleet_fixture import eventually, ready_status
from in_process_runs import Shift
from install_manifests import AUTOSCALER, documents, in_force, install_roles, kubeconfig_of
from killed_writers import rolling_out
from kthena_models import a_backend
from needed_rights import Notes, Right, noted

from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CONFIG_MAPS, PODS, SERVICES
from modelyard.reconcile.kernel.reconciler import Registered
from modelyard.reconcile.plans.dispatch import Acting
from modelyard.workloads.kthena.lifecycle import ModelRollOut
from modelyard.workloads.rendering.settings import CONFIG_MAP
from modelyard.workloads.roll_out.runtime_status import RUNTIME_STATUSES
from modelyard.workloads.roll_out.world import (
    ACCELERATOR_CLASSES,
    CLASSES_SERVED,
    INFERENCE_SERVICES,
    MODELS,
    RUNTIMES,
    child_kinds,
)

pytestmark = pytest.mark.integration

MAKES = {"get", "list", "watch", "create", "patch", "delete"}
"""Of each kind of children."""
GIVEN_ON = {("", "pods", "get")}
"""What a router's Role gives, so that whoever makes the Role has to have it."""
OF_WHOLE_CLUSTERS = {
    ("ome.io", "clusterservingruntimes", "get"),
    ("ome.io", "clusterservingruntimes/status", "patch"),
}
"""Rights that only a shift for all namespaces needs."""
WHERE_OWNERS_ARE_GUARDED = {
    ("ome.io", "inferenceservices/finalizers", "update"),
    ("registry.volcano.sh", "models/finalizers", "update"),
}
"""What an admission plug-in asks for that this server does not have."""
TOLD = {("", "events", verb) for verb in ("create", "get", "patch")}
"""Rights of rbac.yaml, which whoever tells has."""


def granted(*names: str) -> dict[tuple[str, str], set[str]]:
    """The verbs by group and resource."""
    found: dict[tuple[str, str], set[str]] = {}
    for document in documents(*names):
        if document["kind"] == "ClusterRole":
            for rule in document["rules"]:
                for place in ((group, one) for group in rule["apiGroups"] for one in rule["resources"]):
                    found.setdefault(place, set()).update(rule["verbs"])
    return found


async def account_in(
    space: str, cluster: Cluster, control_plane: LocalStack, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Notes:
    """From now on all is done by the account of the manifests; what it needs."""
    await install_roles(cluster)
    for document in documents("rbac-services.yaml"):
        await cluster.apply(document)
    account = await kubeconfig_of(cluster, AUTOSCALER, control_plane.kubeconfig, folder / "account")
    await in_force(account, SERVICES, space)
    monkeypatch.setenv("KUBECONFIG", str(account))
    notes = noted(monkeypatch)
    notes.account = str(account)
    return notes


async def test_roll_outs_of_models_need_exactly_the_rights_of_the_manifest(
    fleets: Fleets,
    control_plane: LocalStack,
    control_plane_cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, space, home = control_plane_cluster, await fleets.space(), await fleets.space()
    scaled = {"autoscalingPolicy": {"metrics": [{"metricName": "x", "targetValue": 1}]}, "maxReplicas": 2}
    live = {"env": [{"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "true"}]}
    delivered = {"modelURI": "hf://meta/llama", "cacheURI": "hostpath://mnt/models"}
    several = {"workers": [{"type": "server", "image": "engine:1", "pods": 2}]}
    backends = [
        a_backend(name="one", **scaled, **live, loraAdapters=[{"name": "a", "artifactURL": "hf://a/b"}]),
        a_backend(name="two", **delivered),
        a_backend(name="three", **several),
    ]
    notes = await account_in(space, cluster, control_plane, tmp_path, monkeypatch)
    await cluster.create(MODELS, {"metadata": {"name": "chat"}, "spec": {"backends": backends}}, space)
    lifecycle = ModelRollOut(home)
    kinds = {kind.kind: kind for kind in lifecycle.kinds}

    async def left() -> dict[str, int]:
        found = {name: await cluster.list(kind, space) for name, kind in kinds.items()}
        mine = {
            name: [one for one in objects if one["metadata"].get("ownerReferences")] for name, objects in found.items()
        }
        return {name: len(objects) for name, objects in mine.items() if objects}

    async with Shift([Registered(lifecycle, Acting("roll-out/roll-out"))], home, namespaces=[space]):

        async def complete() -> bool:
            return {*await left()} == {*kinds}

        await eventually(complete, "there is something of every kind", seconds=120)
        other = [a_backend(name="other", modelURI="pvc://weights/llama")]
        await cluster.merge_patch(MODELS, "chat", {"spec": {"name": "another", "backends": other}}, space)
        few = {"Deployment": 1, "ModelServer": 1, "ModelRoute": 1}

        async def gone() -> bool:
            return await left() == few

        await eventually(gone, "what is not asked for any more is gone", seconds=120)
    assert notes.forbidden == []
    allowed: set[Right] = {(*place, verb) for place, verbs in granted("rbac-services.yaml").items() for verb in verbs}
    assert notes.needed - TOLD <= allowed
    own = {(kind.group, kind.plural) for kind in (*kinds.values(), MODELS)}
    mine = {one for one in allowed if (one[0], one[1].partition("/")[0]) in own}
    assert mine - WHERE_OWNERS_ARE_GUARDED - notes.needed == set()


async def test_roll_outs_need_exactly_the_rights_of_the_manifest(
    fleets: Fleets,
    control_plane: LocalStack,
    control_plane_cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, space, home = control_plane_cluster, await fleets.space(), await fleets.space()
    ingress = {
        "disableIngressCreation": False,
        "ingressDomain": "example.com",
        "ingressClassName": "nginx",
        "routed": True,
    }
    settings = {"metadata": {"name": CONFIG_MAP}, "data": {"ingress": json.dumps(ingress)}}
    await cluster.create(CONFIG_MAPS, settings, home)
    part = {"runner": ENGINE}
    groups = {"engineConfig": {"leader": part, "worker": {"size": 1, **part}}}
    runtime = {"supportedModelFormats": [{**FORMAT, "name": "safetensors", "autoSelect": True}], **groups}
    await cluster.create(RUNTIMES[0], {"metadata": {"name": "groups"}, "spec": runtime}, space)

    notes = await account_in(space, cluster, control_plane, tmp_path, monkeypatch)
    await fleets.make(space, router={})
    await fleets.make(space, "large", runtime={"name": "groups"})
    async with Shift([rolling_out(home), *map(Registered, RUNTIME_STATUSES)], home, namespaces=[space]):
        await fleets.end(space)

        async def warned() -> bool:
            return reason(await cluster.get(RUNTIMES[0], "groups", space), "SpecWarning") == "FieldsIgnored"

        await eventually(warned, "the runtime names its field without effect", seconds=120)

        async def complete() -> bool:
            for pod in await cluster.list(PODS, space):  # not all of them come at once
                name = pod["metadata"]["name"]
                if pod["status"].get("phase") != "Running":
                    await cluster.merge_patch(PODS, name, ready_status(1_700_000_000), space, subresource="status")
            kinds = {name.partition(" ")[0] for name in await fleets.there(space)}
            return kinds >= {kind.kind for kind in child_kinds(fleets.kinds.served)}

        await eventually(complete, "there is something of every kind: routes come when pods are ready", seconds=120)
        # All of it goes.
        virtual = {"metadata": {"annotations": {"ome.io/deploymentMode": "VirtualDeployment"}}}
        for name in ("chat", "large"):
            await cluster.merge_patch(INFERENCE_SERVICES, name, virtual, space)

        async def gone() -> bool:
            left = await fleets.there(space)
            return len(left) == 2 and {reason(one, "Ready") for one in left.values()} == {"VirtualDeployment"}

        await eventually(gone, "nothing is left of what was made", seconds=120)
    assert notes.forbidden == []
    rights = granted("rbac-services.yaml")
    allowed: set[Right] = {(*place, verb) for place, verbs in rights.items() for verb in verbs}
    assert notes.needed - TOLD <= allowed
    here = {(kind.group, kind.plural) for kind in child_kinds(fleets.kinds.served)}
    elsewhere = {place for place, verbs in rights.items() if verbs == MAKES} - here
    if CLASSES_SERVED not in fleets.kinds.served:
        elsewhere.add((ACCELERATOR_CLASSES.group, ACCELERATOR_CLASSES.plural))
    mine = {one for one in allowed if one[:2] not in elsewhere and not one[0].endswith(".volcano.sh")}
    assert mine - GIVEN_ON - WHERE_OWNERS_ARE_GUARDED - OF_WHOLE_CLUSTERS - notes.needed == set()
