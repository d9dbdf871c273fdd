"""The lists of one tick: asked for once, failing for everybody, not taken away by whoever gives up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from modelyard.autoscaling.live.reading import NAMESPACE_LISTS, Reader
from modelyard.cluster import CONFIG_MAPS, Cluster, ClusterSettings, NotFound, ResourceType, UnknownKind

pytestmark = pytest.mark.integration


class Counting(Cluster):
    """A connection that notes what is listed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.listed: list[tuple[str, str | None]] = []

    async def list(self, type: ResourceType, namespace: str | None = None, *more: Any, **options: Any) -> Any:
        self.listed.append((type.kind, namespace))
        return await super().list(type, namespace, *more, **options)


@pytest.fixture
async def counting(control_plane_cluster: Cluster, namespace: str) -> Any:
    settings: ClusterSettings = control_plane_cluster.settings
    body = {"metadata": {"name": "one", "namespace": namespace}, "data": {"a": "b"}}
    await control_plane_cluster.create(CONFIG_MAPS, body, namespace)
    async with Counting.connect(settings) as cluster:
        yield cluster


def named(items: list[dict[str, Any]]) -> list[str]:
    return [item["metadata"]["name"] for item in items if item["metadata"]["name"] == "one"]


async def test_a_list_is_asked_for_once_and_with_other_options_again(counting: Counting, namespace: str) -> None:
    async with Reader(counting) as reader:
        lists = await asyncio.gather(*(reader.list(CONFIG_MAPS, [namespace]) for _ in range(3)))
        assert [named(items) for items in lists] == [["one"]] * 3
        assert counting.listed == [("ConfigMap", namespace)]
        assert named(await reader.list(CONFIG_MAPS, [namespace], field_selector="metadata.name=two")) == []
        await reader.list(CONFIG_MAPS, [namespace], cached=True)
        assert len(counting.listed) == 3
    async with Reader(counting) as reader:
        await reader.list(CONFIG_MAPS, [namespace])
    assert len(counting.listed) == 4


async def test_many_namespaces_are_one_list(counting: Counting, namespace: str) -> None:
    async with Reader(counting) as reader:
        spaces = [namespace, *(f"no-such-{n}" for n in range(NAMESPACE_LISTS))]
        items = await reader.list(CONFIG_MAPS, spaces)
        assert {item["metadata"]["namespace"] for item in items} == {namespace}
        assert named(items) == ["one"]
        assert counting.listed == [("ConfigMap", None)]


async def test_a_failure_is_everybodys(counting: Counting, namespace: str) -> None:
    missing = ResourceType("example.invalid", "v1", "things", "Thing", True)
    async with Reader(counting) as reader:
        for _ in range(2):
            with pytest.raises((NotFound, UnknownKind)):
                await reader.list(missing, [namespace])
        assert len(counting.listed) == 1
        assert named(await reader.list(CONFIG_MAPS, [namespace])) == ["one"]


async def test_who_gives_up_takes_nothing_from_the_others(counting: Counting, namespace: str) -> None:
    async with Reader(counting) as reader:
        first = asyncio.create_task(reader.list(CONFIG_MAPS, [namespace]))
        second = asyncio.create_task(reader.list(CONFIG_MAPS, [namespace]))
        await asyncio.sleep(0)
        first.cancel()
        assert named(await second) == ["one"]
        assert counting.listed == [("ConfigMap", namespace)]


async def test_nothing_goes_on_after_the_tick(counting: Counting, namespace: str) -> None:
    before = asyncio.all_tasks()
    async with Reader(counting) as reader:
        waiting = asyncio.create_task(reader.list(CONFIG_MAPS, [namespace]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() <= before
