"""Services of the local cluster: ClusterIPs that answer, names that resolve, and what becomes of connections."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from cluster_faults import kill, own, wait_for_restart
from cluster_helpers import Namespace, engine, is_ready, process_of, shell

from modelyard.cluster import Object
from modelyard.hosts import HostsFile, ServiceResolver
from modelyard.local.overview import collect
from modelyard.local.settings import Component
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import DEPLOYMENTS, EVENTS, PODS, SERVICES, STATEFUL_SETS

pytestmark = pytest.mark.integration

SLOW = ("--alpha", "20", "--beta", "0", "--flush-interval", "20")
"""An engine that takes 20 ms per token."""


@pytest.fixture
async def http(local_stack: LocalStack) -> AsyncIterator[aiohttp.ClientSession]:
    """A client outside the cluster, which knows its Services by the file beside the kubeconfig."""
    resolver = ServiceResolver(HostsFile.found(local_stack.kubeconfig))
    connector = aiohttp.TCPConnector(limit=0, force_close=True, resolver=resolver, use_dns_cache=False)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        yield session


async def serve(space: Namespace, name: str, port: int = 80, app: str = "", **spec: Any) -> Object:
    """Create a Service before the engines of a Deployment."""
    ports = [{"port": port, "targetPort": "http"}]
    body = {
        "metadata": {"name": name, "namespace": space.name},
        "spec": {"selector": {"app": app or name}, "ports": ports, **spec},
    }
    return await space.cluster.create(SERVICES, body)


async def models(http: aiohttp.ClientSession, url: str) -> list[str]:
    """What the engine behind a URL serves; none while it does not answer."""
    try:
        async with http.get(f"{url}/v1/models") as answer:
            return [one["id"] for one in (await answer.json())["data"]] if answer.status == 200 else []
    except (aiohttp.ClientConnectionError, OSError):
        return []


async def until(what: Any, timeout: float = 120) -> Any:
    """Ask until the answer is true; returns it."""
    async with asyncio.timeout(timeout):
        while not (found := await what()):
            await asyncio.sleep(0.1)
        return found


async def engines(space: Namespace, name: str, replicas: int, *arguments: str) -> dict[str, Object]:
    """A Deployment of engines, ready."""
    await space.deploy(name, engine(*arguments, gpus=0), replicas)

    def all_ready(pods: dict[str, Object]) -> bool:
        mine = [pod for pod in pods.values() if pod["metadata"].get("labels", {}).get("app") == name]
        return len(mine) == replicas and all(map(is_ready, mine))

    return await space.until(all_ready)


async def test_a_service_answers_at_its_address_and_by_its_name(
    space: Namespace, http: aiohttp.ClientSession, local_stack: LocalStack
) -> None:
    service = await serve(space, "web")
    address = service["spec"]["clusterIP"]
    assert address.startswith("127.")
    assert await models(http, f"http://{address}") == []  # refused: no pod is ready
    await engines(space, "web", 2)
    await until(lambda: models(http, f"http://{address}"))
    for name in (f"web.{space.name}.svc", f"web.{space.name}.svc.cluster.local"):
        assert await until(lambda name=name: models(http, f"http://{name}")) == ["test/model"]

        # By a program that is not ours, in the environment that `modelyard local up` prints.
        async def by_curl(name: str = name) -> bool:
            curl = await asyncio.create_subprocess_exec(
                *("curl", "--silent", "--fail", f"http://{name}/v1/models"),
                env={"PATH": os.environ["PATH"], "CURL_HOME": str(local_stack.paths.root)},
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await curl.communicate()
            return b"test/model" in output

        await until(by_curl)


async def test_pods_find_services_too(space: Namespace, http: aiohttp.ClientSession) -> None:
    await serve(space, "web")
    await engines(space, "web", 1)
    await until(lambda: models(http, f"http://web.{space.name}.svc"))
    script = f"curl --silent --fail http://web.{space.name}.svc/health && exec sleep 1000 || exit 1"
    await space.run("client", [shell(script)], restartPolicy="Never")
    await space.until(lambda pods: is_ready(pods["client"]))
    await asyncio.sleep(0.5)
    pods = await space.pods()
    assert pods["client"]["status"]["phase"] == "Running"


async def test_requests_go_to_all_ready_pods_and_to_no_other(space: Namespace, http: aiohttp.ClientSession) -> None:
    service = await serve(space, "web")
    for name in ("one", "two"):
        container = engine("--served-model-name", name, gpus=0)
        await space.cluster.create(
            PODS,
            {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"containers": [container]}},
            space.name,
        )
    late = engine("--served-model-name", "late", "--startup-delay", "3600", gpus=0)
    body = {"metadata": {"name": "late", "labels": {"app": "web"}}, "spec": {"containers": [late]}}
    await space.cluster.create(PODS, body, space.name)
    url = f"http://{service['spec']['clusterIP']}"
    seen: set[str] = set()

    async def both() -> bool:
        seen.update(await models(http, url))
        return {"one", "two"} <= seen

    await until(both)
    for _ in range(20):
        seen.update(await models(http, url))
    assert seen == {"one", "two"}


async def test_two_services_may_have_one_port(space: Namespace, http: aiohttp.ClientSession) -> None:
    for name in ("first", "second"):
        await serve(space, name, port=8080)
        await engines(space, name, 1, "--served-model-name", name)
    for name in ("first", "second"):
        assert await until(lambda n=name: models(http, f"http://{n}.{space.name}.svc:8080")) == [name]


async def test_a_headless_service_is_its_pods_and_each_has_a_name(
    space: Namespace, http: aiohttp.ClientSession, local_stack: LocalStack
) -> None:
    await serve(space, "group", clusterIP="None", publishNotReadyAddresses=True)
    labels = {"app": "group"}
    container = engine("--startup-delay", "3600", gpus=0)
    spec = {
        "replicas": 2,
        "serviceName": "group",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    await space.cluster.create(STATEFUL_SETS, {"metadata": {"name": "group"}, "spec": spec}, space.name)
    pods = await space.until(lambda pods: len(pods) == 2 and all(p["status"].get("podIP") for p in pods.values()))
    hosts = HostsFile.found(local_stack.kubeconfig)
    assert hosts is not None

    async def addresses() -> list[str]:
        found = hosts.addresses(f"group.{space.name}.svc")
        return found if len(found) == 2 else []

    assert set(await until(addresses)) == {pod["status"]["podIP"] for pod in pods.values()}
    for name, pod in pods.items():
        for form in (f"{name}.group.{space.name}", f"{name}.group.{space.name}.svc.cluster.local"):
            assert hosts.addresses(form) == [pod["status"]["podIP"]]

    # A pod that is replaced keeps its name and has another address.
    await space.cluster.delete(PODS, "group-0", space.name)
    old = pods["group-0"]["metadata"]["uid"]
    pods = await space.until(
        lambda pods: (
            "group-0" in pods
            and pods["group-0"]["metadata"]["uid"] != old
            and bool(pods["group-0"]["status"].get("podIP"))
        )
    )

    async def replaced() -> bool:
        return hosts.addresses(f"group-0.group.{space.name}.svc") == [pods["group-0"]["status"]["podIP"]]

    await until(replaced)


async def test_a_long_stream_outlives_the_scale_down(space: Namespace, http: aiohttp.ClientSession) -> None:
    await serve(space, "web")
    await space.deploy("web", engine(*SLOW, gpus=0), 1, terminationGracePeriodSeconds=60)
    await space.until(lambda pods: pods and all(map(is_ready, pods.values())))
    url = f"http://web.{space.name}.svc"
    await until(lambda: models(http, url))
    body = {"model": "test/model", "prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200
        begun = await answer.content.readline()
        await space.cluster.write_scale(DEPLOYMENTS, "web", space.name, 0)
        await space.until(lambda pods: all(pod["metadata"].get("deletionTimestamp") for pod in pods.values()))
        await until(lambda: refused(http, url))
        text = begun + await answer.read()
    assert text.count(b"tok ") == 200
    assert text.rstrip().endswith(b"[DONE]")
    await space.until(lambda pods: not pods)


async def refused(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/health"):
            return False
    except aiohttp.ClientConnectionError:
        return True


async def test_a_dead_engine_costs_nobody_a_connection(space: Namespace, http: aiohttp.ClientSession) -> None:
    await serve(space, "web")
    pods = await engines(space, "web", 2)
    url = f"http://web.{space.name}.svc"
    await until(lambda: models(http, url))
    process = process_of(next(iter(pods.values())))
    process.send(signal.SIGKILL)

    async def dead() -> bool:
        return not process.alive()

    await until(dead)
    for _ in range(30):
        assert await models(http, url) == ["test/model"]


async def test_a_stream_ends_with_its_pod(space: Namespace, http: aiohttp.ClientSession) -> None:
    await serve(space, "web")
    pods = await engines(space, "web", 1, *SLOW)
    url = f"http://web.{space.name}.svc"
    await until(lambda: models(http, url))
    body = {"model": "test/model", "prompt": "x", "max_tokens": 5000, "ignore_eos": True, "stream": True}
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        await answer.content.readline()
        os.kill(process_of(next(iter(pods.values()))).pid, signal.SIGKILL)
        with pytest.raises(aiohttp.ClientError):
            async with asyncio.timeout(120):
                await answer.read()
    # The container is started again, and the Service leads to it.
    await until(lambda: models(http, url))


async def test_a_deleted_service_refuses_and_its_name_is_gone(
    space: Namespace, http: aiohttp.ClientSession, local_stack: LocalStack
) -> None:
    service = await serve(space, "web")
    await engines(space, "web", 1)
    url = f"http://{service['spec']['clusterIP']}"
    await until(lambda: models(http, url))
    await space.cluster.delete(SERVICES, "web", space.name)
    await until(lambda: refused(http, url))
    hosts = HostsFile.found(local_stack.kubeconfig)
    assert hosts is not None

    async def gone() -> bool:
        return not hosts.addresses(f"web.{space.name}.svc")

    await until(gone)


async def test_services_answer_again_after_the_agent_was_killed(
    space: Namespace, http: aiohttp.ClientSession, local_stack: LocalStack
) -> None:
    await serve(space, "web")
    pods = await engines(space, "web", 1)
    url = f"http://web.{space.name}.svc"
    await until(lambda: models(http, url))
    restarts = own(local_stack, Component.AGENT).restarts
    kill(local_stack, Component.AGENT)
    await asyncio.to_thread(wait_for_restart, local_stack, Component.AGENT, restarts)
    await until(lambda: models(http, url))
    (pod,) = (await space.pods()).values()
    assert process_of(pod) == process_of(next(iter(pods.values())))


async def test_a_port_that_cannot_be_had_is_said_and_tried_again(
    space: Namespace, local_stack: LocalStack, http: aiohttp.ClientSession
) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        await serve(space, "web", port=port)
        await engines(space, "web", 1)

        async def told() -> str:
            events = await space.cluster.list(EVENTS, space.name)
            return next((e["message"] for e in events if e["reason"] == "PortNotOpen"), "")

        said = await until(told)
        assert f"(process {os.getpid()}), which listens on port {port}, or choose another port" in said

        async def shown() -> bool:
            return (await asyncio.to_thread(lambda: collect(local_stack).services)) == [f"{space.name}/web: {said}"]

        await until(shown)
    assert await until(lambda: models(http, f"http://web.{space.name}.svc:{port}"))


async def test_a_thousand_connections(space: Namespace, http: aiohttp.ClientSession) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    await serve(space, "web")
    await engines(space, "web", 2, "--alpha", "1", "--beta", "0", "--max-num-seqs", "1024")
    url = f"http://web.{space.name}.svc"
    await until(lambda: models(http, url))
    body = {"model": "test/model", "prompt": "x", "max_tokens": 20, "ignore_eos": True, "stream": True}

    async def one() -> bool:
        async with http.post(f"{url}/v1/completions", json=body) as answer:
            text = await answer.read()
            return answer.status == 200 and text.count(b"tok ") >= 1 and text.rstrip().endswith(b"[DONE]")

    async with asyncio.timeout(200):
        assert all(await asyncio.gather(*(one() for _ in range(1000))))
