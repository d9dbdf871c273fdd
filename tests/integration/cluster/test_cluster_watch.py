"""Watches that are cut, refused, outlived by their server's history, and stalled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from cluster_faults import compact, restarted
from cluster_manifests import WIDGETS, config_map
from tcp_proxy import TcpProxy

from modelyard.cluster import Cluster, ClusterSettings, UnknownKind, WatchEvent
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CONFIG_MAPS, ResourceType

pytestmark = pytest.mark.integration


class Follower:
    """Collects a watch's events in the background and lets a test wait for a certain picture."""

    def __init__(self) -> None:
        self.events: list[WatchEvent] = []
        self.picture: dict[str, str] = {}
        self._changed = asyncio.Condition()

    async def follow(self, events: AsyncIterator[WatchEvent]) -> None:
        async for event in events:
            async with self._changed:
                self.events.append(event)
                if event.kind == "DELETED":
                    self.picture.pop(event.object["metadata"]["name"])
                elif event.kind != "SYNC":
                    self.picture[event.object["metadata"]["name"]] = event.object["data"]["x"]
                self._changed.notify_all()

    def told(self, since: int = 0) -> list[str]:
        return [
            event.kind if event.kind == "SYNC" else f"{event.kind} {event.object['metadata']['name']}"
            for event in self.events[since:]
        ]

    async def until(self, picture: dict[str, str], syncs: int = 1) -> None:
        def reached() -> bool:
            return self.picture == picture and self.told().count("SYNC") >= syncs

        async with asyncio.timeout(120), self._changed:
            await self._changed.wait_for(reached)


@asynccontextmanager
async def following(cluster: Cluster, place: str, **options: str) -> AsyncIterator[Follower]:
    follower = Follower()
    async with aclosing(cluster.watch(CONFIG_MAPS, place, **options)) as events:  # type: ignore[arg-type]
        task = asyncio.create_task(follower.follow(events))
        try:
            yield follower
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def put(cluster: Cluster, place: str, name: str, x: str) -> None:
    await cluster.apply(config_map(name, place, x=x))


async def test_first_the_list_then_the_changes(cluster: Cluster, place: str) -> None:
    await put(cluster, place, "a", "1")
    async with following(cluster, place) as follower:
        await follower.until({"a": "1"})
        assert follower.told() == ["ADDED a", "SYNC"]
        await put(cluster, place, "b", "1")
        await put(cluster, place, "a", "2")
        await cluster.delete(CONFIG_MAPS, "b", place)
        await put(cluster, place, "c", "1")
        await follower.until({"a": "2", "c": "1"})
        assert follower.told(2) == ["ADDED b", "MODIFIED a", "DELETED b", "ADDED c"]


async def test_from_a_given_version_only_what_came_after(cluster: Cluster, place: str) -> None:
    await put(cluster, place, "a", "1")
    listed = await cluster.list(CONFIG_MAPS, place)
    await put(cluster, place, "b", "1")
    async with following(cluster, place, resource_version=listed.resource_version) as follower:
        await follower.until({"b": "1"}, syncs=0)
        assert follower.told() == ["ADDED b"]


async def test_a_selector_makes_leaving_it_a_deletion(cluster: Cluster, place: str) -> None:
    async with following(cluster, place, label_selector="keep=yes") as follower:
        await follower.until({})
        for keep in ("yes", "no"):
            body = config_map("a", place, x="1")
            body["metadata"]["labels"] = {"keep": keep}
            await cluster.apply(body)
        body["metadata"] |= {"name": "b", "labels": {"keep": "yes"}}
        await cluster.apply(body)
        await follower.until({"b": "1"})
        assert follower.told() in (["SYNC", "ADDED a", "DELETED a", "ADDED b"], ["SYNC", "ADDED b"])


async def test_a_cut_connection_resumes_where_it_was(
    cluster: Cluster, proxied: Cluster, proxy: TcpProxy, place: str
) -> None:
    await put(cluster, place, "a", "1")
    async with following(proxied, place) as follower:
        await follower.until({"a": "1"})
        for number in range(3):
            proxy.refuse = True
            proxy.cut()
            await put(cluster, place, f"b{number}", "1")
            await cluster.delete(CONFIG_MAPS, f"b{number}", place)
            await put(cluster, place, "a", f"again {number}")
            await proxy.next_attempt()  # at least one try is refused
            proxy.refuse = False
            await follower.until({"a": f"again {number}"})
        assert follower.told() == ["ADDED a", "SYNC"] + [
            told for number in range(3) for told in (f"ADDED b{number}", f"DELETED b{number}", "MODIFIED a")
        ], "every change once, and no second list"


async def test_a_watch_outlives_its_own_time_limit(api_server: LocalStack, cluster: Cluster, place: str) -> None:
    settings = ClusterSettings(kubeconfig=api_server.kubeconfig, watch_timeout=1)
    async with Cluster.connect(settings) as brief, following(brief, place) as follower:
        await follower.until({})
        for number in range(8):
            await put(cluster, place, "a", str(number))
            await follower.until({"a": str(number)})
            await asyncio.sleep(0.4)
        assert follower.told() == ["SYNC", "ADDED a"] + ["MODIFIED a"] * 7


async def test_a_silent_connection_is_given_up(
    api_server: LocalStack,
    cluster: Cluster,
    proxy: TcpProxy,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("modelyard.cluster.watching._GRACE", 1.0)
    settings = ClusterSettings(kubeconfig=proxy.kubeconfig(api_server.kubeconfig, tmp_path), watch_timeout=1)
    async with Cluster.connect(settings) as proxied, following(proxied, place) as follower:
        await follower.until({})
        proxy.stall()
        await put(cluster, place, "a", "1")
        await proxy.next_attempt()
        proxy.resume()
        await follower.until({"a": "1"})


async def test_a_killed_server_is_followed_again(api_server: LocalStack, cluster: Cluster, place: str) -> None:
    await put(cluster, place, "a", "1")
    await put(cluster, place, "b", "1")
    async with following(cluster, place) as follower:
        await follower.until({"a": "1", "b": "1"})
        before = len(follower.events)
        async with restarted(api_server):
            pass
        await put(cluster, place, "a", "2")
        await cluster.delete(CONFIG_MAPS, "b", place)
        await put(cluster, place, "c", "1")
        await follower.until({"a": "2", "c": "1"})
        changes = [told for told in follower.told(before) if told != "SYNC"]
        assert sorted(changes) == ["ADDED c", "DELETED b", "MODIFIED a"]


async def test_after_a_lost_history_the_difference_is_told(
    api_server: LocalStack, cluster: Cluster, proxied: Cluster, proxy: TcpProxy, place: str
) -> None:
    for name in ("changed", "gone", "replaced", "same"):
        await put(cluster, place, name, "1")
    async with following(proxied, place) as follower:
        await follower.until(dict.fromkeys(("changed", "gone", "replaced", "same"), "1"))
        before = len(follower.events)
        proxy.refuse = True
        proxy.cut()
        await put(cluster, place, "changed", "2")
        await cluster.delete(CONFIG_MAPS, "gone", place)
        await cluster.delete(CONFIG_MAPS, "replaced", place)
        await put(cluster, place, "replaced", "2")
        await put(cluster, place, "new", "1")
        # Neither etcd nor the restarted server's cache remembers what the watch has missed.
        await compact(api_server)
        async with restarted(api_server):
            pass
        proxy.refuse = False
        await follower.until({"changed": "2", "replaced": "2", "new": "1", "same": "1"}, syncs=2)
        told = follower.told(before)
        assert told[-1] == "SYNC"
        assert sorted(told[:-1]) == [
            "ADDED new",
            "ADDED replaced",
            "DELETED gone",
            "DELETED replaced",
            "MODIFIED changed",
        ]
        assert told.index("DELETED replaced") < told.index("ADDED replaced")


async def test_what_waiting_does_not_cure_is_raised(cluster: Cluster) -> None:
    with pytest.raises(UnknownKind, match="list gadgets"):
        async for _ in cluster.watch(ResourceType("nobody.example", "v1", "Gadget", "gadgets", True)):
            pass


async def test_a_watch_is_cancellable_anywhere(cluster: Cluster, proxied: Cluster, proxy: TcpProxy, place: str) -> None:
    async def follow(through: Cluster) -> None:
        async for _ in through.watch(WIDGETS, place):
            pass

    idle = asyncio.create_task(follow(cluster))
    proxy.refuse = True
    reconnecting = asyncio.create_task(follow(proxied))
    await asyncio.sleep(0.5)
    for task in (idle, reconnecting):
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
