"""The Lease as the guarantee of one writer: contenders, dead holders, outages."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_faults import restarted
from tcp_proxy import TcpProxy

from modelyard.cluster import Cluster, ClusterSettings, Holder, Lease, Unavailable
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import LEASES, PODS

pytestmark = pytest.mark.integration


@asynccontextmanager
async def contender(cluster: Cluster, place: str, holder: str, duration: int = 3) -> AsyncIterator[Lease]:
    lease = Lease(cluster, "writer", place, holder, duration_seconds=duration, retry_every=0.1)
    try:
        yield lease
    finally:
        await lease.release()


async def vanish(lease: Lease) -> None:
    """What is left of a holder whose process was killed: no renewal, no release."""
    assert lease._task is not None
    lease._task.cancel()
    await asyncio.gather(lease._task, return_exceptions=True)


async def test_one_takes_it_and_the_next_gets_it_on_release(cluster: Cluster, place: str) -> None:
    async with contender(cluster, place, "a", 60) as a, contender(cluster, place, "b", 60) as b:
        assert (a.held, a.generation, a.remaining) == (False, 0, 0)
        assert await a.acquire(timeout=0)
        assert a.held
        assert 0 < a.remaining <= 48
        assert not await b.acquire(timeout=0)
        assert not b.held
        assert b.observed_holder == a.identity
        waiting = asyncio.create_task(b.acquire(timeout=50))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await a.release()
        assert not a.held
        assert await waiting, "long before the 60 seconds are over"
        assert b.held
        assert b.generation == a.generation + 1
        assert not await a.acquire(timeout=0)


async def test_the_record_is_a_proper_lease(cluster: Cluster, place: str) -> None:
    async with contender(cluster, place, "shift-7", 30) as lease:
        assert await lease.acquire(timeout=0)
        await cluster.merge_patch(LEASES, "writer", {"metadata": {"labels": {"kept": "yes"}}}, place)
        assert await lease.renew(), "somebody's label does not take the lease away"
        stored = await cluster.get(LEASES, "writer", place)
        assert stored["metadata"]["labels"] == {"kept": "yes"}
        assert stored["spec"]["holderIdentity"].startswith("shift-7_")
        assert stored["spec"]["leaseDurationSeconds"] == 30
        assert stored["spec"]["leaseTransitions"] == lease.generation == 1
        assert stored["spec"]["renewTime"] > stored["spec"]["acquireTime"]
    stored = await cluster.get(LEASES, "writer", place)
    assert not stored["spec"].get("holderIdentity")


@pytest.mark.timing_sensitive("a lease of five seconds must be renewed in time")
async def test_it_is_renewed_in_the_background(cluster: Cluster, place: str) -> None:
    async with contender(cluster, place, "a", 5) as a, contender(cluster, place, "b", 5) as b:
        assert await a.acquire(timeout=0)
        assert not await b.acquire(timeout=11), "more than twice the duration"
        assert a.held
        assert a.generation == 1


async def test_a_dead_holder_is_followed_after_its_time(cluster: Cluster, place: str) -> None:
    async with contender(cluster, place, "dead", 2) as dead, contender(cluster, place, "heir", 2) as heir:
        assert await dead.acquire(timeout=0)
        await vanish(dead)
        assert await heir.acquire(timeout=120), "also when a busy server's answers came too late in between"
        assert not dead.held, "the old holder has stopped by itself before"
        assert heir.held
        assert heir.generation == dead.generation + 1
        assert not await dead.renew()
        assert not dead.held


async def test_remote_clocks_do_not_count(cluster: Cluster, place: str) -> None:
    # The holder's clock is years behind; its lease is as good as any while it keeps changing.
    old = {
        "holderIdentity": "slow-clock",
        "leaseDurationSeconds": 5,
        "acquireTime": "2001-01-01T00:00:00.000000Z",
        "renewTime": "2001-01-01T00:00:00.000000Z",
        "leaseTransitions": 4,
    }
    await cluster.create(LEASES, {"metadata": {"name": "writer", "namespace": place}, "spec": old})
    async with contender(cluster, place, "b", 5) as b:
        for second in range(1, 8):
            assert not await b.acquire(timeout=1)
            renewed = {"spec": {"renewTime": f"2001-01-01T00:00:0{second}.000000Z"}}
            await cluster.merge_patch(LEASES, "writer", renewed, place)
        assert await b.acquire(timeout=120), "it stands still now"
        assert b.generation == 5


async def test_of_many_contenders_there_is_always_at_most_one(api_server: LocalStack, place: str) -> None:
    """Five contenders hand over by release and by death; nobody ever sees two of them hold it."""
    async with AsyncExitStack() as stack:
        leases = []
        for number in range(5):
            own = await stack.enter_async_context(Cluster.connect(ClusterSettings(kubeconfig=api_server.kubeconfig)))
            leases.append(await stack.enter_async_context(contender(own, place, f"c{number}", 1)))
        generations: list[int] = []
        together = 0

        async def take_turns(lease: Lease) -> None:
            nonlocal together
            for turn in range(2):
                assert await lease.acquire(timeout=120)
                generations.append(lease.generation)
                together = max(together, sum(other.held for other in leases))
                await asyncio.sleep(0.05)
                together = max(together, sum(other.held for other in leases))
                if turn == 0:
                    await lease.release()
                else:
                    await vanish(lease)

        await asyncio.gather(*(take_turns(lease) for lease in leases))
        assert together == 1
        assert generations == sorted(set(generations)), "the fencing number only ever grows"


async def test_a_short_outage_costs_nothing(
    api_server: LocalStack, cluster: Cluster, proxy: TcpProxy, place: str, tmp_path: Path
) -> None:
    settings = ClusterSettings(kubeconfig=proxy.kubeconfig(api_server.kubeconfig, tmp_path), retry_steps=1)
    async with AsyncExitStack() as stack:
        hasty = await stack.enter_async_context(Cluster.connect(settings))
        a = await stack.enter_async_context(contender(cluster, place, "a", 300))
        b = await stack.enter_async_context(contender(hasty, place, "b", 300))
        a.renew_every = 0.1
        assert await a.acquire(timeout=0)
        async with restarted(api_server):
            proxy.refuse = True  # should the server be back already
            with pytest.raises(Unavailable):
                await b.acquire(timeout=0)
            assert a.held
        proxy.refuse = False
        assert a.held
        assert a.generation == 1
        assert await a.renew()
        assert not await b.acquire(timeout=0)


async def test_a_holder_cut_off_stops_before_anybody_can_follow(
    cluster: Cluster, proxied: Cluster, proxy: TcpProxy, place: str
) -> None:
    async with contender(proxied, place, "cut-off", 2) as cut_off, contender(cluster, place, "heir", 2) as heir:
        assert await cut_off.acquire(timeout=0)
        assert not await heir.acquire(timeout=0)
        proxy.stall()
        waiting = asyncio.create_task(heir.acquire(timeout=120))
        while cut_off.held:
            assert not heir.held
            await asyncio.sleep(0.01)
        assert await waiting
        proxy.resume()
        assert not await cut_off.renew()
        assert not cut_off.held
        assert heir.held


async def test_deleting_a_lease_brings_no_second_writer(cluster: Cluster, place: str) -> None:
    async with contender(cluster, place, "a", 60) as a, contender(cluster, place, "b", 60) as b:
        assert await a.acquire(timeout=0)
        assert not await b.acquire(timeout=0)
        assert await a.renew()
        await cluster.delete(LEASES, "writer", place)
        assert a.held, "it does not know yet"
        assert not await b.acquire(timeout=0.3)
        assert await a.renew()
        assert not await b.acquire(timeout=0)
        assert (b.observed_holder, a.generation) == (a.identity, 1)
        await cluster.delete(LEASES, "writer", place)
        await a.release()
        assert not a.held


async def test_a_lease_that_was_deleted_under_a_holder_who_died_can_be_had(cluster: Cluster, place: str) -> None:
    async with contender(cluster, place, "a", 2) as a, contender(cluster, place, "b", 2) as b:
        assert await a.acquire(timeout=0)
        assert not await b.acquire(timeout=0)
        await vanish(a)
        await cluster.delete(LEASES, "writer", place)
        assert await b.acquire(timeout=120)
        assert not a.held
        assert b.generation == a.generation + 1


async def test_an_acquire_that_was_cancelled_leaves_nothing_behind(
    api_server: LocalStack, cluster: Cluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(Cluster.connect(ClusterSettings(kubeconfig=api_server.kubeconfig)))
        a = await stack.enter_async_context(contender(own, place, "a", 300))
        b = await stack.enter_async_context(contender(cluster, place, "b", 300))
        create, done = own.create, asyncio.Event()

        async def create_without_answer(*args: Any, **kwargs: Any) -> None:
            await create(*args, **kwargs)
            done.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(own, "create", create_without_answer)
        taking = asyncio.create_task(a.acquire())
        await done.wait()
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        assert not a.held
        assert not await b.acquire(timeout=0), "the server has recorded the other"
        await a.release()
        assert await b.acquire(timeout=0)


async def test_a_lost_answer_is_found_out(api_server: LocalStack, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster.connect(ClusterSettings(kubeconfig=api_server.kubeconfig)) as own:
        create = own.create

        async def create_without_answer(*args: Any, **kwargs: Any) -> None:
            await create(*args, **kwargs)
            raise Unavailable("the connection broke")

        monkeypatch.setattr(own, "create", create_without_answer)
        async with contender(own, place, "a", 300) as a:
            assert await a.acquire(timeout=120)
            assert a.held
            assert a.generation == 1


async def test_releasing_while_the_server_is_away(
    api_server: LocalStack, cluster: Cluster, proxied: Cluster, proxy: TcpProxy, place: str, tmp_path: Path
) -> None:
    async with contender(proxied, place, "a", 2) as a, contender(cluster, place, "b", 2) as b:
        assert await a.acquire(timeout=0)
        proxy.refuse = True
        proxy.cut()
        await a.release()
        assert not a.held
        assert await b.acquire(timeout=120), "by expiry"


HOLD = """
import asyncio, sys
from modelyard.cluster import Cluster, ClusterSettings, Holder, Lease

async def hold(kubeconfig, place):
    async with Cluster.connect(ClusterSettings(kubeconfig=kubeconfig)) as cluster:
        assert await Lease(cluster, "writer", place, str(Holder.here()), duration_seconds=600).acquire()
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(hold(*sys.argv[1:]))
"""


async def test_a_holder_that_was_killed_is_followed_before_its_time(
    api_server: LocalStack, cluster: Cluster, place: str
) -> None:
    """Nobody waits ten minutes for a process of this machine that is gone; for one that is only halted one does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLD, str(api_server.kubeconfig), place), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"held\n"
        async with contender(cluster, place, "heir", 600) as heir:
            heir.overdue_after = 0.1
            process.send_signal(signal.SIGSTOP)
            assert not await heir.acquire(timeout=1)
            process.kill()
            await process.wait()
            assert await heir.acquire(timeout=120)
            assert heir.generation == 2
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_holder_whose_process_was_seen_to_end_is_followed_once_its_last_request_has_arrived(
    api_server: LocalStack, cluster: Cluster, place: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLD, str(api_server.kubeconfig), place), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    async with contender(cluster, place, "heir", 600) as heir:
        heir.settle_after = float("inf")
        process.kill()
        await process.wait()
        assert not await heir.acquire(timeout=1), "its request may be on its way"
        heir.settle_after = 0.001
        assert await heir.acquire(timeout=0), "long before its renewal is overdue, after five minutes"


async def test_who_comes_after_the_death_of_a_holder_need_not_see_it_silent(
    api_server: LocalStack, cluster: Cluster, place: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLD, str(api_server.kubeconfig), place), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    process.kill()
    await process.wait()
    async with contender(cluster, place, "heir", 600) as heir:
        assert not await heir.acquire(timeout=0), "what the dead one sent last may still be on its way"
        heir.overdue_after = 0.001
        assert await heir.acquire(timeout=0)


async def test_a_holder_whose_pod_is_gone_is_followed_before_its_time(cluster: Cluster, place: str) -> None:
    pod = {"metadata": {"name": "worker"}, "spec": {"containers": [{"name": "worker", "image": "none"}]}}
    uid = (await cluster.create(PODS, pod, place))["metadata"]["uid"]
    elsewhere = Holder(f"{place}/worker", 7, 1, "0123456789abcdef", uid)
    async with contender(cluster, place, str(elsewhere), 600) as dead, contender(cluster, place, "heir", 600) as heir:
        heir.overdue_after = 0.1
        assert await dead.acquire(timeout=0)
        await vanish(dead)
        assert not await heir.acquire(timeout=1), "its pod is there"
        await cluster.delete(PODS, "worker", place)
        again = (await cluster.create(PODS, pod, place))["metadata"]["uid"]
        assert again != uid, "another pod of the name"
        assert await heir.acquire(timeout=120)


async def test_a_contender_tells_a_holder_that_lives_from_one_that_may_be_dead(cluster: Cluster, place: str) -> None:
    async with contender(cluster, place, "a", 600) as a, contender(cluster, place, "b", 600) as b:
        assert await a.acquire(timeout=0)
        assert not await b.acquire(timeout=0)
        assert b.observed_holder == a.identity
        assert b.rival == "", "nothing says yet that it lives"
        assert await a.renew()
        assert not await b.acquire(timeout=0)
        assert b.rival == a.identity
        b.overdue_after = 0
        assert b.rival == "", "it is overdue again"
