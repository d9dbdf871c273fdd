"""What is planned when: nothing while nothing moves, one bad object alone, each namespace within its share of time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fleet_fixture import eventually
from scripted_api import ScriptedApi, scripted_api

from modelyard.cluster import Cluster
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.kernel import mirror as mirror_module
from modelyard.reconcile.kernel.mirror import Mirror
from modelyard.reconcile.kernel.survey import Survey
from modelyard.reconcile.plans.plan import Plan, ServedKind, Status, Subject, Want, World


class Wish(NamedTuple):
    subject: Subject
    state: str

    @property
    def key(self) -> Key:
        return self.subject.key


def parse(obj: Mapping[str, Any]) -> Wish:
    return Wish(Subject.of(CONFIG_MAPS, obj), obj["data"]["x"])


class Wishes:
    """Every object whose state is ``due`` needs a write, and one whose state is ``awaited`` has to wait."""

    name = "wishes"
    about = CONFIG_MAPS
    wants = (Want(CONFIG_MAPS, parse),)

    def __init__(self, cost: float = 0.0) -> None:
        self.asked: list[str] = []
        self.now = 0.0
        self._cost = cost

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        self.asked.append(str(key))
        self.now += self._cost
        one = world[CONFIG_MAPS].get(key)
        if one is None or one.state == "not ours":
            return None
        if one.state == "broken":
            raise RuntimeError("a bug")
        return Plan(
            one.subject,
            status=Status({"a": 1}) if one.state == "due" else None,
            awaits=("time",) if one.state == "awaited" else (),
        )

    def heard(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ScriptedApi, Cluster]]:
    monkeypatch.setattr(mirror_module, "OWN_WRITE_WITHIN", 60.0)  # a watch of a busy machine is late
    async with scripted_api(tmp_path, watch_patience=0) as (api, cluster):
        await api.put("a", "one", x="fine")
        await api.put("b", "one", x="fine")
        yield api, cluster


def keys(found: Mapping[Any, list[Plan]]) -> list[str]:
    return [str(plan.subject.key) for plans in found.values() for plan in plans]


async def test_nothing_is_asked_or_planned_while_nothing_moves(served: tuple[ScriptedApi, Cluster]) -> None:
    api, cluster = served
    wishes = Wishes()
    async with Mirror(cluster) as mirror:
        mirror.follow()
        survey = Survey(mirror, [wishes])
        assert keys(await survey.look(0)) == []
        assert wishes.heard() == ["a/one", "b/one"]
        api.asked("list")
        assert await survey.look(1) == {}
        assert (wishes.heard(), api.asked("list")) == ([], [])
        await api.put("b", "one", x="due")
        await eventually(lambda: mirror.store(Wishes.wants[0]).by("namespace", "b")[0].state == "due", "the watch")
        assert keys(await survey.look(2)) == ["b/one"]
        assert keys(await survey.look(3)) == ["b/one"], "it is due until it is done"


class Deadlines(Wishes):
    """Every object has to be looked at again a minute later."""

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        plan = super().plan(key, world, now)
        return plan and replace(plan, due=now + 60)


async def test_what_waits_for_a_moment_is_planned_again_when_the_clock_was_set_back(
    served: tuple[ScriptedApi, Cluster],
) -> None:
    _, cluster = served
    deadlines = Deadlines()
    async with Mirror(cluster) as mirror:
        survey = Survey(mirror, [deadlines])
        for moment, asked in ((7200, True), (7230, False), (7228, False), (0, True), (30, False), (60, True)):
            await survey.look(moment)
            assert bool(deadlines.heard()) is asked, moment


async def test_who_waits_is_asked_each_time(served: tuple[ScriptedApi, Cluster]) -> None:
    api, cluster = served
    await api.put("a", "one", x="awaited")
    async with Mirror(cluster) as mirror:
        survey = Survey(mirror, [Wishes()])
        assert keys(await survey.look(0)) == keys(await survey.look(1)) == ["a/one"]


async def test_an_object_that_cannot_be_planned_stops_no_other(
    served: tuple[ScriptedApi, Cluster], caplog: pytest.LogCaptureFixture
) -> None:
    api, cluster = served
    await api.put("a", "one", x="broken")
    await api.put("a", "two", x="due")
    await api.put("c", "one", x="not ours")
    async with Mirror(cluster) as mirror:
        survey = Survey(mirror, [Wishes()])
        with caplog.at_level(logging.WARNING):
            assert keys(await survey.look(0)) == keys(await survey.look(1)) == ["a/two"]
    told = [record.message for record in caplog.records if record.name == "modelyard.reconcile.kernel.survey"]
    assert told == ["ConfigMap a/one cannot be planned: RuntimeError: a bug"]


async def test_a_namespace_takes_its_share_of_the_time_and_goes_on_where_it_left_off(
    served: tuple[ScriptedApi, Cluster],
) -> None:
    api, cluster = served
    for number in range(4):
        await api.put("greedy", f"n{number}", x="fine")
    wishes = Wishes(cost=1.0)
    async with Mirror(cluster) as mirror:
        survey = Survey(mirror, [wishes], budget=1.5, clock=lambda: wishes.now)
        await survey.look(0)
        assert wishes.heard() == ["a/one", "b/one", "greedy/n0", "greedy/n1"]
        await survey.look(1)
        assert wishes.heard() == ["greedy/n2", "greedy/n3"], "who is settled gives way"
        assert await survey.look(2) == {}
        assert wishes.heard() == []


async def test_a_lifecycle_that_may_not_see_what_it_needs_is_left_out_and_says_so_once(
    served: tuple[ScriptedApi, Cluster], caplog: pytest.LogCaptureFixture
) -> None:
    api, cluster = served
    api.forbidden = {("list", "")}
    wishes = Wishes()
    async with Mirror(cluster) as mirror:
        survey = Survey(mirror, [wishes])
        with caplog.at_level(logging.WARNING):
            assert await survey.look(0) == await survey.look(1) == {}
        told = [record.name for record in caplog.records if record.name.startswith("modelyard")]
        assert told == ["modelyard.reconcile.kernel.survey"]
        assert "wishes: nothing is told" in caplog.text
        assert wishes.heard() == []
        api.forbidden = set()
        await survey.look(2)
        assert wishes.heard() == ["a/one", "b/one"]


async def test_a_namespace_that_may_not_be_read_stops_no_other(
    served: tuple[ScriptedApi, Cluster], caplog: pytest.LogCaptureFixture
) -> None:
    api, cluster = served
    await api.put("a", "one", x="due")
    api.forbidden = {("list", "b")}
    wishes = Wishes()
    async with Mirror(cluster) as mirror:
        survey = Survey(mirror, [wishes], ["a", "b"])
        with caplog.at_level(logging.WARNING):
            assert keys(await survey.look(0)) == keys(await survey.look(1)) == ["a/one"]
        assert wishes.heard() == ["a/one", "a/one"]
        (told,) = [record.message for record in caplog.records if record.name == "modelyard.reconcile.kernel.survey"]
        assert told.startswith("wishes: nothing in b is told")
        await api.put("a", "one", x="fine")
        await survey.look(2)
        await survey.look(3)
        assert wishes.heard() == ["a/one"], "what settled is not asked again"
        api.forbidden = set()
        await survey.look(4)
        assert wishes.heard() == ["a/one", "b/one"]


async def test_many_namespaces_are_read_one_by_one_where_the_cluster_may_not_be(
    served: tuple[ScriptedApi, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "NAMESPACE_LISTS", 1)
    api, cluster = served
    await api.put("a", "one", x="due")
    api.forbidden = {("list", ""), ("list", "b")}
    async with Mirror(cluster) as mirror:
        mirror.follow()
        survey = Survey(mirror, [Wishes()], ["a", "b"])
        assert keys(await survey.look(0)) == keys(await survey.look(1)) == ["a/one"]


class Adapted(Wishes):
    """Wants nothing but itself, and asks for a kind that the server has, and for one that it has not."""

    asks = (ServedKind("v1", "ConfigMap"), ServedKind("v1beta1", "Nothing"))
    served: frozenset[ServedKind] = frozenset()


async def test_a_lifecycle_is_told_which_kinds_there_are_before_it_wants_anything(
    served: tuple[ScriptedApi, Cluster],
) -> None:
    api, cluster = served
    await api.put("a", "one", x="due")
    adapted = Adapted()
    async with Mirror(cluster) as mirror:
        survey = Survey(mirror, [adapted])
        assert keys(await survey.look(0)) == ["a/one"]
        assert adapted.served == {ServedKind("v1", "ConfigMap")}
