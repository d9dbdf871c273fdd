"""Faults for the API server of these tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp

from modelyard.local.settings import Component
from modelyard.local.stack import LocalStack


async def compact(stack: LocalStack) -> None:
    """Make etcd forget everything but the present, as it does by itself every few minutes."""
    assert stack.state is not None
    etcd = stack.state.components[Component.ETCD].address
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{etcd}/v3/kv/range", json={"key": "AA=="}) as answer:
            revision = (await answer.json())["header"]["revision"]
        async with session.post(f"{etcd}/v3/kv/compaction", json={"revision": revision, "physical": True}) as answer:
            assert answer.status == 200, await answer.text()


@contextlib.asynccontextmanager
async def restarted(stack: LocalStack) -> AsyncIterator[None]:
    """Kill the API server (SIGKILL), run the body while it is away, and wait for its return."""
    before = stack.restarts(Component.APISERVER)
    stack.kill(Component.APISERVER)
    address = urlsplit(stack.server)
    with contextlib.suppress(ConnectionError):
        while True:  # until the kernel has taken the process apart
            _, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.transport.abort()
    yield
    await asyncio.to_thread(stack.wait_for_restart, Component.APISERVER, before)
