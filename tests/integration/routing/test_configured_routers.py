"""Replicas of a router as their configuration file has them: who may ask, what they share, whose turn it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis_server
from aiohttp import web
from redis_server import RedisServer
from router_world import RouterWorld, chat, whole

from modelyard.objects import Key
from modelyard.router.process.redis_sharing import RedisLink
from modelyard.router.process.service import RouterProcess
from modelyard.router.settings import RouterSettings

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server.serve() as served:
        yield served


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine's Redis is waited for, too: else each replica would count alone."""
    init = RedisLink.__init__

    def waits(link: RedisLink, address: str, url: str, time_limit: float = 0.0) -> None:
        init(link, address, url, 20.0)

    monkeypatch.setattr(RedisLink, "__init__", waits)


@contextlib.asynccontextmanager
async def replica(path: Path) -> AsyncIterator[RouterWorld]:
    """A router on its own that reads this file."""
    settings = RouterSettings(
        port=0,
        metrics_port=0,
        log="none",
        leave_seconds=0.0,
        drain_seconds=30.0,
        wait_seconds=0.0,
        configuration=str(path),
    )
    router = RouterProcess(settings)
    world = RouterWorld(router)
    task = asyncio.create_task(router.run(None))
    await router.started.wait()
    try:
        yield world
    finally:
        router.stop()
        await task
        await world.close()


def limited(world: RouterWorld, server: RedisServer) -> None:
    world.server()
    limit = {"inputTokensPerUnit": 100, "unit": "day", "global": {"redis": {"address": server.address}}}
    world.route(rateLimit=limit)


async def test_replicas_share_a_budget_and_ask_who_it_is(server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/ann").write_text("key-of-ann")
    path = tmp_path / "routerConfiguration.yaml"
    redis = f'redis: {{servers: {{"{server.address}": "redis://{server.address}"}}}}'
    path.write_text(f"auth: {{apiKeysDirectory: {tmp_path}/keys}}\n{redis}")
    async with replica(path) as first, replica(path) as second:
        for world in (first, second):
            limited(world, server)
            await world.recording("pod")
        assert (await first.post(chat()))[0] == 401
        ann = {"Authorization": "Bearer key-of-ann"}
        found = Counter[int]()
        for index in range(16):  # of 9 tokens each, of which the engine says that they were 7
            status, headers, _ = await (first, second)[index % 2].post(chat(), **ann)
            found[status] += 1
        assert found == {200: 13, 429: 3} or found == {200: 14, 429: 2}
        assert int(headers["Retry-After"]) > 0
        asked = [world.engine("pod").asked for world in (first, second)]
        assert all("Authorization" not in told for one in asked for _, told, _ in one)
        # The file changes while they run.
        path.write_text(redis)
        async with asyncio.timeout(120):
            while (await first.post(chat()))[0] == 401:
                await asyncio.sleep(0.05)


async def test_turns_go_to_who_used_less(tmp_path: Path) -> None:
    for user in ("heavy", "light"):
        (tmp_path / user).write_text(f"key-of-{user}")
    path = tmp_path / "..configuration"  # no key
    path.write_text(
        f"auth: {{apiKeysDirectory: {tmp_path}, forwardToken: true}}\nfairness: {{enabled: true, maxConcurrent: 1}}"
    )
    gate = asyncio.Event()

    async def answer(request: web.Request, body: bytes) -> Any:
        await gate.wait()
        return await whole(request, body)

    async with replica(path) as world:
        world.server()
        world.route()
        engine = await world.recording("pod", answer)

        async def post(user: str) -> int:
            status: int = (await world.post(chat(), Authorization=f"Bearer key-of-{user}"))[0]
            return status

        going = [asyncio.create_task(post("heavy")) for _ in range(3)]
        queues = world.router.configured.user_queues
        async with asyncio.timeout(120):
            while queues.waiting("m") < 2:
                await asyncio.sleep(0.01)
            going.append(asyncio.create_task(post("light")))
            while queues.waiting("m") < 3:
                await asyncio.sleep(0.01)
        gate.set()
        assert await asyncio.gather(*going) == [200] * 4
        users = [told["Authorization"].rpartition("-")[2] for _, told, _ in engine.asked]
        assert users == ["heavy", "light", "heavy", "heavy"]


async def test_replicas_avoid_what_the_others_keep_busy(server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "routerConfiguration.yaml"
    score = "plugins: {Score: {enabled: [{name: least-request}]}}"
    path.write_text(f'scheduler: {{{score}}}\nredis: {{inFlight: "{server.address}"}}')
    async with replica(path) as first, replica(path) as second:
        engines = {}
        for world in (first, second):
            world.server()
            world.route()
        for name in ("a", "b"):
            engines[name] = await first.recording(name)
            # The same pods, of which each has requests from both.
            second.engine_port = first.engine_port
            second.server()
            second.pod(name, first._pods[name].ip)
        busy = next(
            one for one in first.router.decider.fleet.backends[Key("shop", "server")].pods if one.key.name == "a"
        )
        busy.outstanding += 50

        def heard() -> int:
            backend = second.router.decider.fleet.backends[Key("shop", "server")]
            return next(one.elsewhere for one in backend.pods if one.key.name == "a")

        for _ in range(10):
            async with asyncio.timeout(120):
                while heard() != 50:  # what is not told again in time counts no more
                    await asyncio.sleep(0.02)
            assert (await second.post(chat()))[0] == 200
        assert (len(engines["a"].asked), len(engines["b"].asked)) == (0, 10)
        busy.outstanding -= 50
        async with asyncio.timeout(120):
            while heard():
                await asyncio.sleep(0.02)
