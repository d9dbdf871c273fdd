"""The mirror against a real API server: what a round reads is true whatever happens to the watches."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_faults import compact, restarted
from cluster_manifests import config_map
from fleet_fixture import eventually
from noted_lists import Lists
from tcp_proxy import TcpProxy

from modelyard.cluster import Cluster, ClusterError, ClusterSettings, UnknownKind
from modelyard.local.stack import LocalStack
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS, NAMESPACES, ResourceType
from modelyard.reconcile.kernel import mirror as mirrors
from modelyard.reconcile.kernel.mirror import Mirror, Store
from modelyard.reconcile.plans.plan import LARGEST, Want

pytestmark = pytest.mark.integration


def value(obj: dict[str, Any]) -> str | None:
    data: dict[str, str] = obj["data"]
    return data["x"] if data["x"] != "none" else None


WANT = Want(CONFIG_MAPS, value, indexes={"letter": lambda x: x[:1]}, wish=lambda obj: obj["data"].get("wish"))


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> Lists:
    return Lists(monkeypatch)


async def put(cluster: Cluster, place: str, name: str, x: str, **more: str) -> None:
    await cluster.apply(config_map(name, place, x=x, **more))


async def read(mirror: Mirror, *places: str) -> list[str]:
    await mirror.begin()
    return list((await mirror.read(WANT, places)).all())


async def shows(store: Store[str], expected: list[str]) -> None:
    await eventually(lambda: list(store.all()) == expected, f"{expected}, not {store.all()}")


async def test_without_following_every_round_lists_once(cluster: Cluster, place: str, lists: Lists) -> None:
    await put(cluster, place, "b", "two")
    await put(cluster, place, "a", "one")
    async with Mirror(cluster) as mirror:
        assert await read(mirror, place) == ["one", "two"]
        await put(cluster, place, "a", "three")
        assert (await mirror.read(WANT, [place])).all() == ("one", "two"), "one round, one picture"
        assert await read(mirror, place) == ["three", "two"]
        await cluster.delete(CONFIG_MAPS, "b", place)
        assert await read(mirror, place) == ["three"]
        assert len(lists.take()) == 3


async def test_an_object_is_parsed_once_per_resource_version(cluster: Cluster, place: str) -> None:
    parsed: list[str] = []
    want = Want(CONFIG_MAPS, lambda obj: parsed.append(obj["data"]["x"]) or obj["data"]["x"])
    for name in "ab":
        await put(cluster, place, name, name)
    async with Mirror(cluster) as mirror:
        for _ in range(3):
            await mirror.begin()
            await mirror.read(want, [place])
        assert parsed == ["a", "b"]
        mirror.follow()
        await put(cluster, place, "a", "new")
        store = mirror.store(want, [place])
        await eventually(lambda: store.get(Key(place, "a")) == "new", "the change")
        await mirror.begin()
        await mirror.read(want, [place])
        assert parsed == ["a", "b", "new"]


async def test_indexes_follow_the_objects(cluster: Cluster, place: str) -> None:
    for name, x in (("a", "red"), ("b", "rust"), ("c", "blue"), ("d", "none")):
        await put(cluster, place, name, x)
    async with Mirror(cluster) as mirror:
        await read(mirror, place)
        mirror.follow()
        store = mirror.store(WANT, [place])
        assert store.by("letter", "r") == ("red", "rust")
        assert store.get(Key(place, "d")) is None
        await put(cluster, place, "a", "black")
        await cluster.delete(CONFIG_MAPS, "b", place)
        await put(cluster, place, "d", "brown")
        await shows(store, ["black", "blue", "brown"])
        assert store.by("letter", "b") == ("black", "blue", "brown")
        assert store.by("letter", "r") == ()
        assert store.by("namespace", place) == store.all()


async def test_followed_and_sound_a_round_lists_nothing(cluster: Cluster, place: str, lists: Lists) -> None:
    async with Mirror(cluster) as mirror:
        await read(mirror, place)
        mirror.follow()
        lists.take()
        for number in range(5):
            await put(cluster, place, "a", f"{number}")
            assert await read(mirror, place) == [f"{number}"], "what we wrote ourselves is there"
        assert lists.take() == []


async def test_after_a_cut_the_next_round_lists(
    cluster: Cluster, proxied: Cluster, proxy: TcpProxy, place: str, lists: Lists
) -> None:
    async with Mirror(proxied) as mirror:
        await read(mirror, place)
        mirror.follow()
        await put(cluster, place, "a", "1")
        await shows(mirror.store(WANT, [place]), ["1"])
        proxy.refuse = True
        proxy.cut()
        await proxy.next_attempt()
        await put(cluster, place, "a", "2")
        with pytest.raises(ClusterError):
            await read(mirror, place)
        proxy.refuse = False
        lists.take()
        assert await read(mirror, place) == ["2"]
        assert len(lists.take()) == 1
        await put(cluster, place, "a", "3")
        await shows(mirror.store(WANT, [place]), ["3"])
        assert await read(mirror, place) == ["3"]
        assert lists.take() == [], "it follows again"


async def test_a_silent_watch_is_not_believed(
    cluster: Cluster, place: str, lists: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Mirror(cluster) as mirror:
        await read(mirror, place)
        mirror.follow()
        lists.take()
        monkeypatch.setattr(mirrors, "SILENCE", 0.0)
        await put(cluster, place, "a", "1")
        assert await read(mirror, place) == ["1"]
        assert len(lists.take()) == 1


async def test_a_distrusted_mirror_lists_and_then_follows_again(cluster: Cluster, place: str, lists: Lists) -> None:
    async with Mirror(cluster) as mirror:
        await read(mirror, place)
        mirror.follow()
        lists.take()
        mirror.distrust()
        await read(mirror, place)
        assert len(lists.take()) == 1
        await read(mirror, place)
        assert lists.take() == []


async def test_a_killed_server_and_a_lost_history(api_server: LocalStack, cluster: Cluster, place: str) -> None:
    # Who tries again may succeed: the server is back in seconds.
    settings = ClusterSettings(kubeconfig=api_server.kubeconfig, retry_steps=1)
    for name in ("gone", "kept", "made anew"):
        await put(cluster, place, name.replace(" ", "-"), name)
    async with Cluster.connect(settings) as mine, Mirror(mine) as mirror:
        assert await read(mirror, place) == ["gone", "kept", "made anew"]
        mirror.follow()

        async def fails() -> bool:
            try:
                await read(mirror, place)
            except ClusterError:
                return True
            return False

        async with restarted(api_server):
            # At once, or as soon as the end of its watch has arrived.
            await eventually(fails, "a round without the server has no picture")
        await cluster.delete(CONFIG_MAPS, "gone", place)
        await cluster.delete(CONFIG_MAPS, "made-anew", place)
        await put(cluster, place, "made-anew", "new")
        await compact(api_server)

        async def true() -> bool:
            try:
                return await read(mirror, place) == ["kept", "new"]
            except ClusterError:
                return False

        await eventually(true, "the picture is true again", seconds=120)
        await put(cluster, place, "kept", "changed")
        await shows(mirror.store(WANT, [place]), ["changed", "new"])


async def test_while_nobody_reads_the_watch_comes_back_by_itself(
    cluster: Cluster, proxied: Cluster, proxy: TcpProxy, place: str
) -> None:
    async with Mirror(proxied, retry_after=0.1) as mirror:
        mirror.follow()
        store = mirror.store(WANT, [place])
        assert not mirror.synced
        await eventually(lambda: mirror.synced, "the first list")
        await put(cluster, place, "a", "1")
        await shows(store, ["1"])
        proxy.refuse = True
        proxy.cut()
        await proxy.next_attempt()
        await cluster.delete(CONFIG_MAPS, "a", place)
        await put(cluster, place, "b", "2")
        assert store.all() == ("1",), "what was known is kept"
        proxy.refuse = False
        await shows(store, ["2"])


async def test_one_bad_object_stops_no_other(cluster: Cluster, place: str, caplog: pytest.LogCaptureFixture) -> None:
    await put(cluster, place, "good", "1")
    await cluster.apply(config_map("bad", place, y="?"))
    async with Mirror(cluster) as mirror:
        for _ in range(2):
            assert await read(mirror, place) == ["1"]
        store = mirror.store(WANT, [place])
        assert list(store.problems) == [Key(place, "bad")]
        assert len([r for r in caplog.records if "left alone" in r.message]) == 1
        await put(cluster, place, "bad", "2")
        assert await read(mirror, place) == ["2", "1"]
        assert not store.problems


async def test_an_object_that_is_too_large_is_not_parsed_however_it_comes(cluster: Cluster, place: str) -> None:
    parsed: list[int] = []
    want = Want(CONFIG_MAPS, lambda obj: parsed.append(len(obj["data"]["x"])) or obj["data"]["x"])
    await put(cluster, place, "good", "1")
    await put(cluster, place, "large", "x" * LARGEST)
    async with Mirror(cluster) as mirror:
        await mirror.begin()
        store = await mirror.read(want, [place])
        assert (store.all(), list(store.problems)) == (("1",), [Key(place, "large")])
        mirror.follow()
        await put(cluster, place, "good", "2")
        await put(cluster, place, "large", "y" * LARGEST)
        await put(cluster, place, "late", "3")
        await shows(store, ["2", "3"])
        assert str(LARGEST) in store.problems[Key(place, "large")]
        await put(cluster, place, "large", "4")
        await shows(store, ["2", "4", "3"])
        assert not store.problems
    assert max(parsed) == 1


async def test_only_what_a_person_wishes_wakes(cluster: Cluster, place: str) -> None:
    await put(cluster, place, "a", "1", wish="1")
    async with Mirror(cluster) as mirror:
        await read(mirror, place)
        mirror.follow()
        store = mirror.store(WANT, [place])
        assert not await mirror.wait(0)
        await put(cluster, place, "a", "2", wish="1")
        await shows(store, ["2"])
        assert not await mirror.wait(0)
        await put(cluster, place, "b", "nobody wants it otherwise")
        await shows(store, ["2", "nobody wants it otherwise"])
        assert not await mirror.wait(0)
        for name, wish in (("a", "2"), ("b", "1"), ("c", "1"), ("a", None)):
            if wish is None:
                await cluster.delete(CONFIG_MAPS, name, place)
            else:
                await put(cluster, place, name, "2", wish=wish)
            assert await mirror.wait(120)
            assert not await mirror.wait(0), "and is then forgotten"


async def test_what_nobody_asks_for_is_forgotten(cluster: Cluster, place: str, lists: Lists) -> None:
    other = f"{place}-b"
    await cluster.create(NAMESPACES, {"metadata": {"name": other}})
    await put(cluster, place, "a", "1")
    await put(cluster, other, "a", "2")
    async with Mirror(cluster) as mirror:
        assert await read(mirror, place, other) == ["1", "2"]
        mirror.follow()
        assert await read(mirror, place) == ["1", "2"], "what the last round asked for is still there"
        assert await read(mirror, place) == ["1"]
        lists.take()
        assert await read(mirror, place, other) == ["1", "2"]
        assert len(lists.take()) == 1


async def test_many_namespaces_are_one_list(
    cluster: Cluster, place: str, lists: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "NAMESPACE_LISTS", 1)
    others = [f"{place}-{letter}" for letter in "bcd"]
    for number, other in enumerate(others):
        await cluster.create(NAMESPACES, {"metadata": {"name": other}})
        await put(cluster, other, "a", str(number))
    await put(cluster, place, "a", "mine")
    async with Mirror(cluster) as mirror:
        assert await read(mirror, place, others[0]) == ["mine", "0"]
        assert len(lists.take()) == 1
        mirror.follow()
        await put(cluster, others[0], "a", "10")
        await put(cluster, others[1], "a", "unasked")
        assert await read(mirror, place, others[0]) == ["mine", "10"]
        assert lists.take() == []
        assert await read(mirror, *others) == ["mine", "10", "unasked", "2"]
        assert len(lists.take()) == 1
        assert list((await mirror.read(WANT, others)).within(others)) == ["10", "unasked", "2"]
        await cluster.delete(CONFIG_MAPS, "a", others[2])
        await shows(mirror.store(WANT, others), ["mine", "10", "unasked"])


async def test_a_kind_that_is_not_served_is_an_error_of_its_own(
    cluster: Cluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobodys: Want[str] = Want(ResourceType("nobody.example", "v1", "Gadget", "gadgets", True), value)
    async with Mirror(cluster, retry_after=0.1) as mirror:
        with pytest.raises(UnknownKind):
            await mirror.read(nobodys, [place])
        mirror.follow()
        store = mirror.store(WANT, [place])
        await put(cluster, place, "a", "1")
        await shows(store, ["1"])
        await eventually(lambda: mirror.synced, "all that there is")
        await mirror.begin()
        with pytest.raises(UnknownKind):
            await mirror.read(nobodys, [place], partial=True)
        await mirror.read(WANT, [place])
        assert isinstance(mirror.store(nobodys, [place]).errors[place], UnknownKind)
        assert not store.errors
