"""Choosing among endpoints."""

import asyncio
from collections import Counter

import pytest

from modelyard.traffic.router import Endpoint, Endpoints

A, B, C = (Endpoint(name, f"http://{name}", "v") for name in "abc")


class Source:
    """Endpoints that a test changes."""

    def __init__(self, *endpoints):
        self.endpoints = list(endpoints)
        self.error = None
        self.asked = asyncio.Event()

    async def settled(self):
        """Return when a router has taken note of the present state."""
        async with asyncio.timeout(120):
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
    async with Endpoints(Source(A, B, C)).running() as endpoints:
        first = [await endpoints.acquire(20) for _ in range(3)]
        assert set(first) == {A, B, C}
        endpoints.release(B)
        assert await endpoints.acquire(20) == B
        endpoints.release(A)
        endpoints.release(C)
        assert {await endpoints.acquire(20), await endpoints.acquire(20)} == {A, C}
        assert endpoints.outstanding == 3


async def test_idle_endpoints_share_the_load():
    async with Endpoints(Source(A, B, C)).running() as endpoints:
        chosen = Counter()
        for _ in range(30):
            endpoint = await endpoints.acquire(20)
            chosen[endpoint] += 1
            endpoints.release(endpoint)
    assert chosen == {A: 10, B: 10, C: 10}


async def test_a_request_waits_for_an_endpoint_and_gives_up():
    source = Source()
    async with Endpoints(source, refresh_interval=0.01).running() as endpoints:
        assert await endpoints.acquire(0.05) is None
        waiting = [asyncio.create_task(endpoints.acquire(20)) for _ in range(5)]
        await asyncio.sleep(0.03)
        assert endpoints.waiting == 5
        source.endpoints = [A, B]
        chosen = Counter(await asyncio.gather(*waiting))
        assert sorted(chosen.values()) == [2, 3]
        assert endpoints.waiting == 0


async def test_an_ejected_endpoint_is_left_out_for_a_while():
    async with Endpoints(Source(A, B), ejection_time=600).running() as endpoints:
        endpoints.eject(A)
        assert {await endpoints.acquire(20) for _ in range(6)} == {B}
        endpoints.eject(B)
        assert not endpoints.available
    async with Endpoints(Source(A), refresh_interval=0.01, ejection_time=0.2).running() as endpoints:
        endpoints.eject(A)
        # It comes back when its time is over.
        assert await endpoints.acquire(20) == A


async def test_endpoints_that_leave_are_not_chosen():
    source = Source(A, B)
    async with Endpoints(source, refresh_interval=0.01).running() as endpoints:
        held = {await endpoints.acquire(20), await endpoints.acquire(20)}
        source.endpoints = [B, C]
        await source.settled()
        assert await endpoints.acquire(20) == C
        for endpoint in held:
            endpoints.release(endpoint)
        assert endpoints.outstanding == 1


async def test_a_failing_source_keeps_the_known_endpoints(caplog):
    source = Source(A)
    async with Endpoints(source, refresh_interval=0.01).running() as endpoints:
        source.error = RuntimeError("no cluster")
        await source.settled()
        assert "no cluster" in (endpoints.last_error or "")
        assert await endpoints.acquire(20) == A
        assert caplog.text.count("no cluster") == 1
        source.error = None
        await source.settled()
        assert endpoints.last_error is None


async def test_a_cancelled_wait_leaves_nothing_behind():
    async with Endpoints(Source(), refresh_interval=0.01).running() as endpoints:
        waiting = asyncio.create_task(endpoints.acquire(20))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (endpoints.waiting, endpoints.outstanding) == (0, 0)
