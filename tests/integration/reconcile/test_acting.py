"""What a run does, on a real API server: only while it is named, until all is settled, each object on its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from copying import DONE, Copies

from modelyard.cluster import Cluster
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.kernel import run_view
from modelyard.reconcile.kernel.run_view import Acted, act
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.plan import CLAIM, Plan, World

pytestmark = pytest.mark.integration


class Maps:
    """Parents and children in a namespace of the test's own."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    async def ask(self, name: str, number: int, run: str = "mine") -> None:
        annotations = {"copies": str(number), CLAIM: str(Claim(run, "0" * 12, 1, time.time()))}
        metadata = {"name": name, "labels": {"copies": "parent"}, "annotations": annotations}
        await self.cluster.create(CONFIG_MAPS, {"metadata": metadata}, self.namespace)

    async def annotate(self, name: str, **annotations: str) -> None:
        body = {"metadata": {"annotations": {CLAIM if key == "claim" else key: v for key, v in annotations.items()}}}
        await self.cluster.merge_patch(CONFIG_MAPS, name, body, self.namespace)

    async def annotations(self, name: str) -> dict[str, str]:
        found: dict[str, str] = (await self.cluster.get(CONFIG_MAPS, name, self.namespace))["metadata"]["annotations"]
        return found

    async def children(self) -> list[str]:
        listed = await self.cluster.list(CONFIG_MAPS, self.namespace, "copies=child")
        return sorted(one["metadata"]["name"] for one in listed.items)

    async def act(self, *names: str, run: str = "mine") -> Acted:
        return await act(self.cluster, Copies(), [Key(self.namespace, name) for name in names], run)

    def after_apply(self, monkeypatch: pytest.MonkeyPatch, number: int, then: Callable[[], Any]) -> None:
        """Let something happen after the ``number``-th child was applied."""
        apply, count = self.cluster.apply, [0]

        async def counted(*args: Any, **kwargs: Any) -> Any:
            result = await apply(*args, **kwargs)
            count[0] += 1
            if count[0] == number:
                await then()
            return result

        monkeypatch.setattr(self.cluster, "apply", counted)


@pytest.fixture
def maps(control_plane_cluster: Cluster, namespace: str) -> Maps:
    return Maps(control_plane_cluster, namespace)


async def test_a_run_carries_on_until_its_objects_are_settled(maps: Maps) -> None:
    await maps.ask("a", 2)
    await maps.ask("b", 0)
    acted = await maps.act("a", "b", "gone")
    assert {key.name for key in acted.settled} == {"a", "b", "gone"}
    assert (acted.lost, acted.failed) == (set(), {})
    assert await maps.children() == ["a-0", "a-1"]
    assert (await maps.annotations("a"))[DONE] == "2"
    await maps.annotate("a", copies="1")
    assert {key.name for key in (await maps.act("a")).settled} == {"a"}
    assert await maps.children() == ["a-0"]


class Waiting(Copies):
    """Waits for something else when all is written."""

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        found = super().plan(key, world, now)
        return found and replace(found, awaits=("time",))


async def test_a_run_that_would_only_look_on_leaves_its_place_to_others(maps: Maps) -> None:
    await maps.ask("a", 2)
    acted = await act(maps.cluster, Waiting(), [Key(maps.namespace, "a")], "mine", patience=0.0)
    assert await maps.children() == ["a-0", "a-1"], "not before everything is written"
    assert acted == Acted()


async def test_a_run_that_is_not_named_writes_nothing(maps: Maps) -> None:
    await maps.ask("theirs", 2, run="another")
    await maps.ask("mine", 1)
    acted = await maps.act("theirs", "mine")
    assert {key.name for key in acted.lost} == {"theirs"}
    assert {key.name for key in acted.settled} == {"mine"}
    assert await maps.children() == ["mine-0"]


async def test_a_run_that_loses_its_claim_stops_before_its_next_write(
    maps: Maps, monkeypatch: pytest.MonkeyPatch
) -> None:
    await maps.ask("a", 3)
    claim = str(Claim("another", "0" * 12, 2, time.time()))
    with monkeypatch.context() as patch:
        maps.after_apply(patch, 1, lambda: maps.annotate("a", claim=claim))
        acted = await maps.act("a")
    assert {key.name for key in acted.lost} == {"a"}
    assert await maps.children() == ["a-0"]
    assert DONE not in await maps.annotations("a")
    assert {key.name for key in (await maps.act("a", run="another")).settled} == {"a"}
    assert await maps.children() == ["a-0", "a-1", "a-2"]


async def test_an_object_that_was_made_anew_is_not_the_one_that_was_claimed(
    maps: Maps, monkeypatch: pytest.MonkeyPatch
) -> None:
    await maps.ask("a", 2)

    async def anew() -> None:
        await maps.cluster.delete(CONFIG_MAPS, "a", maps.namespace)
        await maps.ask("a", 0, run="another")

    with monkeypatch.context() as patch:
        maps.after_apply(patch, 1, anew)
        acted = await maps.act("a")
    assert not acted.failed
    assert "a-1" not in await maps.children()


async def test_what_cannot_be_done_is_given_up_with_the_reason_and_stops_no_other(
    maps: Maps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_view, "LONGEST_WAIT", 0.05)
    await maps.ask("a", 1)
    await maps.ask("b", 1)
    await maps.cluster.create(CONFIG_MAPS, {"metadata": {"name": "a-0"}, "data": {"whose": "mine"}}, maps.namespace)
    acted = await maps.act("a", "b")
    assert {key.name: why for key, why in acted.failed.items()} == {
        "a": f"ConfigMap {maps.namespace}/a-0 is there and does not belong to it; left alone"
    }
    assert {key.name for key in acted.settled} == {"b"}
    theirs = await maps.cluster.get(CONFIG_MAPS, "a-0", maps.namespace)
    assert theirs["data"] == {"whose": "mine"}
