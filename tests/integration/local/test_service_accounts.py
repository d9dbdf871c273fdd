"""Pods of the local cluster act as their ServiceAccounts, with the rights of these and no others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_helpers import Namespace, process_of

from modelyard.cluster import Cluster, ClusterSettings, Forbidden, Object, Unauthorized
from modelyard.objects.kinds import CONFIG_MAPS, JOBS, SECRETS, SERVICE_ACCOUNTS

pytestmark = pytest.mark.integration

IMAGE = "modelyard:0.1.0"


def python(script: str) -> Object:
    """A container of our image that runs a Python script."""
    return {"name": "main", "image": IMAGE, "args": ["python", "-c", script]}


async def allow(space: Namespace, account: str, *rules: dict[str, Any]) -> None:
    """Create a ServiceAccount with these rights in the namespace, and wait for its token: no pod starts without it."""
    metadata = {"name": account, "namespace": space.name}
    group = "rbac.authorization.k8s.io"
    for body in (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": list(rules)},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": space.name}],
        },
    ):
        await space.cluster.apply(body)
    async with asyncio.timeout(60):
        while not (await space.cluster.get(SERVICE_ACCOUNTS, account, space.name)).get("secrets"):
            await asyncio.sleep(0.1)


def variables(pod: Object) -> dict[str, str]:
    """The environment of a pod's process."""
    data = Path(f"/proc/{process_of(pod).pid}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in data.split("\0") if entry)


async def accepted(reader: Cluster, space: Namespace) -> bool:
    """Return whether the API server still accepts the token."""
    try:
        await reader.list(CONFIG_MAPS, space.name)
    except Unauthorized:
        return False
    return True


async def test_a_pod_has_the_rights_of_its_service_account_until_it_is_gone(space: Namespace) -> None:
    await allow(space, "reader", {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]})
    for name, fields in {
        "acting": {"serviceAccountName": "reader"},
        "apart": {"automountServiceAccountToken": False},
    }.items():
        await space.run(name, [python("import time; time.sleep(1000)")], **fields)
    pods = await space.until(
        lambda pods: len(pods) == 2 and all(pod.get("status", {}).get("phase") == "Running" for pod in pods.values())
    )
    assert "KUBECONFIG" not in variables(pods["apart"])
    kubeconfig = Path(variables(pods["acting"])["KUBECONFIG"])
    content = kubeconfig.read_text(encoding="utf-8")
    config = yaml.safe_load(content)
    assert config["contexts"][0]["context"]["namespace"] == space.name
    assert not kubeconfig.stat().st_mode & 0o077

    async with Cluster.connect(ClusterSettings(kubeconfig=kubeconfig)) as reader:
        await reader.list(CONFIG_MAPS, space.name)
        with pytest.raises(Forbidden, match=f"system:serviceaccount:{space.name}:reader"):
            await reader.list(SECRETS, space.name)
        async for _ in space.deleted("acting"):
            pass
        assert not kubeconfig.exists()
        async with asyncio.timeout(60):  # the API server may remember a good token for some seconds
            while await accepted(reader, space):
                await asyncio.sleep(1)


async def test_a_job_of_our_image_ends_with_its_exit_code_and_is_deleted_after_its_time(space: Namespace) -> None:
    containers = [python("import sys; sys.exit(3)")]
    template = {"spec": {"containers": containers, "restartPolicy": "Never"}}
    spec = {"backoffLimit": 0, "ttlSecondsAfterFinished": 1, "template": template}
    await space.cluster.create(JOBS, {"metadata": {"name": "once", "namespace": space.name}, "spec": spec})

    def ended(pods: dict[str, Object]) -> list[int]:
        statuses = [s for pod in pods.values() for s in pod.get("status", {}).get("containerStatuses", [])]
        return [s["state"]["terminated"]["exitCode"] for s in statuses if "terminated" in s["state"]]

    assert ended(await space.until(ended)) == [3]
    await space.until(lambda pods: not pods)
    async with asyncio.timeout(60):  # it is deleted after its pods
        while (await space.cluster.list(JOBS, space.name)).items:
            await asyncio.sleep(0.2)
