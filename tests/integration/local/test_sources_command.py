"""What a new user types on the local cluster: a hub and a bucket, a router's address, and clients that need it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
import yaml
from cluster_helpers import Namespace, is_ready
from command_line import modelyard_beside

from deployments.demo.sources import Sources, SourcesError
from deployments.profile import ROOT, free_port
from modelyard.cluster import AlreadyExists, Cluster
from modelyard.local.router import ADDRESS, install
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CONFIG_MAPS, NAMESPACES

pytestmark = pytest.mark.integration

HOME = "workload-variant-autoscaler-system"
SAMPLES = ROOT / "config" / "samples" / "local"


@asynccontextmanager
async def sources(kubeconfig: Path, port: int) -> AsyncIterator[list[str]]:
    """`modelyard demo sources --allow` while it runs, and its lines up to the last command it names."""
    arguments = ("-m", "deployments.command", "demo", "sources", "--allow", "--port", str(port))
    env = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(120):
            while not any("s3://" in line for line in lines):
                line = (await process.stdout.readline()).decode()
                assert line, lines
                lines.append(line.rstrip())
        yield lines
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0, "it ends quietly"


async def test_a_hub_and_a_bucket_are_served_and_allowed(
    local_stack: LocalStack, local_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(local_stack.kubeconfig))
    port = free_port()
    async with sources(local_stack.kubeconfig, port) as lines:
        assert f"hub and bucket: http://127.0.0.1:{port}" in lines
        settings = await local_cluster.get(CONFIG_MAPS, "modelyard-models", HOME)
        allowed = yaml.safe_load(settings["data"]["settings"])
        assert (allowed["hubEndpoint"], allowed["endpoints"]) == (f"http://127.0.0.1:{port}", [f"127.0.0.1:{port}"])
        with pytest.raises(
            SourcesError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .* \(process \d+\) listens there"
        ):
            async with Sources(port):
                pass
    await local_cluster.delete(CONFIG_MAPS, "modelyard-models", HOME)


async def test_the_openai_client_is_given_an_address_that_it_can_resolve(
    local_stack: LocalStack, local_cluster: Cluster
) -> None:
    url = await install(local_cluster, 1)
    there = Namespace(local_cluster, HOME)
    await there.until(lambda pods: any(map(is_ready, pods.values())), 120)
    directory = ("--dir", local_stack.paths.root)
    done = await modelyard_beside("local", "address", f"{ADDRESS}/v1", *directory)
    assert (done.code, done.out) == (0, f"{url}/v1\n")
    client = openai.AsyncOpenAI(base_url=done.out.strip(), api_key="none", max_retries=5)
    assert (await client.models.list()).object == "list"
    missing = await modelyard_beside("local", "address", "http://nobody.nowhere.svc:80", *directory)
    assert missing.code == 1
    assert "no Service of the local cluster" in missing.err
    wrong = await modelyard_beside("local", "address", "nobody.nowhere.svc:80", *directory)
    assert (wrong.code, wrong.err) == (2, "error: 'nobody.nowhere.svc:80' has no scheme; add http://\n")


async def test_what_an_onboarding_needs_is_taken_by_the_cluster(local_cluster: Cluster) -> None:
    documents = [*yaml.safe_load_all((SAMPLES / "onboarding.yaml").read_text(encoding="utf-8"))]
    assert [one["kind"] for one in documents] == [
        "Namespace",
        "PersistentVolumeClaim",
        "ServingRuntime",
        "ServingRuntime",
    ]
    space = documents[0]["metadata"]["name"]
    try:
        await local_cluster.create(NAMESPACES, {"metadata": {"name": space}})
    except AlreadyExists:
        pytest.fail("another test's namespace")
    try:
        for document in documents[1:]:
            assert (await local_cluster.apply(document))["metadata"]["namespace"] == space
    finally:
        await local_cluster.delete(NAMESPACES, space)
