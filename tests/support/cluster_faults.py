"""Faults for the components of a local cluster, its API server above all."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp

from modelyard.local.settings import Component
from modelyard.local.stack import LocalStack
from modelyard.local.state import ComponentPhase, ComponentState


def own(stack: LocalStack, component: Component) -> ComponentState:
    """What the supervisor last said of a component."""
    assert stack.state is not None
    return stack.state.components[component]


def kill(stack: LocalStack, component: Component) -> int:
    """Kill a component (SIGKILL), which the supervisor starts again; the process id it had."""
    process = own(stack, component).process
    assert process is not None
    assert process.send(signal.SIGKILL)
    return process.pid


def wait_for_restart(stack: LocalStack, component: Component, before: int) -> None:
    """Wait until a component that had been restarted `before` times is ready after a further restart."""
    deadline = time.monotonic() + 200
    while (state := own(stack, component)).restarts <= before or state.phase is not ComponentPhase.READY:
        assert time.monotonic() < deadline, f"{component} is {state.phase}: {state.message}; see {state.log}"
        time.sleep(0.05)


async def compact(stack: LocalStack) -> None:
    """Make etcd forget everything but the present, as it does by itself every few minutes."""
    etcd = own(stack, Component.ETCD).address
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{etcd}/v3/kv/range", json={"key": "AA=="}) as answer:
            revision = (await answer.json())["header"]["revision"]
        async with session.post(f"{etcd}/v3/kv/compaction", json={"revision": revision, "physical": True}) as answer:
            assert answer.status == 200, await answer.text()


@contextlib.asynccontextmanager
async def restarted(stack: LocalStack) -> AsyncIterator[None]:
    """Kill the API server (SIGKILL), run the body while it is away, and wait for its return."""
    before = own(stack, Component.APISERVER).restarts
    kill(stack, Component.APISERVER)
    address = urlsplit(stack.server)
    with contextlib.suppress(ConnectionError):
        while True:  # until the kernel has taken the process apart
            _, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.transport.abort()
    yield
    await asyncio.to_thread(wait_for_restart, stack, Component.APISERVER, before)
