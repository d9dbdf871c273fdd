"""What a run that begins again claims: not what is gone, nor what another run works on by now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from modelyard.cluster import NotFound, Object
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.dispatch import RunFate
from modelyard.reconcile.plans.plan import CLAIM
from tasks import claims
from tasks.claims import NoSuchObject, claim
from tasks.reconcile import BY_ID
from tasks.registry import REGISTRY
from tasks.steps import OpenRun, RunRef

LIFECYCLE = next(iter(REGISTRY))
NOW = 1_800_000_000.0
BATCH = "ConfigMap/batch-of-2/0123456789abcdef01234567"
BY_HAND = f"{BY_ID}0123abcd-0123-0123-0123-0123456789ab"
KEY = Key("victim", "y")


class Cluster:
    """One object of each of these keys, by the run that its claim names (empty: none)."""

    def __init__(self, runs: Mapping[Key, str]) -> None:
        self.runs = runs
        self.taken: list[Key] = []

    def now(self) -> float:
        return NOW

    async def get(self, _kind: object, name: str, namespace: str | None) -> Object:
        run = self.runs.get(Key(namespace or "", name))
        if run is None:
            raise NotFound("there is none")
        text = str(Claim(run, "0" * 12, 1, NOW - 60)) if run else ""
        return {"metadata": {"name": name, "namespace": namespace, "uid": "u", "annotations": {CLAIM: text}}}

    async def merge_patch(self, _kind: object, name: str, _patch: object, namespace: str | None) -> None:
        self.taken.append(Key(namespace or "", name))


async def claimed(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, run: str, attempt: int, fates: Mapping[str, RunFate]
) -> list[Key]:
    opened = OpenRun(SimpleNamespace(cluster=cluster, lifecycle=SimpleNamespace(about=CONFIG_MAPS)))  # type: ignore[arg-type]

    @asynccontextmanager
    async def open_run(_ref: RunRef) -> AsyncIterator[OpenRun]:
        yield opened

    async def read_fates(_client: Any, keys: Iterable[str]) -> dict[str, RunFate]:
        return {key: fates[key] for key in keys if key in fates}

    monkeypatch.setattr(claims, "open_run", open_run)
    monkeypatch.setattr(claims, "read_fates", read_fates)
    monkeypatch.setattr(claims, "get_client", lambda: nullcontext())
    with disable_run_logger():
        for key in [Key("evil", "x"), KEY]:
            await claim.fn(RunRef(LIFECYCLE, "home", run), key, attempt)
    return cluster.taken


async def test_an_object_that_is_gone_does_not_end_the_retry_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await claimed(monkeypatch, Cluster({KEY: BATCH}), BATCH, 2, {}) == [KEY]


@pytest.mark.parametrize("attempt", [1, 2])
async def test_one_that_a_person_names_has_to_be_there(monkeypatch: pytest.MonkeyPatch, attempt: int) -> None:
    with pytest.raises(NoSuchObject):
        await claimed(monkeypatch, Cluster({KEY: BATCH}), BY_HAND, attempt, {})


@pytest.mark.parametrize("run", [BATCH, BY_HAND])
async def test_a_retry_leaves_an_object_to_the_run_that_works_on_it(monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    alive = {"other": RunFate(None)}
    objects = {Key("evil", "x"): run, KEY: "other"}
    assert await claimed(monkeypatch, Cluster(objects), run, 2, alive) == [Key("evil", "x")]


async def test_who_begins_by_hand_takes_the_object_over(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = {Key("evil", "x"): "", KEY: "other"}
    assert KEY in await claimed(monkeypatch, Cluster(objects), BY_HAND, 1, {"other": RunFate(None)})


@pytest.mark.parametrize("fates", [{}, {"other": RunFate(NOW - 5)}, {"other": RunFate(None, queued=NOW - 5)}])
async def test_a_retry_takes_what_no_run_works_on(monkeypatch: pytest.MonkeyPatch, fates: dict[str, RunFate]) -> None:
    assert KEY in await claimed(monkeypatch, Cluster({Key("evil", "x"): "", KEY: "other"}), BATCH, 2, fates)
