"""The router: two servers behind one name, by weights and by a header, an adapter, a budget, and a pod that is killed.

Applies a sample as a user would, asks through the router, and checks what came back, to whom each request went, and
that a pod's end costs nobody but those whose streams it had.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from deployments.demo.services import eventually, told
from deployments.demo.stage import Act, Stage, kubectl
from modelyard.cluster import Object
from modelyard.hosts import HostsFile, ServiceResolver
from modelyard.local.agent.records import RecordStore
from modelyard.local.router import ADDRESS
from modelyard.objects.documents import cut
from modelyard.objects.kinds import PODS
from modelyard.routing.objects import ROUTES, SERVERS
from modelyard.traffic.latency import Ending
from modelyard.traffic.replay import RequestFailed, chat_body, send

SAMPLE, SPACE, HOME = "config/samples/local/router.yaml", "chat", "workload-variant-autoscaler-system"
ROUTER = "app.kubernetes.io/name=modelyard-router"
SMALL, LARGE = "meta-llama/Llama-3.2-3B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"
DRAWS, SHARE, NEAR = 300, 0.25, 0.12
"""Requests by weight, the large server's share of them, and how far from it they may be: almost five deviations."""
CLIENTS, TOKENS = 16, 60
"""Who stream at once while a pod is killed, and the length of each answer."""
LONG = "word " * 1200
"""A prompt of three quarters of what the sample's route gives in a minute."""


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Client:
    """Who asks the router."""

    def __init__(self, stage: Stage, session: aiohttp.ClientSession) -> None:
        self.stage, self.show, self.session = stage, stage.show, session

    async def ask(self, model: str, prompt: str = "hello", **headers: str) -> Answer:
        """A completion of one token."""
        body = {"model": model, "prompt": prompt, "max_tokens": 1}
        async with self.session.post(f"{ADDRESS}/v1/completions", json=body, headers=headers) as answer:
            return Answer(answer.status, answer.headers, await answer.json())

    async def asked(self, count: int, model: str, **headers: str) -> Counter[str]:
        """So many: how many were answered by which model."""
        found = [await self.ask(model, **headers) for _ in range(count)]
        return Counter(str(one.body.get("model")) if one.status == 200 else f"HTTP {one.status}" for one in found)

    async def pods(self, app: str) -> list[Object]:
        """The pods of a server."""
        return [*await self.stage.cluster.list(PODS, SPACE, label_selector=f"app={app}")]


async def play(stage: Stage) -> None:
    """From a manifest to requests that go where it says."""
    connector = aiohttp.TCPConnector(limit=0, resolver=ServiceResolver(HostsFile.found()), use_dns_cache=False)
    timeout, kind = aiohttp.ClientTimeout(total=120), {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=kind) as session:
        client = Client(stage, session)
        for part in (routed, killed, limited, stated):
            await part(client)


async def routed(client: Client) -> None:
    """Two servers behind a name, one of them for a header, and an adapter."""
    show = client.show
    await show.run("kubectl", "apply", "-f", SAMPLE)
    where = str(client.stage.stack.paths.root)
    await show.run("modelyard", "local", "router", "--replicas", "2", "--name", "demo", "--dir", where)

    async def models() -> list[str]:
        try:
            async with client.session.get(f"{ADDRESS}/v1/models") as answer:
                return [one["id"] for one in (await answer.json())["data"]]
        except (aiohttp.ClientError, OSError):
            return []

    show.say("waiting for the router and five engines")
    names = await eventually(models, lambda found: set(found) == {"chat", "sql"})
    for app in ("small", "large"):
        await eventually(partial(client.pods, app), lambda pods: all(map(ready, pods)))
    await eventually(lambda: client.asked(2, "sql"), lambda seen: set(seen) == {"sql"})
    show.claim(f"{ADDRESS} serves {' and '.join(names)}", True)
    await show.run("modelyard", "route", "explain", "-m", "chat", "-H", "tier: gold")
    seen = await client.asked(DRAWS, "chat")
    share = seen[LARGE] / DRAWS
    text = f"of {DRAWS} requests for chat, {seen[SMALL]} went to small and {seen[LARGE]} to large, whose weight is 25 %"
    show.claim(text, abs(share - SHARE) <= NEAR and seen[SMALL] + seen[LARGE] == DRAWS)
    seen = await client.asked(20, "chat", tier="gold")
    show.claim(f"of 20 with the header `tier: gold`, {seen[LARGE]} went to large", seen[LARGE] == 20)
    seen = await client.asked(20, "sql")
    show.claim(f"the adapter sql answered {seen['sql']} of 20 requests for its name", seen["sql"] == 20)


async def killed(client: Client) -> None:
    """An engine is killed while it streams: its own streams break off, and no other request fails."""
    show = client.show
    victim = (await client.pods("large"))[0]
    name, address = victim["metadata"]["name"], victim["status"]["podIP"]
    whole, broken, failed, over = list[str](), list[str](), list[str](), asyncio.Event()

    async def stream(number: int) -> None:
        count = 0
        while not over.is_set():
            count += 1
            request = f"demo-{number}-{count}"
            shared: dict[str, Any] = {"connector": client.session.connector, "connector_owner": False}
            named = {"Content-Type": "application/json", "x-request-id": request}
            try:
                async with aiohttp.ClientSession(**shared, headers=named) as session:
                    came = await send(session, ADDRESS, chat_body("sql", 8, TOKENS))
                (whole if came.output_tokens == TOKENS else failed).append(request)
            except RequestFailed as error:
                if error.ending is Ending.BROKEN:
                    broken.append(request)
                else:
                    failed.append(f"{request}: {cut(str(error), 200)}")
                await asyncio.sleep(0.1)

    async def under_way() -> int:
        async with client.session.get(f"http://{address}:8000/metrics") as answer:
            page = (await answer.text()).splitlines()
        return sum(int(float(one.rpartition(" ")[2])) for one in page if one.startswith("vllm:num_requests_running"))

    tasks = [asyncio.create_task(stream(number)) for number in range(CLIENTS)]
    try:
        busy = await eventually(under_way, lambda found: found >= CLIENTS // 4)
        records = RecordStore(client.stage.stack.paths.agent)
        for record in records.all():
            if record.uid == victim["metadata"]["uid"]:
                for process in record.processes():
                    os.kill(process.pid, signal.SIGKILL)
        before = len(whole)
        show.say(f"{CLIENTS} clients stream from sql without a pause; {name} is killed in the middle of {busy}")
        await eventually(lambda: restarts(client, name), lambda count: count > 0)

        async def answered() -> int:
            return len(whole)

        await eventually(answered, lambda count: count >= before + 4 * CLIENTS)
    finally:
        over.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    whose = await eventually(lambda: pods_of(client, set(broken)), lambda found: len(found) == len(broken))
    others = [request for request, pod in whose.items() if pod != name]
    text = f"{len(broken)} streams broke off, each of the killed pod's own, by the router's log"
    show.claim(text, 0 < len(broken) <= CLIENTS and not others)
    text = f"{len(whole)} others, before and after, came whole, {len(failed)} failed"
    show.claim(text + (f": {failed[0]}" if failed else ""), not failed)
    show.claim(f"{name} was started again", await restarts(client, name) > 0)


async def restarts(client: Client, name: str) -> int:
    """How often the containers of a pod were started again."""
    pod = await client.stage.cluster.get(PODS, name, SPACE)
    return sum(one["restartCount"] for one in pod["status"].get("containerStatuses") or ())


async def pods_of(client: Client, requests: set[str]) -> dict[str, str]:
    """The pod that each of these requests was sent to, by the access logs of the routers."""
    found = {}
    for router in await client.stage.cluster.list(PODS, HOME, label_selector=ROUTER):
        for line in (await client.show.call("kubectl", "-n", HOME, "logs", router["metadata"]["name"])).splitlines():
            if line.startswith("{") and line.endswith("}") and (entry := json.loads(line))["request_id"] in requests:
                found[entry["request_id"]] = entry["selected_pod"]
    return found


async def limited(client: Client) -> None:
    """The budget of a route is spent: a clear answer, and no other route is touched."""
    show = client.show
    sent, answer = 1, await client.ask("chat", LONG)
    while answer.status == 200 and sent < 6:  # each of the two routers gives out a budget of its own
        sent, answer = sent + 1, await client.ask("chat", LONG)
    error, after = answer.body.get("error") or {}, answer.headers.get("Retry-After", "")
    text = f"a prompt too many, the {sent}th of 1,200 words within a minute: {answer.status} {error.get('message')}"
    show.claim(text, answer.status == 429 and error.get("code") == "rate_limit_exceeded" and sent > 1)
    limit = answer.headers.get("x-ratelimit-limit-tokens")
    show.claim(f"with Retry-After: {after} and a limit of {limit} tokens", after.isdigit() and limit == "2000")
    status = (await client.ask("sql", LONG)).status
    show.claim(f"the route of sql has its own budget: {status}", status == 200)


async def stated(client: Client) -> None:
    """What routes and servers tell of themselves."""
    cluster = client.stage.cluster
    await client.stage.flows
    client.show.say("waiting for the flow reconcile to say how routes and servers stand")
    for kind, name in ((ROUTES, "chat"), (ROUTES, "adapters"), (SERVERS, "small"), (SERVERS, "large")):
        await eventually(partial(cluster.get, kind, name, SPACE), lambda obj: bool(obj.get("status")))
    await client.show.run("kubectl", "-n", SPACE, "get", "modelroutes,modelservers")
    routes = [await cluster.get(ROUTES, name, SPACE) for name in ("chat", "adapters")]
    client.show.claim("both routes are accepted", all(told(one, "Accepted")[0] == "True" for one in routes))


def ready(pod: Object) -> bool:
    """Whether it takes requests."""
    return any((one["type"], one["status"]) == ("Ready", "True") for one in pod["status"].get("conditions") or ())


def after(stage: Stage) -> list[str]:
    """What to try, where all is left running."""
    body = json.dumps({"model": "chat", "prompt": "Hello", "max_tokens": 8, "stream": True})
    return [
        f"curl -N {ADDRESS}/v1/completions -d '{body}'",
        f"{Path(sys.executable).with_name('modelyard')} route explain -m chat",
        f"{kubectl()} -n {HOME} logs -l {ROUTER} --tail 3",
        f"{kubectl()} -n {SPACE} scale deployment small --replicas 0    # requests go to large, none fails",
    ]


ACT = Act("demo-router", play, after)
