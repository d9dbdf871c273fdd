"""Choosing among endpoints."""

import asyncio
from collections import Counter

import pytest

from modelyard.traffic.router import Endpoint, Router

A, B, C = (Endpoint(name, f"http://{name}", "v") for name in "abc")


class Source:
    """Endpoints that a test changes."""

    def __init__(self, *endpoints):
        self.endpoints = list(endpoints)
        self.error = None
        self.asked = asyncio.Event()

    async def settled(self):
        """Return when a router has taken note of the present state."""
        async with asyncio.timeout(20):
            # By the time it asks again it has taken the answer before.
            for _ in range(2):
                self.asked.clear()
                await self.asked.wait()

    async def __call__(self):
        self.asked.set()
        if self.error:
            raise self.error
        return list(self.endpoints)


async def test_the_least_outstanding_is_chosen():
    async with Router(Source(A, B, C)).running() as router:
        first = [await router.acquire(1) for _ in range(3)]
        assert set(first) == {A, B, C}
        router.release(B)
        assert await router.acquire(1) == B
        router.release(A)
        router.release(C)
        assert {await router.acquire(1), await router.acquire(1)} == {A, C}
        assert router.outstanding == 3


async def test_idle_endpoints_share_the_load():
    async with Router(Source(A, B, C)).running() as router:
        chosen = Counter()
        for _ in range(30):
            endpoint = await router.acquire(1)
            chosen[endpoint] += 1
            router.release(endpoint)
    assert chosen == {A: 10, B: 10, C: 10}


async def test_a_request_waits_for_an_endpoint_and_gives_up():
    source = Source()
    async with Router(source, refresh_interval=0.01).running() as router:
        assert await router.acquire(0.05) is None
        waiting = [asyncio.create_task(router.acquire(20)) for _ in range(5)]
        await asyncio.sleep(0.03)
        assert router.waiting == 5
        source.endpoints = [A, B]
        chosen = Counter(await asyncio.gather(*waiting))
        assert sorted(chosen.values()) == [2, 3]
        assert router.waiting == 0


async def test_an_ejected_endpoint_is_left_out_for_a_while():
    async with Router(Source(A, B), refresh_interval=0.01, ejection_time=0.2).running() as router:
        router.eject(A)
        assert {await router.acquire(1) for _ in range(6)} == {B}
        router.eject(B)
        assert not router.available
        # Both come back when their time is over.
        assert await router.acquire(20) == A


async def test_endpoints_that_leave_are_not_chosen():
    source = Source(A, B)
    async with Router(source, refresh_interval=0.01).running() as router:
        held = {await router.acquire(1), await router.acquire(1)}
        source.endpoints = [B, C]
        await source.settled()
        assert await router.acquire(1) == C
        for endpoint in held:
            router.release(endpoint)
        assert router.outstanding == 1


async def test_a_failing_source_keeps_the_known_endpoints(caplog):
    source = Source(A)
    async with Router(source, refresh_interval=0.01).running() as router:
        source.error = RuntimeError("no cluster")
        await source.settled()
        assert "no cluster" in (router.last_error or "")
        assert await router.acquire(1) == A
        assert caplog.text.count("no cluster") == 1
        source.error = None
        await source.settled()
        assert router.last_error is None


async def test_a_cancelled_wait_leaves_nothing_behind():
    async with Router(Source(), refresh_interval=0.01).running() as router:
        waiting = asyncio.create_task(router.acquire(20))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (router.waiting, router.outstanding) == (0, 0)
