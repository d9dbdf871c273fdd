"""A router that follows a real API server: edits reach the next request, and an outage reaches none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import psutil
import pytest
from router_world import RecordingEngine, an_address, chat, status
from tcp_proxy import TcpProxy

from deployments.profile import free_port
from modelyard.cluster import Cluster, ClusterSettings
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import PODS
from modelyard.router.process.service import RouterProcess
from modelyard.router.settings import RouterSettings
from modelyard.routing.objects import ROUTES, SERVERS

pytestmark = pytest.mark.integration


class Shop:
    """Routes, servers and pods in a namespace of the test's own; a pod's engine is in this process."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.port = free_port()
        self.engines: list[RecordingEngine] = []

    async def server(self, name: str) -> None:
        spec = {
            "inferenceEngine": "vLLM",
            "workloadSelector": {"matchLabels": {"app": name}},
            "workloadPort": {"port": self.port},
        }
        await self.cluster.create(SERVERS, {"metadata": {"name": name}, "spec": spec}, self.namespace)

    def rules(self, **weights: int) -> list[Any]:
        return [{"targetModels": [{"modelServerName": name, "weight": weight} for name, weight in weights.items()]}]

    async def route(self, name: str, rules: list[Any], **spec: Any) -> None:
        body = {"modelName": f"{self.namespace}-{name}", "rules": rules, **spec}
        await self.cluster.create(ROUTES, {"metadata": {"name": name}, "spec": body}, self.namespace)

    async def edit(self, name: str, **spec: Any) -> None:
        await self.cluster.merge_patch(ROUTES, name, {"spec": spec}, self.namespace)

    async def pod(self, name: str, server: str, answer: Any = None) -> RecordingEngine:
        engine, address = RecordingEngine(answer), an_address()
        await engine.start(address, self.port)
        self.engines.append(engine)
        container = {"name": "engine", "image": "modelyard.dev/none"}
        spec = {"schedulerName": "nobody", "containers": [container]}
        body = {"metadata": {"name": name, "labels": {"app": server}}, "spec": spec}
        await self.cluster.create(PODS, body, self.namespace)
        # What a kubelet would say.
        told = {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
        await self.cluster.merge_patch(PODS, name, {"status": told}, self.namespace, "status")
        return engine

    async def ask(self, url: str, name: str) -> tuple[int, Any]:
        body = chat(f"{self.namespace}-{name}")
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", json=body) as answer,
        ):
            return answer.status, json.loads(await answer.read())

    async def answers(self, url: str, name: str, wanted: int) -> None:
        """Wait until requests for a name are answered so."""
        async with asyncio.timeout(120):
            while (await self.ask(url, name))[0] != wanted:
                await asyncio.sleep(0.05)


@pytest.fixture
async def shop(control_plane_cluster: Cluster, namespace: str) -> AsyncIterator[Shop]:
    found = Shop(control_plane_cluster, namespace)
    yield found
    for engine in found.engines:
        await engine.stop()


@contextlib.asynccontextmanager
async def following(cluster: Cluster, namespace: str) -> AsyncIterator[RouterProcess]:
    settings = RouterSettings(
        port=0, metrics_port=0, log="none", leave_seconds=0.0, wait_seconds=0.0, namespaces=(namespace,)
    )
    router = RouterProcess(settings)
    task = asyncio.create_task(router.run(cluster))
    try:
        async with asyncio.timeout(120):
            await router.started.wait()
            await router.follower.synced.wait()
        yield router
    finally:
        router.stop()
        await task


def url_of(router: RouterProcess) -> str:
    return f"http://127.0.0.1:{router.port}"


async def test_edits_under_load_reach_the_next_request_and_fail_none(shop: Shop) -> None:
    await shop.server("old")
    await shop.server("new")
    first, second = await shop.pod("old-0", "old"), await shop.pod("new-0", "new")
    await shop.route("chat", shop.rules(old=100, new=0))
    async with following(shop.cluster, shop.namespace) as router:
        url = url_of(router)
        await shop.answers(url, "chat", 200)
        seen: Counter[int] = Counter()
        over = asyncio.Event()

        async def client() -> None:
            while not over.is_set():
                seen[(await shop.ask(url, "chat"))[0]] += 1

        clients = [asyncio.create_task(client()) for _ in range(4)]
        try:
            for number in range(10):
                await shop.edit("chat", rules=shop.rules(old=100 - 10 * number, new=10 * number))
            await shop.edit("chat", rules=shop.rules(old=0, new=1))
            async with asyncio.timeout(120):
                before = -1
                while len(first.asked) != before:  # the old one gets nothing any more
                    before = len(first.asked)
                    reached = len(second.asked)
                    while len(second.asked) < reached + 20:
                        await asyncio.sleep(0.02)
        finally:
            over.set()
            await asyncio.gather(*clients)
        assert set(seen) == {200}
        await shop.edit("chat", rateLimit={"inputTokensPerUnit": 1, "unit": "month"})
        await shop.answers(url, "chat", 429)
        await shop.edit("chat", rateLimit=None)
        await shop.answers(url, "chat", 200)
        await shop.cluster.delete(PODS, "new-0", shop.namespace, grace_seconds=0)
        await shop.answers(url, "chat", 200)  # by the other, as long as there is one
        await shop.cluster.delete(PODS, "old-0", shop.namespace, grace_seconds=0)
        await shop.answers(url, "chat", 503)
        await shop.cluster.delete(ROUTES, "chat", shop.namespace)
        await shop.answers(url, "chat", 404)


async def test_one_bad_route_harms_no_other(shop: Shop) -> None:
    await shop.server("llama")
    await shop.pod("llama-0", "llama")
    await shop.route("good", shop.rules(llama=1))
    bad = [{"modelMatch": {"uri": {"regex": "(?=never)"}}, "targetModels": [{"modelServerName": "llama"}]}]
    await shop.route("bad", bad)
    async with following(shop.cluster, shop.namespace) as router:
        await shop.answers(url_of(router), "good", 200)
        assert (await shop.ask(url_of(router), "bad"))[0] == 404


async def test_without_an_api_server_traffic_goes_on(shop: Shop, control_plane: LocalStack, tmp_path: Any) -> None:
    await shop.server("llama")
    await shop.pod("llama-0", "llama")
    await shop.route("chat", shop.rules(llama=1))
    async with TcpProxy(control_plane.server) as proxy:
        settings = ClusterSettings(kubeconfig=proxy.kubeconfig(control_plane.kubeconfig, tmp_path))
        async with Cluster.connect(settings) as cluster, following(cluster, shop.namespace) as router:
            await shop.answers(url_of(router), "chat", 200)
            await proxy.go_away()
            for _ in range(20):
                assert (await shop.ask(url_of(router), "chat"))[0] == 200
                await asyncio.sleep(0.05)
            assert router.unready is None
            await shop.edit("chat", loraAdapters=[f"{shop.namespace}-other"])
            await proxy.come_back()
            await shop.answers(url_of(router), "other", 200)


async def test_workers_share_port_budget_and_metrics_and_one_may_be_killed(
    shop: Shop, control_plane: LocalStack
) -> None:
    await shop.server("llama")
    engine = await shop.pod("llama-0", "llama", status(200, "{}"))
    await shop.route("free", shop.rules(llama=1))
    await shop.route("dear", shop.rules(llama=1), rateLimit={"inputTokensPerUnit": 40, "unit": "month"})
    options = ["--port", "0", "--metrics-port", "0", "--workers", "2", "-n", shop.namespace, "--leave-seconds", "0"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "modelyard.cli.main", "router", *options),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(control_plane.kubeconfig)},
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(120):
            while not (
                told := re.search(rb"2 workers on (\S+), metrics on port (\d+)", await process.stderr.readline())
            ):
                pass
        url, metrics = told[1].decode(), int(told[2])
        silent = asyncio.create_task(process.stderr.read())

        async def ready() -> set[int]:
            """The workers that are ready: they listen on both ports."""
            found = set()
            for worker in psutil.Process(process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):  # it may be the one that was killed
                    listening = [one for one in worker.net_connections() if one.status == psutil.CONN_LISTEN]
                    found |= {worker.pid} if len(listening) == 2 else set()
            return found

        async with asyncio.timeout(120):
            while len(await ready()) < 2:
                await asyncio.sleep(0.1)
        seen = Counter([(await shop.ask(url, "dear"))[0] for _ in range(30)])
        assert seen[200] == 4, "of 40 tokens 9 each, whichever worker is asked"
        assert seen[429] == 26
        before = len(engine.asked)

        async def page() -> str:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{metrics}/metrics") as answer:
                return await answer.text()

        counted = re.findall(r'^kthena_router_requests_total\{.*status_code="200"\} (.+)$', await page(), re.MULTILINE)
        assert sum(map(float, counted)) == before
        await shop.answers(url, "free", 200)
        await shop.cluster.delete(ROUTES, "dear", shop.namespace)
        async with asyncio.timeout(120):
            while f"{shop.namespace}-dear" in (told := await page()) or f"{shop.namespace}/dear" in told:
                await asyncio.sleep(0.1)
        assert f'model_route="{shop.namespace}/free"' in told, "those of others stay"
        victim = min(await ready())
        os.kill(victim, signal.SIGKILL)
        lost = 0
        async with asyncio.timeout(120):
            while len(await ready() - {victim}) < 2:
                try:
                    assert (await shop.ask(url, "free"))[0] == 200
                except aiohttp.ClientConnectionError:
                    lost += 1
        assert lost <= 2, "more than what was with the one that was killed"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 120) == 0
        await silent
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
