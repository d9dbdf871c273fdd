"""Tenants with every right in their own namespaces and none elsewhere, whose models are delivered to the same nodes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import Models, ready
from install_manifests import tenant
from model_hub import Hub
from test_delivery_faults import A100, says

from modelyard.cluster import Cluster, ClusterSettings, Forbidden, Object
from modelyard.local.stack import LocalStack
from modelyard.models.delivery.names import BASE_MODELS
from modelyard.models.storage.settings import CONFIG_MAP, KEY
from modelyard.objects.kinds import CONFIG_MAPS, JOBS, NAMESPACES, SECRETS

pytestmark = pytest.mark.integration

WEIGHTS = bytes(range(256)) * 100
S3_SECRET = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret"}
FILES = {"config.json": b'{"model_type": "qwen2"}', "model.safetensors": WEIGHTS}


class Tenant:
    """Models of a namespace, which a ServiceAccount of that namespace makes."""

    def __init__(self, namespace: str, cluster: Cluster, models: Models) -> None:
        self.namespace, self.cluster, self._models = namespace, cluster, models

    async def make(self, name: str, uri: str, annotations: dict[str, str] | None = None, **storage: Any) -> Object:
        spec = {"storage": {"storageUri": uri, "nodeSelector": A100, **storage}}
        body = {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec}
        return await self.cluster.create(BASE_MODELS, body, self.namespace)

    async def until(self, holds: Callable[[dict[str, Any]], Any], name: str) -> Object:
        return await self._models.until(holds, name, BASE_MODELS, self.namespace)

    async def gone(self, name: str) -> None:
        await self._models.gone(name, BASE_MODELS, self.namespace)

    def path(self, name: str) -> Path:
        """The model's path on the node."""
        return self._models.disk("a100-0") / self.namespace / name

    def files(self, name: str) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.path(name).iterdir()}


@pytest.fixture
async def tenants(
    models: Models, local_stack: LocalStack, local_cluster: Cluster, local_namespace: str, tmp_path: Path
) -> AsyncIterator[tuple[Tenant, Tenant]]:
    """A victim, and a tenant that attacks it."""
    spaces = local_namespace, f"{local_namespace}-evil"
    await local_cluster.create(NAMESPACES, {"metadata": {"name": spaces[1]}})
    async with AsyncExitStack() as stack:
        found = []
        for space in spaces:
            own = await tenant(local_cluster, space, local_stack.kubeconfig, tmp_path / space)
            cluster = await stack.enter_async_context(Cluster.connect(ClusterSettings(kubeconfig=own)))
            found.append(Tenant(space, cluster, models))
        yield found[0], found[1]
        for each in found:
            listed = [one["metadata"]["name"] for one in await each.cluster.list(BASE_MODELS, each.namespace)]
            for name in listed:
                await each.cluster.delete(BASE_MODELS, name, each.namespace)
            for name in listed:
                await each.gone(name)
    await local_cluster.delete(NAMESPACES, spaces[1])


@pytest.fixture
def gated(hub: Hub) -> Iterator[Hub]:
    """The hub with a repository that anybody may list, and whose files it gives with a token alone."""
    hub.add("gated/model", FILES, token="hf_secret")
    hub.repositories["gated/model"].listed = True
    yield hub
    del hub.repositories["gated/model"]


async def test_a_tenant_reads_no_copy_that_the_source_refuses_it(
    tenants: tuple[Tenant, Tenant], gated: Hub, models: Models
) -> None:
    """Finding 6: the victim has shown its token, and its copy is on the node that both tenants' models go to."""
    victim, evil = tenants
    secret = {"metadata": {"name": "hub"}, "stringData": {"token": "hf_secret"}}
    await victim.cluster.create(SECRETS, secret, victim.namespace)
    await victim.make("m", "hf://gated/model", key="hub")
    await victim.until(ready, "m")
    with pytest.raises(Forbidden):
        await evil.cluster.get(SECRETS, "hub", victim.namespace)
    with pytest.raises(Forbidden):
        await evil.cluster.list(JOBS, models.home)
    for name, storage in (("m", {}), ("again", {"downloadPolicy": "ReuseIfExists"})):
        await evil.make(name, "hf://gated/model", **storage)
        await evil.until(partial(says, "Unauthorized"), name)
        assert not evil.path(name).is_symlink()
    assert victim.files("m") == FILES
    await victim.until(ready, "m")


async def test_a_later_model_of_the_same_name_gets_no_retained_files(
    tenants: tuple[Tenant, Tenant], gated: Hub
) -> None:
    """The namespace may be another tenant's by now; nobody proves a right by the name of an object."""
    victim, _ = tenants
    secret = {"metadata": {"name": "hub"}, "stringData": {"token": "hf_secret"}}
    await victim.cluster.create(SECRETS, secret, victim.namespace)
    await victim.make("m", "hf://gated/model", {"modelyard.dev/retention": "Retain"}, key="hub")
    await victim.until(ready, "m")
    await victim.cluster.delete(BASE_MODELS, "m", victim.namespace)
    await victim.gone("m")
    assert victim.files("m") == FILES, "they are retained"
    await victim.cluster.delete(SECRETS, "hub", victim.namespace)
    await victim.make("m", "hf://gated/model", downloadPolicy="ReuseIfExists")
    await victim.until(partial(says, "Unauthorized"), "m")
    assert not victim.path("m").is_symlink()


async def test_listings_without_end_and_files_without_number_hold_up_no_neighbour(
    tenants: tuple[Tenant, Tenant], hub: Hub, s3: Any, models: Models
) -> None:
    """Finding 7, beside a neighbour whose source is as it should be."""
    victim, evil = tenants
    bucket = f"bucket-{victim.namespace}"
    s3.create_bucket(Bucket=bucket)
    for name, content in FILES.items():
        s3.put_object(Bucket=bucket, Key=f"m/{name}", Body=content)
    for number in range(60):
        s3.put_object(Bucket=bucket, Key=f"many/{number}.json", Body=b"{}")
    hub.add("endless/model", FILES)
    stored = await models.cluster.get(CONFIG_MAPS, CONFIG_MAP, models.home)
    text = stored["data"][KEY]
    narrow = {"data": {KEY: json.dumps({**json.loads(text), "filesPerNamespace": 50})}}
    await models.cluster.merge_patch(CONFIG_MAPS, CONFIG_MAP, narrow, models.home)
    hub.endless = "same"
    try:
        storage: dict[str, Any] = {"parameters": {"endpoint": s3.meta.endpoint_url, "region": "us-east-1"}, "key": "s3"}
        for each in (evil, victim):
            await each.cluster.create(SECRETS, {"metadata": {"name": "s3"}, "stringData": S3_SECRET}, each.namespace)
        await evil.make("endless", "hf://endless/model")
        await evil.make("many", f"s3://{bucket}/many", **storage)
        await victim.make("m", f"s3://{bucket}/m", **storage)
        await victim.until(ready, "m")
        assert victim.files("m") == FILES
        await evil.until(partial(says, "NamespaceLimit"), "many")
        assert not evil.path("many").is_symlink()
        assert not evil.path("endless").is_symlink()
    finally:
        hub.endless = ""
        await models.cluster.merge_patch(CONFIG_MAPS, CONFIG_MAP, {"data": {KEY: text}}, models.home)
