"""Who we are and whether the server is there: tokens, roles, outages, time limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_manifests import config_map
from tcp_proxy import TcpProxy

from modelyard.cluster import Cluster, ClusterSettings, Forbidden, ObjectList, Unauthorized, Unavailable
from modelyard.cluster.transport import ApiRequest
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CONFIG_MAPS, NODES, PODS, SERVICE_ACCOUNTS

pytestmark = pytest.mark.integration


async def token_of(cluster: Cluster, place: str, account: str) -> str:
    """A token of a fresh service account."""
    await cluster.create(SERVICE_ACCOUNTS, {"metadata": {"name": account, "namespace": place}})
    body: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = SERVICE_ACCOUNTS.path(place, account, "token")
    answer = await cluster.transport.json(ApiRequest("POST", path, "request token of", account, body=body))
    return str(answer["status"]["token"])


def with_token(original: Path, path: Path, token: str) -> Path:
    config = yaml.safe_load(original.read_text())
    config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return path


async def allow_reading_config_maps(cluster: Cluster, place: str, account: str) -> None:
    rbac = "rbac.authorization.k8s.io"
    meta = {"name": account, "namespace": place}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}
    await cluster.apply({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": [rule]})
    await cluster.apply(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": place}],
        }
    )


async def until_allowed(call: Callable[[], Awaitable[ObjectList]]) -> ObjectList:
    """The server notices new roles a moment later."""
    async with asyncio.timeout(120):
        while True:
            try:
                return await call()
            except Forbidden:
                await asyncio.sleep(0.1)


async def test_an_account_may_do_what_its_role_says(
    api_server: LocalStack, cluster: Cluster, place: str, tmp_path: Path
) -> None:
    kubeconfig = with_token(api_server.kubeconfig, tmp_path / "k", await token_of(cluster, place, "reader"))
    await allow_reading_config_maps(cluster, place, "reader")
    await cluster.apply(config_map("a", place, x="1"))
    async with Cluster.connect(ClusterSettings(kubeconfig=kubeconfig)) as reader:
        assert len(await until_allowed(lambda: reader.list(CONFIG_MAPS, place))) == 1
        with pytest.raises(Forbidden, match=f"patch ConfigMap {place}/a: 403.*system:serviceaccount:{place}:reader"):
            await reader.merge_patch(CONFIG_MAPS, "a", {"data": {"x": "2"}}, place)
        with pytest.raises(Forbidden, match="list nodes"):
            await reader.list(NODES)
        with pytest.raises(Forbidden):
            async for _ in reader.watch(PODS, place):
                pass


async def test_a_renewed_token_is_picked_up(
    api_server: LocalStack, cluster: Cluster, place: str, tmp_path: Path
) -> None:
    token = await token_of(cluster, place, "reader")
    await allow_reading_config_maps(cluster, place, "reader")
    path = with_token(api_server.kubeconfig, tmp_path / "k", "expired")
    async with Cluster.connect(ClusterSettings(kubeconfig=path, credentials_interval=0)) as reader:
        with pytest.raises(Unauthorized, match="renew the credentials"):
            await reader.get(CONFIG_MAPS, "a", place)
        with_token(api_server.kubeconfig, path, token)
        await until_allowed(lambda: reader.list(CONFIG_MAPS, place))


async def test_reads_survive_a_cut(cluster: Cluster, proxied: Cluster, proxy: TcpProxy, place: str) -> None:
    await cluster.apply(config_map("a", place, x="1"))
    for number in range(5):
        assert await proxied.get(CONFIG_MAPS, "a", place)
        proxy.cut()
        assert (await proxied.merge_patch(CONFIG_MAPS, "a", {"data": {"x": str(number)}}, place))["data"] == {
            "x": str(number)
        }


async def test_an_outage_is_named_and_ends(proxied: Cluster, proxy: TcpProxy, place: str) -> None:
    await proxied.list(CONFIG_MAPS, place)
    await proxy.go_away()
    with pytest.raises(Unavailable, match=rf"get ConfigMap {place}/a: cannot reach .*127\.0\.0\.1.*tried 5 times"):
        await proxied.get(CONFIG_MAPS, "a", place)
    with pytest.raises(Unavailable) as caught:
        await proxied.create(CONFIG_MAPS, config_map("a", place))
    assert caught.value.untouched, "a refused connection did nothing, so it was tried again"
    assert caught.value.attempts == 5
    await proxy.come_back()
    assert await proxied.create(CONFIG_MAPS, config_map("a", place))


@pytest.mark.timing_sensitive("two time limits of half a second must end before a third one would")
async def test_a_hanging_server_costs_the_time_limit_and_no_more(proxied: Cluster, proxy: TcpProxy, place: str) -> None:
    await proxied.list(CONFIG_MAPS, place)
    proxy.stall()
    began = time.monotonic()
    with pytest.raises(Unavailable, match="did not answer in time"):
        await proxied.get(CONFIG_MAPS, "a", place, timeout=0.5)
    with pytest.raises(Unavailable) as caught:
        await proxied.create(CONFIG_MAPS, config_map("a", place), timeout=0.5)
    assert not caught.value.untouched
    assert caught.value.attempts == 1, "it may have been carried out, so it is not repeated"
    assert time.monotonic() - began < proxied.settings.request_timeout
    proxy.resume()
