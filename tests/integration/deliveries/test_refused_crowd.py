"""Many refused models of a tenant, and a neighbour's: which runs are started, in which order, and how many."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from conftest import Models, ready
from install_manifests import tenant
from model_hub import Hub

from modelyard.cluster import Cluster, ClusterSettings
from modelyard.models.delivery.names import BASE_MODELS, finalizer
from modelyard.objects.kinds import NAMESPACES, SECRETS

pytestmark = pytest.mark.integration

A100 = {"kubernetes.io/hostname": "a100-0"}
REFUSED = {
    "InvalidURI": {"storageUri": "s3:///p"},
    "SecretNotFound": {"storageUri": "hf://good/model"},
    "RefNotPermitted": {"storageUri": "pvc://elsewhere:weights/llama"},
    "PathNotAllowed": {"storageUri": "hf://good/model", "path": "/etc"},
}


async def test_sixty_refused_models_and_their_deletion_start_no_run(
    models: Models, hub: Hub, local_namespace: str, tmp_path: Path
) -> None:
    """By a tenant that sets the finalizer itself on half of them, so that their deletion is the shift's."""
    hub.add("good/model", {"config.json": b"{}"})
    good = f"{local_namespace}-good"
    await models.cluster.create(NAMESPACES, {"metadata": {"name": good}})
    path = await tenant(models.cluster, local_namespace, models.stack.kubeconfig, tmp_path / "tenant")
    reasons = {f"m{number}": reason for number, reason in enumerate([*REFUSED] * 15)}
    async with Cluster.connect(ClusterSettings(kubeconfig=path)) as own:

        async def make(name: str, reason: str) -> None:
            finalizers = [finalizer(BASE_MODELS)] if int(name[1:]) // len(REFUSED) % 2 else []
            metadata = {"name": name, "finalizers": finalizers}
            key = {"key": f"{name}-token"} if reason == "SecretNotFound" else {}
            spec = {"storage": {"nodeSelector": A100, **REFUSED[reason], **key}}
            await own.create(BASE_MODELS, {"metadata": metadata, "spec": spec}, local_namespace)

        await asyncio.gather(*(make(name, reason) for name, reason in reasons.items()))
        await models.make("theirs", "hf://good/model", BASE_MODELS, good, nodeSelector=A100)
        await models.until(ready, "theirs", BASE_MODELS, good)
        for name, reason in reasons.items():
            await models.until(
                lambda status, reason=reason: any(
                    entry["type"] == "Ready" and entry["reason"] == reason for entry in status.get("conditions") or ()
                ),
                name,
                BASE_MODELS,
                local_namespace,
            )
        assert started(models) == [(good, "theirs")]

        waiting = next(name for name, reason in reasons.items() if reason == "SecretNotFound")
        secret = {"metadata": {"name": f"{waiting}-token"}, "stringData": {"token": "x"}}
        await own.create(SECRETS, secret, local_namespace)
        await models.until(ready, waiting, BASE_MODELS, local_namespace)
        assert started(models) == [(good, "theirs"), (local_namespace, waiting)]

        await asyncio.gather(*(own.delete(BASE_MODELS, name, local_namespace) for name in reasons))
        for name in reasons:
            await models.gone(name, BASE_MODELS, local_namespace)
        assert started(models) == [(good, "theirs"), (local_namespace, waiting)]
        removing = [key for key in models.shift.runs if key.startswith(f"BaseModel/{local_namespace}/")]
        assert len(removing) <= 3, "one that delivers, one that removes; one more where a status came late"


def started(models: Models) -> list[tuple[str, str]]:
    """Namespace and name of the objects of the runs, in the order of their start."""
    keys = (key.split("/") for key in models.shift.runs)
    return list(dict.fromkeys((key[1], key[2]) for key in keys))
