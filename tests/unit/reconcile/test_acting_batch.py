"""A run for several objects, of which one waits or cannot even be planned: the others are served all the while."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fleet_fixture import eventually
from scripted_api import scripted_api

from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.kernel.run_view import act, look
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.plan import Plan, Subject, Want, World

RUN = "ConfigMap/batch-of-3/0123"


class Thing(NamedTuple):
    key: Key
    state: str


class Waiting:
    """Objects that wait for what their data says."""

    name = "waiting"
    about = CONFIG_MAPS

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    @property
    def wants(self) -> tuple[Want[Any], ...]:
        return (Want(CONFIG_MAPS, self.parse),)

    @staticmethod
    def parse(obj: Mapping[str, Any]) -> Thing:
        metadata = obj["metadata"]
        return Thing(Key(metadata["namespace"], metadata["name"]), obj["data"]["x"])

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        state = world[CONFIG_MAPS].get(key).state
        self.seen[key.namespace] = state
        if state == "broken":
            raise RuntimeError("a bug")
        claim = str(Claim(RUN, "0" * 12, 1, now))
        return Plan(Subject(CONFIG_MAPS, key, "uid", 1, claim=claim), awaits=() if state == "fine" else (state,))


async def test_one_that_waits_for_ever_keeps_no_other_from_being_served(tmp_path: Path) -> None:
    waiting = Waiting()
    async with scripted_api(tmp_path) as (api, cluster):
        for space, state in (("hostile", "never"), ("broken", "broken"), ("modest", "fine")):
            await api.put(space, "one", x=state)
        keys = [Key(space, "one") for space in ("hostile", "broken", "modest")]
        run = asyncio.create_task(act(cluster, waiting, keys, RUN))
        await eventually(lambda: len(waiting.seen) == 3, "all are planned")
        await api.put("modest", "one", x="due again")
        await eventually(lambda: waiting.seen["modest"] == "due again", "what settled is looked at again")
        await api.put("hostile", "one", x="fine")
        await eventually(lambda: waiting.seen["hostile"] == "fine", "it settles")
        assert not run.done(), "there is something to wait for"
        await api.put("modest", "one", x="fine")
        acted = await run
    assert acted.settled == {Key("hostile", "one"), Key("modest", "one")}
    assert acted.failed == {Key("broken", "one"): "it cannot be planned: RuntimeError: a bug"}


async def test_one_that_cannot_be_planned_keeps_no_other_from_being_shown(tmp_path: Path) -> None:
    async with scripted_api(tmp_path) as (api, cluster):
        for space, name, state in (("shop", "broken", "broken"), ("shop", "one", "fine"), ("shop", "other", "fine")):
            await api.put(space, name, x=state)
        assert set(await look(cluster, Waiting(), ["shop"])) == {Key("shop", "one"), Key("shop", "other")}
        keys = [Key("shop", "broken"), Key("shop", "one")]
        assert set(await look(cluster, Waiting(), ["shop"], keys)) == {Key("shop", "one")}
