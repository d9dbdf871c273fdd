"""Lists on a real API server: pages, selectors, the watch cache, and a history that is compacted between two pages."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
from cluster_faults import compact
from cluster_manifests import config_map

from modelyard.cluster import Cluster, ClusterSettings, Invalid
from modelyard.cluster.transport import ApiRequest, Transport
from modelyard.cluster.watching import list_objects
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CONFIG_MAPS, PODS

pytestmark = pytest.mark.integration


async def fill(cluster: Cluster, place: str, count: int) -> set[str]:
    names = {f"c{index:03}" for index in range(count)}
    for name in sorted(names):
        body = config_map(name, place, x="1")
        body["metadata"]["labels"] = {"parity": "even" if int(name[1:]) % 2 == 0 else "odd"}
        await cluster.create(CONFIG_MAPS, body)
    return names


async def fill_cache(cluster: Cluster, place: str, count: int) -> set[str]:
    """The same, until the server's cache has it: a watch from before is told what is in there by then."""
    before = (await cluster.list(CONFIG_MAPS, place)).resource_version
    names = await fill(cluster, place, count)
    async with aclosing(cluster.watch(CONFIG_MAPS, place, resource_version=before)) as events:
        async for event in events:
            if event.object["metadata"].get("name") == max(names):
                return names
    raise AssertionError


class CountedPages(Transport):
    """The real transport, which notes how large its largest answer was."""

    largest = 0

    async def send(self, request: ApiRequest) -> bytes:
        body = await super().send(request)
        self.largest = max(self.largest, len(body))
        return body


@pytest.mark.parametrize("page_size", [0, 1, 4, 11, 500])
async def test_pages_join_to_the_whole(api_server: LocalStack, cluster: Cluster, place: str, page_size: int) -> None:
    names = await fill(cluster, place, 11)
    async with Cluster.connect(ClusterSettings(kubeconfig=api_server.kubeconfig, page_size=page_size)) as paged:
        listed = await paged.list(CONFIG_MAPS, place)
    assert [item["metadata"]["name"] for item in listed] == sorted(names)
    assert all((item["apiVersion"], item["kind"]) == ("v1", "ConfigMap") for item in listed)
    assert int(listed.resource_version) >= max(int(item["metadata"]["resourceVersion"]) for item in listed)


@pytest.mark.parametrize("cached", [False, True])
async def test_large_objects_come_in_small_pages(
    cluster: Cluster, place: str, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = await fill_cache(cluster, place, 11)
    monkeypatch.setattr("modelyard.cluster.watching.MOST_CACHED", 2000)
    monkeypatch.setattr("modelyard.cluster.watching.MOST_IN_A_PAGE", 2000)
    transport = await CountedPages.open(cluster.settings)
    try:
        listed = await list_objects(transport, CONFIG_MAPS, place, cached=cached)
    finally:
        await transport.close()
    assert [item["metadata"]["name"] for item in listed] == sorted(names)
    assert 0 < transport.largest <= 2000


async def test_selectors_and_the_cached_list(cluster: Cluster, place: str) -> None:
    await fill(cluster, place, 4)
    even = await cluster.list(CONFIG_MAPS, place, label_selector="parity in (even, none), !absent")
    assert [item["metadata"]["name"] for item in even] == ["c000", "c002"]
    one = await cluster.list(CONFIG_MAPS, field_selector=f"metadata.name=c001,metadata.namespace={place}")
    assert [item["metadata"]["name"] for item in one] == ["c001"]
    assert len(await cluster.list(PODS, place, cached=True)) == 0
    with pytest.raises(Invalid, match=r"labelSelector=a=b=c.*400"):
        await cluster.list(CONFIG_MAPS, place, label_selector="a=b=c")


async def test_the_cached_list_catches_up_with_the_consistent_one(cluster: Cluster, place: str) -> None:
    names = await fill_cache(cluster, place, 3)
    cached = await cluster.list(CONFIG_MAPS, place, cached=True)
    assert {item["metadata"]["name"] for item in cached} >= names


class CompactedBetweenPages(Transport):
    """The real transport, but after the first page the collection changes and etcd forgets its history."""

    stack: LocalStack
    place: str
    answers: int = 0

    async def json(self, request: ApiRequest) -> dict[str, Any]:
        answer = await super().json(request)
        self.answers += 1
        if self.answers == 1:
            async with Cluster.connect(ClusterSettings(kubeconfig=self.stack.kubeconfig)) as other:
                await other.delete(CONFIG_MAPS, "c000", self.place)
                await other.create(CONFIG_MAPS, config_map("c999", self.place))
            await compact(self.stack)
        return answer


async def test_a_history_lost_between_pages_gives_one_consistent_list(
    api_server: LocalStack, cluster: Cluster, place: str
) -> None:
    names = await fill(cluster, place, 9)
    transport = await CompactedBetweenPages.open(ClusterSettings(kubeconfig=api_server.kubeconfig, page_size=4))
    assert isinstance(transport, CompactedBetweenPages)
    transport.stack, transport.place = api_server, place
    try:
        listed = await list_objects(transport, CONFIG_MAPS, place)
    finally:
        await transport.close()
    assert [item["metadata"]["name"] for item in listed] == sorted(names - {"c000"} | {"c999"})
    assert transport.answers == 2, "the second page was refused, then everything came in one page"
