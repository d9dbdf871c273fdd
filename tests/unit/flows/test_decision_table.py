"""The title of the decision table counts what the tick of its rows scaled."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prefect.settings import PREFECT_API_URL, temporary_settings

from modelyard.reconcile.plans.report import Change, TickReport
from tasks.journal import DecisionTable, Journal


class Artifacts:
    """The part of Prefect's API that keeps artifacts; ``refuse`` writes are answered 500 first."""

    def __init__(self, refuse: int) -> None:
        self.refuse = refuse
        self.written: list[tuple[str, Any]] = []

    async def take(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.refuse:
            self.refuse -= 1
            return web.json_response({}, status=422)
        data = body["data"]
        self.written.append((body["description"], json.loads(data) if isinstance(data, str) else data))
        return web.json_response({**body, "id": str(uuid4()), "created": None, "updated": None}, status=201)


@asynccontextmanager
async def artifacts(refuse: int = 0) -> AsyncIterator[Artifacts]:
    kept = Artifacts(refuse)
    app = web.Application()
    app.router.add_post("/api/artifacts/", kept.take)
    app.router.add_patch("/api/artifacts/{id}", kept.take)
    async with TestServer(app) as server:
        with temporary_settings({PREFECT_API_URL: str(server.make_url("/api"))}):
            yield kept


def tick(number: int, scaled: int) -> TickReport:
    changes = [Change(f"chat/v{at}", 1, 2, "Scaled", "load rises") for at in range(scaled)]
    return TickReport([{"tick": number}], changes)


async def test_the_title_counts_the_tick_of_its_rows_alone() -> None:
    """Two ticks pass before the first table is on its way."""
    async with artifacts() as kept:
        journal = Journal("decisions", 20, logging.getLogger("journal"))
        journal.record(1, tick(1, 1))
        journal.record(2, tick(2, 2))
        await journal.close()
    assert kept.written == [
        ("Decisions of tick 1: 1 scaled", [{"tick": 1}]),
        ("Decisions of tick 2: 2 scaled", [{"tick": 2}]),
    ]


async def test_what_ticks_without_a_table_scaled_is_counted_apart() -> None:
    async with artifacts() as kept:
        journal = Journal("decisions", 20, logging.getLogger("journal"))
        for number, scaled in ((1, 0), (2, 3), (3, 2), (4, 1)):
            journal.record(number, tick(number, scaled))
        await journal.close()
    assert kept.written == [
        ("Decisions of tick 1", [{"tick": 1}]),
        ("Decisions of tick 4: 1 scaled, 5 scaled by earlier ticks", [{"tick": 4}]),
    ]


@pytest.mark.parametrize(
    ("key", "title"),
    [
        ("autoscale-decisions", "Decisions of tick 1"),
        ("autoscale-plan", "Decisions without effect (dry run) of tick 1"),
        ("reconcile-shop-plans", "Status updates of tick 1"),
    ],
)
async def test_the_title_says_what_the_rows_are(key: str, title: str) -> None:
    async with artifacts() as kept:
        journal = Journal(key, 20, logging.getLogger("journal"))
        journal.record(1, tick(1, 0))
        await journal.close()
    assert kept.written == [(title, [{"tick": 1}])]


async def test_a_table_that_could_not_be_written_is_counted_in_the_next() -> None:
    async with artifacts(refuse=2) as kept:
        journal = Journal("decisions", 20, logging.getLogger("journal"))
        journal.record(1, tick(1, 2))
        await journal.close()
        journal.record(2, tick(2, 0))
        await journal.close()
    assert kept.written[-1] == ("Decisions of tick 2: 2 scaled by earlier ticks", [{"tick": 2}])


@pytest.mark.parametrize(
    ("scaled", "total", "written", "title"),
    [
        (0, 0, 0, "Decisions of tick 7"),
        (2, 2, 0, "Decisions of tick 7: 2 scaled"),
        (2, 5, 3, "Decisions of tick 7: 2 scaled"),
        (2, 5, 1, "Decisions of tick 7: 2 scaled, 2 scaled by earlier ticks"),
        (0, 5, 1, "Decisions of tick 7: 4 scaled by earlier ticks"),
    ],
)
def test_titles(scaled: int, total: int, written: int, title: str) -> None:
    assert DecisionTable(7, [], scaled, total).describe(written) == title
