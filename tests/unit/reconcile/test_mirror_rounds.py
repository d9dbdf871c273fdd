"""Rounds of a mirror against a scripted server: rights that are partly missing, watches that lie, cut or withhold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fleet_fixture import eventually
from scripted_api import ScriptedApi, scripted_api

from modelyard.cluster import Cluster, Forbidden
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.kernel import mirror as mirrors
from modelyard.reconcile.kernel.mirror import Mirror
from modelyard.reconcile.plans.plan import Want


def value(obj: dict[str, Any]) -> str:
    data: dict[str, str] = obj["data"]
    return data["x"]


WANT = Want(CONFIG_MAPS, value, wish=lambda obj: obj["data"]["x"])


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch of a busy machine is late, and withholds nothing."""
    monkeypatch.setattr(mirrors, "OWN_WRITE_WITHIN", 60.0)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ScriptedApi, Cluster]]:
    async with scripted_api(tmp_path, watch_patience=0) as (api, cluster):
        for namespace in ("a", "b", "c"):
            await api.put(namespace, "one", x=f"{namespace}1")
        yield api, cluster


async def round_of(mirror: Mirror, *spaces: str, partial: bool = False) -> tuple[str, ...]:
    await mirror.begin()
    return (await mirror.read(WANT, spaces, partial=partial)).all()


async def test_followed_a_round_costs_nothing_and_knows_our_writes(served: tuple[ScriptedApi, Cluster]) -> None:
    api, cluster = served
    async with Mirror(cluster) as mirror:
        assert await round_of(mirror) == ("a1", "b1", "c1")
        mirror.follow()
        assert api.asked("list") == [""]
        for number in range(20):
            await cluster.merge_patch(CONFIG_MAPS, "one", {"data": {"x": str(number)}}, "b")
            assert await round_of(mirror) == ("a1", str(number), "c1")
        assert api.asked("list") == []


async def test_our_own_writes_are_listed_where_the_watch_withholds_them(
    served: tuple[ScriptedApi, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "OWN_WRITE_WITHIN", 0.05)
    api, cluster = served
    async with Mirror(cluster) as mirror:
        await round_of(mirror, "a")
        mirror.follow()
        await eventually(lambda: api.asked("watch"), "the watch")
        api.withheld = True
        await cluster.merge_patch(CONFIG_MAPS, "one", {"data": {"x": "elsewhere"}}, "b")
        await round_of(mirror, "a")
        api.asked("list")
        await cluster.merge_patch(CONFIG_MAPS, "one", {"data": {"x": "mine"}}, "a")
        assert await round_of(mirror, "a") == ("mine",)
        assert api.asked("list") == ["a"]


async def test_what_a_late_watch_still_has_to_tell_does_not_undo_the_list(
    served: tuple[ScriptedApi, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "SILENCE", 0.0)
    api, cluster = served
    async with Mirror(cluster) as mirror:
        await round_of(mirror)
        mirror.follow()
        await eventually(lambda: api.asked("watch"), "the watch")
        api.withheld = True
        await api.put("a", "one", x="old")
        await api.delete("b", "one")
        await api.put("b", "one", x="anew")
        assert await round_of(mirror) == ("old", "anew", "c1")
        await api.put("a", "one", x="new")
        assert await round_of(mirror) == ("new", "anew", "c1")
        await api.released()
        await api.put("c", "one", x="last")
        store = mirror.store(WANT)
        await eventually(lambda: store.get(Key("c", "one")) == "last", "the watch speaks")
        assert store.all() == ("new", "anew", "last")


async def test_a_cut_watch_is_followed_by_a_list_in_the_next_round_only(served: tuple[ScriptedApi, Cluster]) -> None:
    api, cluster = served
    async with Mirror(cluster) as mirror:
        await round_of(mirror)
        mirror.follow()
        await eventually(lambda: api.asked("watch"), "the watch")
        api.asked("list")
        await api.cut()
        await eventually(lambda: api.asked("watch"), "it watches again by itself")
        await api.delete("b", "one")
        assert await round_of(mirror) == ("a1", "c1")
        assert api.asked("list") == [""]
        assert await round_of(mirror) == ("a1", "c1")
        assert api.asked("list") == []


async def test_a_history_that_was_dropped_is_told_as_the_difference(served: tuple[ScriptedApi, Cluster]) -> None:
    api, cluster = served
    async with Mirror(cluster) as mirror:
        await round_of(mirror)
        mirror.follow()
        await eventually(lambda: api.asked("watch"), "the watch")
        api.withheld = True
        await api.delete("a", "one")
        await api.put("d", "two", x="d2")
        api.oldest = api.version
        api.withheld = False
        await api.cut()
        store = mirror.store(WANT)
        await eventually(lambda: store.all() == ("b1", "c1", "d2"), "the difference")


async def test_listing_takes_the_place_of_a_watch_that_is_forbidden(served: tuple[ScriptedApi, Cluster]) -> None:
    api, cluster = served
    api.forbidden.add(("watch", ""))
    async with Mirror(cluster, retry_after=60) as mirror:
        await round_of(mirror)
        mirror.follow()
        for number in range(3):
            await api.put("a", "one", x=str(number))
            assert await round_of(mirror) == (str(number), "b1", "c1")
    async with Mirror(cluster, retry_after=0.05) as mirror:
        mirror.follow()
        store = mirror.store(WANT)
        await eventually(lambda: store.all() == ("2", "b1", "c1"), "the list")
        await api.put("a", "one", x="again")
        await eventually(lambda: store.all() == ("again", "b1", "c1"), "the list, time and again")


async def test_a_forbidden_namespace_is_its_own_problem(
    served: tuple[ScriptedApi, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, cluster = served
    api.forbidden |= {("list", "b"), ("list", "")}
    for limit in (20, 1):
        monkeypatch.setattr(mirrors, "NAMESPACE_LISTS", limit)
        for following in (False, True):
            async with Mirror(cluster) as mirror:
                if following:
                    mirror.follow()
                for _ in range(2):
                    with pytest.raises(Forbidden):
                        await round_of(mirror, "a", "b", "c")
                    assert await round_of(mirror, "a", "b", "c", partial=True) == ("a1", "c1")
                    store = mirror.store(WANT, ["a", "c"])
                    assert "b" in store.errors
                api.forbidden.remove(("list", "b"))
                assert await round_of(mirror, "a", "b", "c") == ("a1", "b1", "c1")
                assert "b" not in store.errors
                api.forbidden.add(("list", "b"))


async def test_a_list_is_shared_by_who_asks_at_once(served: tuple[ScriptedApi, Cluster]) -> None:
    api, cluster = served
    async with Mirror(cluster) as mirror:
        await asyncio.gather(*(mirror.read(WANT, ["a", "b"]) for _ in range(3)), mirror.read(WANT, ["b", "c"]))
        assert sorted(api.asked("list")) == ["a", "b", "c"]
        store = mirror.store(WANT, ["a"])
        assert store.within(["c", "a"]) == ("a1", "c1")
        assert store.within("abc") == store.all()


async def test_a_wider_question_asks_for_the_whole_and_loses_nothing_meanwhile(
    served: tuple[ScriptedApi, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "NAMESPACE_LISTS", 1)
    api, cluster = served
    async with Mirror(cluster) as mirror:
        assert await round_of(mirror, "a", "b") == ("a1", "b1")
        mirror.follow()
        widened = asyncio.create_task(round_of(mirror, "b", "c"))
        store = mirror.store(WANT, ["a", "b"])
        while not widened.done():
            assert store.within("ab") == ("a1", "b1")
            await asyncio.sleep(0)
        assert widened.result() == ("a1", "b1", "c1")
        await api.delete("c", "one")
        await eventually(lambda: store.all() == ("a1", "b1"), "the watch goes on")
        assert await round_of(mirror) == ("a1", "b1")


async def test_a_failure_is_everybodys_in_its_round(served: tuple[ScriptedApi, Cluster]) -> None:
    api, cluster = served
    api.forbidden.add(("list", "b"))
    async with Mirror(cluster) as mirror:
        for _ in range(2):
            with pytest.raises(Forbidden):
                await mirror.read(WANT, ["b"])
        assert api.asked("list") == ["b"]
        assert (await mirror.read(WANT, ["a"])).within("a") == ("a1",)


async def test_who_gives_up_takes_nothing_from_the_others(served: tuple[ScriptedApi, Cluster]) -> None:
    _, cluster = served
    async with Mirror(cluster) as mirror:
        first = asyncio.create_task(mirror.read(WANT, ["a"]))
        second = asyncio.create_task(mirror.read(WANT, ["a"]))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).all() == ("a1",)


async def test_watches_leave_connections_for_everything_else(tmp_path: Path) -> None:
    async with scripted_api(tmp_path, max_connections=4) as (api, cluster), Mirror(cluster) as mirror:
        mirror.follow()
        spaces = [f"space-{number}" for number in range(8)]
        for number in range(3):
            for space in spaces:
                await api.put(space, "one", x=f"{space} {number}")
            assert len(await round_of(mirror, *spaces)) == 8
            await cluster.merge_patch(CONFIG_MAPS, "one", {"data": {"x": "mine"}}, "space-7")
            assert (await round_of(mirror, *spaces))[7] == "mine"
        assert len(api.asked("watch")) == 2
        await round_of(mirror, "space-7")
        await round_of(mirror, "space-7")
        await eventually(lambda: api.asked("watch") == ["space-7"], "who is not asked for any more makes room")


async def test_what_may_not_be_listed_takes_no_connection_from_the_others(tmp_path: Path) -> None:
    async with scripted_api(tmp_path, max_connections=4) as (api, cluster), Mirror(cluster) as mirror:
        await api.put("z", "one", x="z1")
        refused = [f"refused-{number}" for number in range(8)]
        api.forbidden |= {("list", space) for space in refused}
        mirror.follow()
        for _ in range(2):
            assert await round_of(mirror, *refused, "z", partial=True) == ("z1",)
        await eventually(lambda: api.asked("watch") == ["z"], "the watch of what can be read")


async def test_an_object_that_cannot_be_read_takes_no_other_with_it(served: tuple[ScriptedApi, Cluster]) -> None:
    api, cluster = served

    def parse(obj: dict[str, Any]) -> str:
        if obj["data"]["x"] == "deep":
            raise RecursionError("maximum recursion depth exceeded")
        return value(obj)

    want = Want(CONFIG_MAPS, parse)
    await api.put("a", "one", x="deep")
    async with Mirror(cluster) as mirror:
        for following in (False, True):
            await mirror.begin()
            assert (await mirror.read(want)).all() == ("b1", "c1")
            if not following:
                mirror.follow()
        await api.put("b", "one", x="deep")
        await api.put("c", "one", x="c2")
        store = mirror.store(want)
        await eventually(lambda: store.all() == ("c2",), "the watch goes on")


async def test_nothing_goes_on_after_the_end(served: tuple[ScriptedApi, Cluster]) -> None:
    _, cluster = served
    async with Mirror(cluster) as mirror:
        await round_of(mirror, "a", "b")
        mirror.follow()
        assert any(task.get_name().startswith("mirror-") for task in asyncio.all_tasks())
    assert not any(task.get_name().startswith("mirror-") for task in asyncio.all_tasks())
