"""A deeply nested object of one tenant is its own problem, and keeps nothing of another tenant from being planned."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fleet_fixture import eventually
from scripted_api import SERVED, ScriptedApi, connected, scripted_api

from modelyard.cluster import Cluster, Unavailable
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.kernel import mirror as mirrors
from modelyard.reconcile.kernel.mirror import Mirror, Store
from modelyard.reconcile.kernel.survey import Survey
from modelyard.reconcile.plans.plan import Plan, Subject, Want, World

EVIL, VICTIM = Key("evil", "deep"), Key("victim", "one")
DEPTHS = [300, 1100, 9000]
PLACES = ["data", "status", "metadata.annotations", "spec.list"]


class Everything:
    """Every object waits for something."""

    name = "everything"
    about = CONFIG_MAPS
    wants = (Want(CONFIG_MAPS, lambda obj: Subject.of(CONFIG_MAPS, obj)),)

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        subject = world[CONFIG_MAPS].get(key)
        return subject and Plan(subject, awaits=("time",))


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ScriptedApi, Cluster]]:
    monkeypatch.setattr(mirrors, "OWN_WRITE_WITHIN", 60.0)  # a watch of a busy machine is late, and withholds nothing
    async with scripted_api(tmp_path, watch_patience=0) as (api, cluster):
        await api.put(*VICTIM, x="1")
        yield api, cluster


def hide(api: ScriptedApi, levels: int, place: str) -> None:
    """From now on, what has the text "deep" in it is nested so deeply at this place."""
    deep = "[" * levels + "]" * levels if place == "spec.list" else '{"a":' * levels + "1" + "}" * levels
    sent = {
        "data": f'"data": {{"x": {deep}}}',
        "status": f'"data": {{"x": "1"}}, "status": {{"detected": {deep}}}',
        "metadata.annotations": f'"data": {{"x": "1"}}, "metadata": {{"namespace": "evil", "name": "deep", '
        f'"uid": "deep", "resourceVersion": "{api.version + 1}", "annotations": {{"a": {deep}}}}}',
        "spec.list": f'"data": {{"x": "1"}}, "spec": {{"list": {deep}}}',
    }
    api.replacements = {'"data": {"x": "deep"}': sent[place]}


def keys(found: Mapping[Any, list[Plan]]) -> list[Key]:
    return sorted(plan.subject.key for plans in found.values() for plan in plans)


def is_left_alone(store: Store[Any]) -> bool:
    return list(store.problems) == [EVIL] and "254 levels deep; make it flatter" in store.problems[EVIL]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("levels", DEPTHS)
async def test_a_deep_object_in_a_list_stops_no_other(
    served: tuple[ScriptedApi, Cluster], levels: int, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    api, cluster = served
    hide(api, levels, place)
    await api.put(*EVIL, x="deep")
    async with Mirror(cluster) as mirror:
        survey = Survey(mirror, [Everything()])
        with caplog.at_level(logging.ERROR):
            assert keys(await survey.look(0)) == [VICTIM]
        assert "ConfigMap evil/deep is left alone" in caplog.text
        assert is_left_alone(mirror.store(Everything.wants[0]))
        await api.put(*EVIL, x="flat")
        assert keys(await survey.look(1)) == [EVIL, VICTIM]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("levels", DEPTHS)
async def test_a_deep_object_in_a_watch_stops_no_other(
    served: tuple[ScriptedApi, Cluster], levels: int, place: str
) -> None:
    api, cluster = served
    async with Mirror(cluster) as mirror:
        mirror.follow()
        survey = Survey(mirror, [Everything()])
        assert keys(await survey.look(0)) == [VICTIM]
        store = mirror.store(Everything.wants[0])
        api.asked("list")
        hide(api, levels, place)
        await api.put(*EVIL, x="deep")
        await eventually(lambda: is_left_alone(store), "the watch")
        await api.put("victim", "two", x="1")
        await eventually(lambda: len(store.all()) == 2, "the watch goes on")
        assert keys(await survey.look(1)) == [VICTIM, Key("victim", "two")]
        await api.delete(*EVIL)
        await eventually(lambda: not store.problems, "it is gone")
        assert api.asked("list") == []


@pytest.mark.parametrize("text", ["<html>", '{"items": [', '{"a":' * 9000])
async def test_an_answer_that_cannot_be_parsed_is_an_error_of_the_cluster(tmp_path: Path, text: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path in SERVED:
            return web.json_response(SERVED[request.path])
        return web.Response(text=text)

    async with connected([web.route("*", "/{path:.*}", answer)], tmp_path) as cluster, Mirror(cluster) as mirror:
        with pytest.raises(Unavailable, match="get ConfigMap victim/one: the answer cannot be parsed"):
            await cluster.get(CONFIG_MAPS, "one", "victim")
        assert await Survey(mirror, [Everything()]).look(0) == {}


async def test_a_deep_object_can_be_read_alone(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path in SERVED:
            return web.json_response(SERVED[request.path])
        return web.Response(text='{"metadata": {"name": "one"}, "spec": ' + '{"a":' * 9000 + "1" + "}" * 9001)

    async with connected([web.route("*", "/{path:.*}", answer)], tmp_path) as cluster:
        assert (await cluster.get(CONFIG_MAPS, "one", "victim"))["metadata"]["name"] == "one"
